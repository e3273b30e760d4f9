"""Puts whole states together in `fit` for the callbacks that save."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import keras
import tensorflow as tf

from tfring._core.process_sets import ProcessSet
from tfring._ops.allreduce import allreduce
from tfring._ops.reductions import ReduceOp
from tfring._state.state_shares import WholeStates
from tfring._state.whole_states import whole_states


def has_shards(optimizer: Any) -> bool:
    """Tells whether an optimizer, built or not, has `shard_states=True`."""
    return isinstance(optimizer, WholeStates)


def saves_models(callback: Any) -> bool:
    """Tells whether a callback saves the model.

    Keras's callbacks that save (BackupAndRestore, ModelCheckpoint,
    OrbaxCheckpoint) have this attribute, and callbacks of other packages follow
    them.
    """
    return hasattr(callback, "save_freq")


def keeps_weights(callback: Any) -> bool:
    """Tells whether a callback of Keras reads all weights at an epoch's end."""
    return isinstance(callback, keras.callbacks.EarlyStopping) and bool(
        callback.restore_best_weights
    )


def saves_in_batches(callback: Any) -> bool:
    """Tells whether a callback saves between the ends of epochs."""
    return saves_models(callback) and callback.save_freq != "epoch"


def check_tells_when_it_saves(callback: Any) -> None:
    """Refuses a callback for which whole states cannot be gathered in time.

    Raises:
        NotImplementedError: The callback saves in batches, by a rule other than
            Keras's.
    """
    if saves_in_batches(callback) and not hasattr(
        callback, "_should_save_on_batch"
    ):
        raise NotImplementedError(
            f"fit: a {type(callback).__name__} saves between the ends of "
            f"epochs (save_freq={callback.save_freq!r}), and each rank has a "
            "part of the states or tables, which tfring gathers where Keras's "
            "own callbacks save. Give it save_freq='epoch', or take "
            "keras.callbacks.ModelCheckpoint."
        )


class GatherStates(keras.callbacks.Callback):
    """Enters `whole_states` on every rank before the callbacks that save.

    It leaves the context when training continues. Collective.

    Args:
        savers: The callbacks that save on this rank.
        in_batches: True if callbacks on some rank save within an epoch.
        root_rank: The one rank that saves, or None if several do.
        process_set: The ranks that train together.
    """

    def __init__(
        self,
        savers: Sequence[Any],
        *,
        in_batches: bool,
        root_rank: int | None,
        process_set: ProcessSet,
    ) -> None:
        super().__init__()
        self._savers = savers
        self._in_batches = in_batches
        self._root_rank = root_rank
        self._process_set = process_set
        self._whole = ExitStack()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._whole.close()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if not self._in_batches:
            return
        # Ask a copy of the saver, because each call counts a batch.
        due = any(
            copy.copy(saver)._should_save_on_batch(batch)
            for saver in self._savers
        )
        anywhere = allreduce(
            tf.constant(int(due)),
            op=ReduceOp.Max,
            name="fit/saves",
            process_set=self._process_set,
        )
        if anywhere > 0:
            self._gather()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._whole.close()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._gather()

    def on_train_end(self, logs: Any = None) -> None:
        self._whole.close()

    def after_fit(self, *error: Any) -> None:
        """Leaves the context where an exception ends `fit`."""
        self._whole.__exit__(*error)

    def _gather(self) -> None:
        self._whole.close()
        self._whole.enter_context(whole_states(self.model, self._root_rank))
