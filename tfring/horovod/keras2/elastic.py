"""States of elastic jobs, and callbacks that keep them, for Keras 2."""

from __future__ import annotations

from typing import Any

import tf_keras

from tfring import elastic
from tfring._core import runtime
from tfring._ops.process_set_registry import were_added
from tfring._state.model_state import forget_traces, optimizer_for
from tfring.horovod.keras2.variables import state_variables


class TensorFlowKerasState(elastic.TensorFlowState):
    """A model of Keras 2 and its optimizer, and Python objects as attributes.

    Args:
        model: A model that has been built.
        optimizer: The optimizer; by default that of `model.compile`.
        backend: Ignored; Horovod has this argument.
        **kwargs: See `tfring.elastic.TensorFlowState`.

    Raises:
        ValueError: The model has not been built, or there is no optimizer.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any = None,
        backend: Any = None,
        **kwargs: Any,
    ) -> None:
        self.model = model
        self.optimizer = optimizer_for(type(self).__name__, model, optimizer)
        self.backend = backend
        self._traced_at = runtime.job().topology
        super().__init__(state_variables(model, self.optimizer), **kwargs)

    def reset(self) -> None:
        # A trace may contain a former rank, size or process set.
        if were_added() or runtime.job().topology != self._traced_at:
            forget_traces(self.model)
        self._traced_at = runtime.job().topology


class KerasState(TensorFlowKerasState):
    """`TensorFlowKerasState` under the name of Horovod's Keras modules."""


class CommitStateCallback(
    elastic.CommitStateCallback, tf_keras.callbacks.Callback
):
    """Commits the state after batches, and after each epoch."""


class UpdateBatchStateCallback(
    elastic.UpdateBatchStateCallback, tf_keras.callbacks.Callback
):
    """Counts in `state.batch` the batches that are done in this epoch."""


class UpdateEpochStateCallback(
    elastic.UpdateEpochStateCallback, tf_keras.callbacks.Callback
):
    """Counts in `state.epoch` the epochs that are done."""
