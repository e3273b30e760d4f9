"""The place of all ranks in batches of what `tfring.data.shard` has shared out.

Note [A step that is taken in part]: the order of the elements is the same for
any number of ranks, and of m ranks number r has the elements r, r + m, r + 2 m,
and so on. So the elements that all ranks have taken are the first ones of the
order, and their number is the place. Another number of ranks goes on with the
step that has the first remaining element. In this step each rank leaves out its
elements that are taken, so its batch is smaller, on some ranks by one element
more than on others. All further steps have the batches of an epoch of these
ranks.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

# The attribute of a dataset that `tfring.data.shard` returns: why other ranks
# could not go on in its middle, or "".
_MARK = "_tfring_shared"
# The datasets after `shard` that keep the number of elements, or of batches,
# and their order.
_KEEPING = ("Map", "ParallelMap", "Prefetch", "Options", "AssertCardinality")
_BATCHING = ("Batch", "ParallelBatch")


def mark_shared(dataset: tf.data.Dataset, problem: str) -> tf.data.Dataset:
    """Marks a dataset as this rank's part of an order of all ranks.

    Args:
        dataset: The dataset that `tfring.data.shard` returns.
        problem: Why other ranks cannot go on in its middle; "" if they can.
    """
    setattr(dataset, _MARK, problem)
    return dataset


@dataclasses.dataclass(frozen=True)
class Cut:
    """What to leave out of a batch.

    Attributes:
        batch: The number of the batch.
        count: How many elements at its beginning to leave out.
    """

    batch: int
    count: int

    def apply(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Returns a dataset with as many batches."""

        def cut(number: tf.Tensor, batch: Any) -> Any:
            begin = tf.where(number == self.batch, self.count, 0)
            return tf.nest.map_structure(lambda each: each[begin:], batch)

        return dataset.enumerate().map(cut)


@dataclasses.dataclass(frozen=True)
class SharedBatches:
    """This rank's batches of a dataset that is shared out.

    Attributes:
        batch_size: The elements of a batch.
        elements: The elements of this rank, as many as of another; None if they
            have no end.
        batches: The batches from one end of the elements to the next, where
            they are repeated; else None.
    """

    batch_size: int
    elements: int | None
    batches: int | None

    def taken(self, batches: int, size: int) -> tuple[int, int]:
        """Returns the place of all ranks after each has taken some batches.

        Returns:
            How often all elements were taken, and how many since then.
        """
        passes = 0
        if self.batches is not None:
            passes, batches = divmod(batches, self.batches)
        return passes, batches * self.batch_size * size

    def find(
        self, passes: int, taken: int, rank: int, size: int
    ) -> tuple[int, Cut | None]:
        """Returns the number of the next batch, and what to leave out of it.

        Elements that are too few to give each rank one are left out.
        """
        batch, done = divmod(taken, self.batch_size * size)
        count = self.batch_size
        if self.elements is not None:
            count = min(count, self.elements - batch * count)
        if done > 0 and count * size - done < size:
            batch, done = batch + 1, 0
        if self.batches is not None:
            if batch >= self.batches:
                passes, batch, done = passes + 1, 0, 0
            batch += passes * self.batches
        own = -(-(done - rank) // size)
        return batch, Cut(batch, own) if done > 0 else None


def shared_batches(dataset: tf.data.Dataset) -> SharedBatches | str:
    """Returns how a dataset is shared out, or why that is not known.

    It looks at attributes of TensorFlow's; see Note [Inputs of a dataset] in
    tfring/_keras/data_orders.py.
    """
    try:
        return _shared_batches(dataset)
    except AttributeError:
        return "its parts are not known in this version of TensorFlow"


def _shared_batches(dataset: Any) -> SharedBatches | str:
    if dataset.options().deterministic is False:
        return "deterministic=False is among its options"
    flat = tf.nest.flatten(dataset.element_spec)
    if not all(isinstance(each, tf.TensorSpec) for each in flat):
        return "not all of its components are dense tensors"
    batch_size = batches = None
    while not hasattr(dataset, _MARK):
        kind = type(dataset).__name__.strip("_").removesuffix("Dataset")
        [*inputs] = dataset._inputs()
        if len(inputs) != 1:
            return "it is not made by tfring.data.shard"
        if kind in _BATCHING and batch_size is None:
            batch_size = int(dataset._batch_size)
        elif kind == "Repeat" and batch_size is None and batches is None:
            batches = int(inputs[0].cardinality())
        elif (
            kind not in _KEEPING
            or getattr(dataset, "_deterministic", "") == "false"
        ):
            return f"there is a {kind.lower()} after tfring.data.shard"
        [dataset] = inputs
    if problem := getattr(dataset, _MARK):
        return str(problem)
    if batch_size is None:
        return "it is not batched after tfring.data.shard"
    elements = int(dataset.cardinality())
    if elements == tf.data.UNKNOWN_CARDINALITY or (batches or 1) < 1:
        return "its number of elements is not known"
    return SharedBatches(
        batch_size, None if elements < 0 else elements, batches
    )
