"""What `fit` trains on: each kind of data, from a place in an epoch on.

A place is a number of rows, or of batches, that all ranks have taken of it.
"""

from __future__ import annotations

import abc
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf


class Rest(NamedTuple):
    """What is left of an epoch: this rank's batches.

    Attributes:
        steps: How many there are, the same on all ranks.
        batch: Returns one by its number; in order it is fastest.
    """

    steps: int
    batch: Callable[[int], Any]


class Source(abc.ABC):
    """The data of all ranks.

    Attributes:
        per_rank: What a rank takes in a step, in the units of a place.
        unit: These, in words.
        loading: What a `keras.utils.PyDataset` is made with.
    """

    per_rank: int
    unit: str = "rows"
    loading: Mapping[str, Any] = MappingProxyType({})

    @abc.abstractmethod
    def rest(self, epoch: int, taken: int, rank: int, size: int) -> Rest:
        """Returns a rank's batches of what is left of an epoch."""


def source(x: Any, y: Any, batch_size: int | None, seed: int | None) -> Source:
    """Returns the data that `fit` was given.

    Args:
        x: See `fit`.
        y: See `fit`.
        batch_size: See `fit`.
        seed: Of the orders of the epochs; None leaves the order as it is.

    Raises:
        TypeError: It cannot go on in the middle of an epoch.
        ValueError: An argument is missing, or one too many.
    """
    has_batches = isinstance(x, tf.data.Dataset | keras.utils.PyDataset)
    if has_batches and batch_size is not None:
        raise ValueError(
            f"tfring.elastic.fit: a {type(x).__name__} has batches of its own. "
            "Leave batch_size out."
        )
    if (has_batches or callable(x)) and y is not None:
        raise ValueError(
            f"tfring.elastic.fit: the targets are in the batches of a "
            f"{type(x).__name__}. Leave y out."
        )
    if isinstance(x, keras.utils.PyDataset):
        return _Numbered(x, seed)
    if isinstance(x, tf.data.Dataset):
        return _InOrder(x)
    if callable(x):
        if batch_size is None:
            raise ValueError(
                "tfring.elastic.fit: pass batch_size, the rows of the batches "
                "that the function gives a rank: its place in the data "
                "follows from that."
            )
        return _Made(x, batch_size)
    if inspect.isgenerator(x) or hasattr(x, "__next__"):
        raise TypeError(
            f"tfring.elastic.fit: a {type(x).__name__} cannot go on where "
            "another rank was. Make a keras.utils.PyDataset of it, whose "
            "batches have numbers, or pass a function of the epoch and the "
            "rows that were taken of it."
        )
    return _Arrays(x, y, 32 if batch_size is None else batch_size, seed)


def _order(count: int, seed: int | None, epoch: int) -> Any:
    if seed is None:
        return np.arange(count)
    return np.random.default_rng([seed, epoch]).permutation(count)


class _Arrays(Source):
    """Arrays; a place is a row."""

    def __init__(
        self, x: Any, y: Any, batch_size: int, seed: int | None
    ) -> None:
        self._parts = (x,) if y is None else (x, y)
        try:
            counts = {len(part) for part in keras.tree.flatten(self._parts)}
        except TypeError as error:
            raise TypeError(
                "tfring.elastic.fit: x and y must be arrays, or x a "
                "tf.data.Dataset, a keras.utils.PyDataset or a function: "
                f"{error}."
            ) from None
        if len(counts) != 1:
            raise ValueError(
                "tfring.elastic.fit: x and y must have as many rows, got "
                f"{sorted(counts)}."
            )
        [self._rows] = counts
        self.per_rank = batch_size
        self._seed = seed

    def rest(self, epoch: int, taken: int, rank: int, size: int) -> Rest:
        order = _order(self._rows, self._seed, epoch)[taken:]
        of_all = self.per_rank * size

        def batch(step: int) -> Any:
            own = order[step * of_all + rank : (step + 1) * of_all : size]
            return keras.tree.map_structure(lambda part: part[own], self._parts)

        return Rest(len(order) // of_all, batch)


class _Numbered(Source):
    """A `PyDataset`; a place is a batch."""

    per_rank = 1
    unit = "batches"

    def __init__(self, batches: keras.utils.PyDataset, seed: int | None):
        count = batches.num_batches
        if count is None:
            raise ValueError(
                "tfring.elastic.fit: the PyDataset has no end, and so no "
                "epochs. Give it a __len__."
            )
        self._batches = batches
        self._count = int(count)
        self._seed = seed
        self.loading = {
            "workers": batches.workers,
            "use_multiprocessing": batches.use_multiprocessing,
            "max_queue_size": batches.max_queue_size,
        }

    def rest(self, epoch: int, taken: int, rank: int, size: int) -> Rest:
        order = _order(self._count, self._seed, epoch)[taken:]
        return Rest(
            len(order) // size,
            lambda step: self._batches[int(order[step * size + rank])],
        )


class _InOrder(Source):
    """A dataset of batches for all ranks, in the same order in each epoch."""

    per_rank = 1
    unit = "batches"

    def __init__(self, dataset: tf.data.Dataset) -> None:
        _check_order(dataset)
        self._dataset = dataset
        self._count = _cardinality(dataset)

    def rest(self, epoch: int, taken: int, rank: int, size: int) -> Rest:
        steps = max(self._count - taken, 0) // size
        return Rest(steps, _Reader(self._dataset.skip(taken).shard(size, rank)))


class _Made(Source):
    """Datasets that a function makes; a place is a row."""

    def __init__(self, make: Callable[..., Any], batch_size: int) -> None:
        self._make = make
        self.per_rank = batch_size

    def rest(self, epoch: int, taken: int, rank: int, size: int) -> Rest:
        dataset = self._make(epoch, taken)
        if not isinstance(dataset, tf.data.Dataset):
            raise TypeError(
                "tfring.elastic.fit: x must return a tf.data.Dataset, got "
                f"{type(dataset).__name__}."
            )
        return Rest(_cardinality(dataset), _Reader(dataset))


def _cardinality(dataset: tf.data.Dataset) -> int:
    count = int(dataset.cardinality())
    if count < 0:
        infinite = count == tf.data.INFINITE_CARDINALITY
        what = "is infinite" if infinite else "has an unknown cardinality"
        raise ValueError(
            f"tfring.elastic.fit: the dataset {what}, so that no place in an "
            "epoch can be told. Say how many batches it has: "
            "dataset.take(n), or, where it has as many, dataset.apply("
            "tf.data.experimental.assert_cardinality(n))."
        )
    return count


def _check_order(dataset: tf.data.Dataset) -> None:
    """Raises a ValueError if a dataset surely has another order each time."""
    if dataset.options().deterministic is False:
        raise ValueError(
            "tfring.elastic.fit: the dataset has deterministic=False among its "
            "options, by which ranks would have batches in common. Leave it "
            "out."
        )
    left = [dataset]
    while left:
        each = left.pop()
        left.extend(each._inputs())
        if type(each).__name__ != "_ShuffleDataset":
            continue
        seeds = (int(each._seed), int(each._seed2))
        if each._reshuffle_each_iteration in (True, None) or seeds == (0, 0):
            raise ValueError(
                "tfring.elastic.fit: the dataset is shuffled anew each time, "
                "and so cannot go on in the middle of an epoch. Pass "
                "shuffle(..., seed=1, reshuffle_each_iteration=False); or, for "
                "another order in each epoch, a function of the epoch."
            )


class _Reader:
    """The batches of a dataset, read once and in order."""

    def __init__(self, dataset: tf.data.Dataset) -> None:
        self._dataset = dataset
        self._iterator: Any = None
        # Keras looks at the first two to know their shapes, and then begins
        # again. A new iterator might have them in another order.
        self._kept: dict[int, Any] = {}
        self._next = 0

    def __call__(self, step: int) -> Any:
        if self._iterator is None:
            self._iterator = iter(self._dataset)
        if step >= 2:
            self._kept.clear()
        while self._next <= step:
            batch = next(self._iterator)
            # As PyDatasets have it.
            is_whole = isinstance(batch, tuple | dict)
            self._kept[self._next] = batch if is_whole else (batch,)
            self._next += 1
        return self._kept[step]
