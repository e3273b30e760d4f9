"""A callback for ranks that have different numbers of batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras

from tfring._core import runtime
from tfring._gradients.local_variables import LocalVariables
from tfring._ops.join import join
from tfring._state.model_state import broadcast_model


class JoinCallback(keras.callbacks.Callback):
    """Lets ranks have different numbers of batches in `fit`.

    At the end of its batches a rank joins (`tfring.join`): it waits while the
    other ranks average their gradients without it. When no rank has batches
    left, all ranks take the weights and the optimizer's state, with its count
    of steps, of the rank that joined last, which has made every step. A rank
    may even have no batch at all in an epoch, if its model has been built.
    Gradients that were accumulated become the mean of the ranks that have made
    as many batches; those of a rank that joined in the middle of an update are
    left out.

    It acts before all other callbacks, at any place in the list, and in `fit`
    alone. With an optimizer that is not a `DistributedOptimizer` put it first
    yourself. Validation in `fit` follows the join, and so do its metrics. Every
    epoch broadcasts the weights once. Collective: pass it on every rank.

    Args:
        local_variables: Variables of the model that remain each rank's own, as
            for `BroadcastGlobalVariablesCallback`.

    Example:

    ```python
    model.fit(x, y, callbacks=[
        tfring.callbacks.JoinCallback(),
        tfring.callbacks.BroadcastGlobalVariablesCallback(0),
        tfring.callbacks.MetricAverageCallback()])
    ```
    """

    # read when `fit` begins
    lets_ranks_be_uneven = True

    def __init__(self, local_variables: Iterable[Any] = ()) -> None:
        super().__init__()
        self._local_variables = LocalVariables(local_variables)
        self._has_batches = False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._has_batches = True

    def on_test_begin(self, logs: Any = None) -> None:
        # Keras validates between the last batch of an epoch and `on_epoch_end`.
        self._join()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._join()

    def _join(self) -> None:
        if not self._has_batches or runtime.size() == 1:
            return
        self._has_batches = False
        broadcast_model(
            self.model,
            root_rank=join(),
            local_variables=[self._local_variables],
        )
