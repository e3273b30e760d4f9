"""The data of a training, from any place in an epoch on.

`tfring.elastic.fit` distributes the data, and a place is the number of rows, or
of batches, that all ranks have taken of it. `fit` with a checkpoint has this
rank's own data, as in a job of one rank.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import keras
import numpy as np
import tensorflow as tf

from tfring._keras.iterator_states import say_what_is_read_again


@runtime_checkable
class HasEpochs(Protocol):
    """A `PyDataset` with other batches in each epoch."""

    def set_epoch(self, epoch: int) -> None:
        """Makes this dataset have the batches of an epoch from now on."""


class Rest(NamedTuple):
    """The rest of an epoch: this rank's batches."""

    steps: int  # The number of batches, which is the same on all ranks.
    # Returns the batch of a number; asking in order is fastest.
    batch: Callable[[int], Any]


@dataclasses.dataclass(frozen=True)
class Source:
    """The data of all ranks."""

    # Its arguments are the rank, the size, the epoch, and the place in it.
    rest: Callable[[int, int, int, int], Rest]
    per_rank: int  # How many units a rank takes in a step.
    unit: str  # The name of the unit, for messages.
    # The arguments of a `keras.utils.PyDataset`.
    loading: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def source(x: Any, y: Any, batch_size: int | None, seed: int | None) -> Source:
    """Returns the data that `fit` was given.

    Without a seed, the data keep their order.

    Raises:
        TypeError: The data cannot be continued in the middle of an epoch.
        ValueError: An argument is missing, or there is one too many.
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
        return numbered(x, seed, "tfring.elastic.fit")
    if isinstance(x, tf.data.Dataset):
        return _in_order(x)
    if callable(x):
        if batch_size is None:
            raise ValueError(
                "tfring.elastic.fit: pass batch_size, the rows of the batches "
                "that the function gives a rank: its place in the data "
                "follows from that."
            )
        return _made(x, batch_size)
    if inspect.isgenerator(x) or hasattr(x, "__next__"):
        raise TypeError(
            f"tfring.elastic.fit: a {type(x).__name__} cannot continue where "
            "another rank was. Make a keras.utils.PyDataset of it, whose "
            "batches have numbers, or pass a function of the epoch and the "
            "rows that were taken of it."
        )
    parts = (x,) if y is None else (x, y)
    per_rank = 32 if batch_size is None else batch_size
    return arrays(parts, per_rank, seed, "tfring.elastic.fit")


def _order(count: int, seed: int | None, epoch: int) -> Any:
    if seed is None:
        return np.arange(count)
    return np.random.default_rng([seed, epoch]).permutation(count)


def arrays(
    parts: tuple[Any, ...],
    batch_size: int,
    seed: int | None,
    function: str,
    *,
    keeps_last: bool = False,
) -> Source:
    """Returns rows of arrays.

    Args:
        parts: Inputs, targets and weights: arrays, or lists or dicts of arrays.
        batch_size: The rows of each rank in a step.
        seed: The seed of the orders; None leaves the order as it is.
        function: The caller's name, for messages.
        keeps_last: True if the last rows make a step even if they are too few.

    Raises:
        TypeError: The parts are not arrays.
        ValueError: The parts have different numbers of rows.
    """
    try:
        counts = {len(part) for part in keras.tree.flatten(parts)}
    except TypeError as error:
        raise TypeError(
            f"{function}: x and y must be arrays, or x a tf.data.Dataset, a "
            "keras.utils.PyDataset or, in tfring.elastic.fit, a function: "
            f"{error}."
        ) from None
    if len(counts) != 1:
        raise ValueError(
            f"{function}: x and y must have as many rows, got {sorted(counts)}."
        )
    [rows] = counts

    def rest(rank: int, size: int, epoch: int, taken: int) -> Rest:
        order = _order(rows, seed, epoch)[taken:]
        of_all = batch_size * size

        def batch(step: int) -> Any:
            own = order[step * of_all + rank : (step + 1) * of_all : size]
            return keras.tree.map_structure(lambda part: part[own], parts)

        unfinished = keeps_last and len(order) % of_all > 0
        return Rest(len(order) // of_all + unfinished, batch)

    return Source(rest, batch_size, "rows")


def numbered(
    batches: keras.utils.PyDataset, seed: int | None, function: str
) -> Source:
    """Returns the batches of a `PyDataset`; see `arrays`.

    Raises:
        ValueError: It has no end.
    """
    count = batches.num_batches
    if count is None:
        raise ValueError(
            f"{function}: the PyDataset has no end, and so no epochs. Give it "
            "a __len__."
        )

    def rest(rank: int, size: int, epoch: int, taken: int) -> Rest:
        order = _order(int(count), seed, epoch)[taken:]
        if isinstance(batches, HasEpochs):
            batches.set_epoch(epoch)
        return Rest(
            len(order) // size,
            lambda step: batches[int(order[step * size + rank])],
        )

    options = ("workers", "use_multiprocessing", "max_queue_size")
    loading = {name: getattr(batches, name) for name in options}
    return Source(rest, 1, "batches", loading)


def _in_order(dataset: tf.data.Dataset) -> Source:
    """Returns the batches of a dataset, in the same order in each epoch."""
    _check_order(dataset)
    count = _cardinality(dataset)

    def rest(rank: int, size: int, epoch: int, taken: int) -> Rest:
        if taken > 0:
            say_what_is_read_again(taken)
        steps = max(count - taken, 0) // size
        return Rest(steps, _Reader(dataset.skip(taken).shard(size, rank)))

    return Source(rest, 1, "batches")


def _made(make: Callable[..., Any], batch_size: int) -> Source:
    """Returns the batches of the datasets that a function makes."""

    def rest(rank: int, size: int, epoch: int, taken: int) -> Rest:
        dataset = make(epoch, taken)
        if not isinstance(dataset, tf.data.Dataset):
            raise TypeError(
                "tfring.elastic.fit: x must return a tf.data.Dataset, got "
                f"{type(dataset).__name__}."
            )
        return Rest(_cardinality(dataset), _Reader(dataset))

    return Source(rest, batch_size, "rows")


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
                "tfring.elastic.fit: the dataset has another order each time, "
                "and so cannot continue in the middle of an epoch. Pass "
                "shuffle(..., seed=1, reshuffle_each_iteration=False); or, for "
                "another order in each epoch, a function of the epoch."
            )


class _Reader:
    """The batches of a dataset, read once and in order."""

    def __init__(self, dataset: tf.data.Dataset) -> None:
        self._batches = enumerate(dataset)
        # Keras looks at the first two to know their shapes, and then begins
        # again. A new iterator might have them in another order.
        self._kept: dict[int, Any] = {}

    def __call__(self, step: int) -> Any:
        if step >= 2:
            self._kept.clear()
        while step not in self._kept:
            number, batch = next(self._batches)
            # The default of PyDatasets.
            is_whole = isinstance(batch, tuple | dict)
            self._kept[number] = batch if is_whole else (batch,)
        return self._kept[step]
