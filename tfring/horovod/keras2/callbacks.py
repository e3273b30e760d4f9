"""Horovod's callbacks, for Keras 2.

Most are classes of `tfring.callbacks`, whose methods Keras 2 calls as Keras 3
does. The base class of Keras 2 adds the remaining methods.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from tfring import callbacks
from tfring._core import runtime
from tfring._ops.allreduce import allreduce
from tfring._ops.devices import checked_device, on_device
from tfring._ops.reductions import ReduceOp
from tfring._optim.keras2_optimizer import Keras2Distributed
from tfring._state.broadcast_variables import broadcast_variables
from tfring._state.model_state import shared_variables
from tfring.horovod.keras2.variables import state_variables


class BroadcastGlobalVariablesCallback(
    callbacks.BroadcastGlobalVariablesCallback, tf_keras.callbacks.Callback
):
    """Starts training from one rank's weights and optimizer."""

    def _broadcast(self) -> None:
        self._done = True
        optimizer = self.model.optimizer
        local_variables = [self._local_variables]
        if isinstance(optimizer, Keras2Distributed):
            local_variables.append(
                optimizer._agg_helper.options.local_variables
            )
        with on_device(self.device):
            broadcast_variables(
                shared_variables(
                    state_variables(self.model, optimizer), local_variables
                ),
                root_rank=self.root_rank,
                same_seeds=self.same_seeds,
            )


class MetricAverageCallback(tf_keras.callbacks.Callback):
    """Replaces the numbers of an epoch by their averages over the ranks.

    All ranks count alike, as in Horovod. Collective.

    Args:
        device: The place of the sum. By default TensorFlow chooses it.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()
        self.device = checked_device("MetricAverageCallback", "device", device)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        with on_device(self.device):
            for name, value in sorted((logs or {}).items()):
                value = np.asarray(value)
                if np.issubdtype(value.dtype, np.number):
                    logs[name] = allreduce(
                        tf.constant(value, tf.float64),
                        op=ReduceOp.Average,
                        name=f"MetricAverageCallback.{name}",
                    ).numpy()[()]


class LearningRateScheduleCallback(
    callbacks.LearningRateScheduleCallback, tf_keras.callbacks.Callback
):
    """Sets the learning rate in some epochs."""

    _log_name = "lr"

    def _velocities(self, optimizer: Any) -> list[Any]:
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        new, old = tf_keras.optimizers, tf_keras.optimizers.legacy
        if isinstance(optimizer, new.SGD):
            return list(getattr(optimizer, "momentums", []))
        if isinstance(optimizer, new.RMSprop):
            return list(getattr(optimizer, "_momentums", []))
        if (
            isinstance(optimizer, old.SGD | old.RMSprop)
            and "momentum" in optimizer.get_slot_names()
        ):
            return [
                optimizer.get_slot(variable, "momentum")
                for variable in self.model.trainable_variables
            ]
        return []


class LearningRateWarmupCallback(
    callbacks.LearningRateWarmupCallback, LearningRateScheduleCallback
):
    """Raises the learning rate from `initial_lr / size` to `initial_lr`."""


class BestModelCheckpoint(tf_keras.callbacks.ModelCheckpoint):
    """Saves the model when a metric has improved, on rank 0 alone.

    Args:
        filepath: See `tf_keras.callbacks.ModelCheckpoint`.
        monitor: The metric: put `MetricAverageCallback` before this.
        verbose: 1 prints a line on rank 0 when the model is saved.
        mode: "min", "max", or "auto", by the metric's name.
        save_freq: "epoch", or a number of batches.
    """

    def __init__(
        self,
        filepath: Any,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: str | int = "epoch",
    ) -> None:
        super().__init__(
            os.fspath(filepath),
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            mode=mode,
            save_freq=save_freq,
        )

    def _save_model(self, epoch: int, batch: int | None, logs: Any) -> None:
        if runtime.rank() == 0:
            super()._save_model(epoch, batch, logs)
