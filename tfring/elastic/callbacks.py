"""Keras callbacks that keep a state up to date during `fit`."""

from __future__ import annotations

from typing import Any

import keras

from tfring.elastic.state import State


class _StateCallback(keras.callbacks.Callback):
    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state


class CommitStateCallback(_StateCallback):
    """Commits the state after batches, and after each epoch.

    Put it after all callbacks that change the state. Collective: pass it on
    every rank, all with equally many batches.

    Args:
        state: A `State`.
        batches_per_commit: The least number of batches between two commits. It
            does not commit within a round (`sync` of
            `tfring.DistributedOptimizer`).

    Raises:
        ValueError: `batches_per_commit` is not positive.

    Example:

    ```python
    state = tfring.elastic.KerasState(model, batch=0, epoch=0)
    model.fit(x, y, callbacks=[
        tfring.elastic.UpdateEpochStateCallback(state),
        tfring.elastic.UpdateBatchStateCallback(state),
        tfring.elastic.CommitStateCallback(state, batches_per_commit=10)])
    assert (state.epoch, state.batch) == (1, 0)
    ```
    """

    def __init__(self, state: State, batches_per_commit: int = 1) -> None:
        super().__init__(state)
        if batches_per_commit < 1:
            raise ValueError(
                "CommitStateCallback: batches_per_commit must be positive, "
                f"got {batches_per_commit}."
            )
        self.batches_per_commit = batches_per_commit
        self._batches = 0

    def on_train_begin(self, logs: Any = None) -> None:
        self._batches = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._batches += 1
        if (
            self._batches >= self.batches_per_commit
            and not self.state._is_in_a_round()
        ):
            self._batches = 0
            self.state.commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.commit()


class UpdateBatchStateCallback(_StateCallback):
    """Counts in `state.batch` the batches that are done in this epoch.

    After a new start pass `fit` the rest of the epoch,
    `dataset.skip(state.batch)`. The callback continues its count, and sets it
    to 0 at the end of the epoch.

    Args:
        state: A `State` with an attribute `batch`.
    """

    _first = 0  # batches done before this `fit`

    def on_train_begin(self, logs: Any = None) -> None:
        self._first = self.state.batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.state.batch = self._first + batch + 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.batch = self._first = 0


class UpdateEpochStateCallback(_StateCallback):
    """Counts in `state.epoch` the epochs that are done.

    It adds to the state's number, so `initial_epoch` of `fit` makes no
    difference.

    Args:
        state: A `State` with an attribute `epoch`.
    """

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.epoch += 1
