"""The place of a `fit` in its data, from which a later `fit` continues.

| data of `fit`                           | a place is                        |
|-----------------------------------------|-----------------------------------|
| arrays, `PyDataset`                     | the rows, or batches, that are    |
|                                         | taken: by this rank, or by all    |
|                                         | ranks with `of_all_ranks`         |
| `tf.data`, shared by `tfring.data.shard`| the elements that all ranks have  |
|                                         | taken                             |
| other `tf.data`                         | the batches that this rank has    |
|                                         | taken                             |

A place in data that all ranks share holds for any number of ranks. On the same
number of ranks, the iterator of a `tf.data.Dataset` is restored if its state
could be saved. Otherwise the batches up to the place are read again.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from absl import logging

from tfring._checkpoint.restoring import Saved
from tfring._core import runtime
from tfring._keras.data_orders import buffer_sizes
from tfring._keras.epochs import LastInFit, Start
from tfring._keras.iterator_states import KEY, FitIterator
from tfring._keras.shared_batches import Cut, SharedBatches


class FitPlace:
    """The place of this rank's `fit`.

    Args:
        given: The callback that has the data.
        steps: The steps of an epoch; None if their number is unknown.

    Attributes:
        epoch: The epoch.
        batch: How many of its steps are done.
        goes_on: True if the epoch goes on where the ranks were, and their
            number is the same, so that each has its own metrics.
    """

    def __init__(self, given: LastInFit, steps: int | None) -> None:
        self._given = given
        self._steps = steps
        shared = given.shared
        self._shared = shared if isinstance(shared, SharedBatches) else None
        self.epoch = self.batch = 0
        self.goes_on = False
        # The epoch in which the first job began.
        self._first_epoch: int | None = None
        # The batches of a dataset without end that were read since then.
        self._read = 0
        self._cut: Cut | None = None
        self._iterator: FitIterator | None = None
        self._buffer_sizes: list[int] = []
        if given.dataset is not None:
            self._iterator = FitIterator()
            self._buffer_sizes = buffer_sizes(given.dataset)
        # How many rows, or batches, were taken of the first epoch of this job.
        self._taken = 0
        self._is_first = False

    def take(self, saved: Saved) -> None:
        """Moves to the place of a checkpoint."""
        place = saved.own("place")
        self.epoch, self.batch = place["epoch"], place["batch"]
        self._first_epoch = place["first epoch"]
        self._is_first = True
        is_same_size = saved.size == runtime.size()
        problem = self._problem(place, is_same_size)
        is_within = self.batch > 0 or self._given.steps_per_epoch is not None
        if problem and is_within:
            _warn_of_another_begin(saved, self.epoch, problem)
            self.batch = 0
        elif is_within and self._given.data is not None:
            self._taken = place["taken"]
            self.batch = self._given.data.begin(self.epoch, self._taken)
        elif is_within and self._shared is not None:
            self._find_batch(self._shared, place)
        if self._iterator is not None and not problem and is_same_size:
            self._iterator.saved = self._saved_iterator(saved, place)
        if self._steps is not None and self.batch >= self._steps:
            _warn_of_few(self.epoch)
            self.epoch, self.batch, self._taken = self.epoch + 1, 0, 0
            if not self._has_no_end():
                self._cut = None
        self.goes_on = is_same_size and self.batch > 0

    def _problem(self, place: dict[str, Any], is_same_size: bool) -> str:
        """Returns why this job cannot go on at a place, or ""."""
        is_of_all = self._is_of_all_ranks()
        if is_of_all != place["is of all ranks"]:
            now, before = "shared out by tfring", "each rank's own"
            if not is_of_all:
                now, before = before, now
            return f"its data are {now}, and were {before}"
        if is_of_all or is_same_size:
            return ""
        if self._given.data is None:
            return (
                f"its tf.data.Dataset has no such place: {self._given.shared}"
            )
        return (
            "its data are each rank's own. Pass the data of all ranks, and "
            "Checkpoint(..., of_all_ranks=True)"
        )

    def _saved_iterator(
        self, saved: Saved, place: dict[str, Any]
    ) -> tf.Tensor | None:
        """Returns the state of this rank's iterator, if there is one."""
        rank = runtime.rank()
        now = self.describe()
        is_alike = all(
            place.get(name) == now[name]
            for name in ("steps", "elements in a step", "buffer sizes")
        )
        if is_alike and rank in saved.ranks_with(KEY):
            return saved.read_variant(rank, KEY)
        return None

    def iterator_state(self) -> tf.Tensor | None:
        """Returns the state of the iterator, or None if there is none."""
        if self._iterator is None:
            return None
        return self._iterator.state(is_between_epochs=self.batch == 0)

    def _find_batch(self, shared: SharedBatches, place: dict[str, Any]) -> None:
        passes, taken = place["taken"]
        rank, size = runtime.rank(), runtime.size()
        batch, self._cut = shared.find(passes, taken, rank, size)
        if not self._has_no_end():
            self.batch = batch
            return
        self._read = batch
        if place["steps"] != self._steps:
            # Count batches of this job's size for the same number of elements.
            self.batch *= place["elements in a step"]
            self.batch //= shared.batch_size * size

    def _has_no_end(self) -> bool:
        return self._shared is not None and bool(self._given.steps_per_epoch)

    def _is_of_all_ranks(self) -> bool:
        if self._given.data is not None:
            return self._given.of_all_ranks
        return self._shared is not None

    def begin_epoch(self, epoch: int) -> Start | None:
        """Begins an epoch; returns where, if that is not its beginning."""
        if self._first_epoch is None:
            self._first_epoch = epoch
        is_first, self._is_first = self._is_first, False
        self.epoch = epoch
        if not is_first:
            self.batch = 0
        if self._given.data is not None:
            self._given.data.begin(epoch, self._taken if is_first else 0)
        if self._iterator is None:
            return Start(self.batch) if is_first else None
        if not is_first:
            return Start(0, read=0, iterator=self._iterator)
        epochs, read = epoch - self._first_epoch, None
        if self._has_no_end():
            epochs, read = 0, self._read
        return Start(self.batch, epochs, read, self._cut, self._iterator)

    def count(self, batch: int) -> int:
        """Counts the steps up to a batch of Keras's; returns how many."""
        done = min(batch + 1, self._steps or batch + 1)
        steps = done - self.batch
        self._read += steps
        self.batch = done
        return steps

    def end_epoch(self, next_epoch: int) -> None:
        """Ends an epoch."""
        self.epoch, self.batch = next_epoch, 0

    def describe(self) -> dict[str, Any]:
        """Returns the place as a JSON value."""
        taken: Any = None
        elements = None
        if self._given.data is not None:
            taken = self._given.data.taken(self.batch) if self.batch else 0
        elif self._shared is not None:
            read = self._read if self._has_no_end() else self.batch
            taken = self._shared.taken(read, runtime.size())
            elements = self._shared.batch_size * runtime.size()
        return {
            "epoch": self.epoch,
            "batch": self.batch,
            "first epoch": self._first_epoch or 0,
            "is of all ranks": self._is_of_all_ranks(),
            "steps": self._steps,
            "elements in a step": elements,
            "buffer sizes": self._buffer_sizes,
            "taken": taken,
        }


def _warn_of_another_begin(saved: Saved, epoch: int, problem: str) -> None:
    if runtime.rank() == 0:
        logging.warning(
            "tfring: %s is from the middle of epoch %d, and of %d ranks. This "
            "job has %d ranks, and begins that epoch again, with the weights "
            "of the checkpoint, because %s.",
            *(saved.path, epoch, saved.size, runtime.size(), problem),
        )


def _warn_of_few(epoch: int) -> None:
    if runtime.rank() == 0:
        logging.warning(
            "tfring: what is left of epoch %d is too little for a step of %d "
            "ranks, and so the next epoch begins.",
            *(epoch, runtime.size()),
        )
