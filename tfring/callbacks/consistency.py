"""A callback that notices when ranks no longer train the same model."""

from __future__ import annotations

from typing import Any

import keras

from tfring._core import runtime
from tfring._state.kinds import Kind, kind_of
from tfring._state.model_state import local_variables_of
from tfring._state.weights import compare_weights


class ConsistencyCheckCallback(keras.callbacks.Callback):
    """Raises an error when the weights of the ranks are not the same bits.

    Ranks that start from different weights, or that call an optimizer which is
    not a `DistributedOptimizer`, drift apart without another sign than a bad
    model. This compares a hash of each rank's weights, and says on every rank
    which variable is the first that differs, and between which ranks.

    It reads the weights once, those on a GPU through the host. That is cheap
    from time to time, but too expensive for every batch of a large model. `fit`
    with a `DistributedOptimizer` compares the trainable ones by itself where
    training and epochs begin; this is for finding out after which batch they
    differ, and for any other optimizer. Optimizer states are not compared: a
    difference shows in the weights a step later. Local variables of a
    `tfring.PartialDistributedOptimizer`, tables of
    `tfring.layers.ShardedEmbedding`, and ranks that wait
    (`tfring.callbacks.JoinCallback`), are not compared. Put it after
    `BroadcastGlobalVariablesCallback`. Collective: pass it on every rank.

    Args:
        every: How many batches pass between two checks; None checks only at the
            end of each epoch. Must agree across ranks.
        trainable_only: If true, only trainable weights are compared. The moving
            statistics of `keras.layers.BatchNormalization` are not trainable:
            each rank has its own.

    Raises:
        ValueError: `every` is not positive.
        RuntimeError: After a batch or an epoch, on every rank, if weights
            differ.

    Example:

    ```python
    model.fit(x, y, callbacks=[
        tfring.callbacks.BroadcastGlobalVariablesCallback(0),
        tfring.callbacks.ConsistencyCheckCallback(every=100)])
    ```
    """

    def __init__(
        self, every: int | None = 100, trainable_only: bool = False
    ) -> None:
        super().__init__()
        if every is not None and every < 1:
            raise ValueError(
                "ConsistencyCheckCallback: every must be a positive number of "
                f"batches or None, got {every!r}."
            )
        self.every = every
        self.trainable_only = trainable_only
        self._batches = 0

    def on_train_begin(self, logs: Any = None) -> None:
        self._batches = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._batches += 1
        if self.every is not None and self._batches % self.every == 0:
            self._check(f"after {self._batches} batches")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._check(f"at the end of epoch {epoch + 1}")

    def _check(self, when: str) -> None:
        if runtime.size() == 1:
            return
        model = self.model
        weights = (
            model.trainable_weights if self.trainable_only else model.weights
        )
        local = local_variables_of(model)
        alike = [v for v in weights if kind_of(v, local) is Kind.ALIKE]
        difference = compare_weights(alike, name="consistency/weights")
        if difference is not None:
            raise RuntimeError(
                f"ConsistencyCheckCallback: {when} the ranks have different "
                f"weights. {difference} Use DistributedOptimizer and "
                "BroadcastGlobalVariablesCallback on every rank; where ranks "
                "may have their own, as the moving statistics of "
                "BatchNormalization, which are not trained, pass "
                "trainable_only=True."
            )
