"""Gathers sharded states before the callbacks that save, in `fit`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from tfring._training.state_shares import WholeStates
from tfring._training.whole_states import sharded_optimizers


def has_shards(optimizer: Any) -> bool:
    """Tells whether it keeps a share of its states, built or not."""
    return isinstance(optimizer, WholeStates)


def saves_models(callback: Any) -> bool:
    return isinstance(
        callback,
        keras.callbacks.BackupAndRestore | keras.callbacks.ModelCheckpoint,
    )


class _Counter:
    """Counts batches as Keras's callbacks do, the two in two ways."""

    def __init__(self, frequency: int, last_batch: int | None) -> None:
        self._frequency = frequency
        self._first = self._last_batch = last_batch
        self._since = 0

    def is_due(self, batch: int) -> bool:
        if self._last_batch is None or batch <= self._last_batch:
            self._since += batch + 1
        else:  # More than one, with several steps per execution.
            self._since += batch - self._last_batch
        self._last_batch = batch
        if self._since < self._frequency:
            return False
        self._since = 0
        return True

    def end_epoch(self) -> None:
        if self._first is not None:
            self._last_batch = self._first


class GatherStates(keras.callbacks.Callback):
    """Stands on every rank before the callbacks of those that save.

    What it has gathered it gives up when training goes on. Collective.

    Args:
        frequencies: After how many batches some callback saves.
        root_rank: The one rank that saves, or None if several do.
    """

    def __init__(self, frequencies: Sequence[int], root_rank: int | None):
        super().__init__()
        self._root_rank = root_rank
        self._counters = [
            _Counter(frequency, last_batch)
            for frequency in frequencies
            for last_batch in (None, 0)  # ModelCheckpoint, BackupAndRestore
        ]

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._drop()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # All of them count.
        due = [counter.is_due(batch) for counter in self._counters]
        if any(due):
            self._gather()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._drop()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        for counter in self._counters:
            counter.end_epoch()
        self._gather()

    def on_train_end(self, logs: Any = None) -> None:
        self._drop()

    def _gather(self) -> None:
        for optimizer in sharded_optimizers(self.model):
            optimizer._gather_whole(self._root_rank)

    def _drop(self) -> None:
        for optimizer in sharded_optimizers(self.model):
            optimizer._drop_whole()
