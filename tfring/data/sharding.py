"""Gives each rank its part of a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from tfring._core import runtime
from tfring._core.errors import DifferentOrdersWarning, warn_all_ranks
from tfring._keras.data_orders import (
    draws_of,
    first_elements,
    unordered_operations,
)
from tfring._keras.shared_batches import mark_shared
from tfring._ops.gather_json import gather_json

# The seed that TensorFlow combines with an operation's if `tf.random` has none.
# With it the order is that of `Dataset.shuffle(buffer_size, seed)`.
_GLOBAL_SEED = 87654321


def shard(
    dataset: tf.data.Dataset,
    *,
    seed: int | None,
    remainder: Literal["drop", "pad", "keep"] = "drop",
    buffer_size: int | None = None,
    skip: int = 0,
) -> tf.data.Dataset:
    """Shuffles a dataset alike on all ranks, and gives each its part.

    In every epoch the dataset gets a new order, the same on all ranks. Of every
    `size()` consecutive elements the first is rank 0's, the next rank 1's, and
    so on. No two ranks have the same element, and all ranks have equally many,
    so that they take equally many steps.

    If the number of elements is not a multiple of `size()`, the remaining
    elements are dropped or padded. With a new order in every epoch these are
    other elements each time. For `tfring.metrics`, which takes unequal parts,
    keep them.

    Every rank reads all shuffled elements. So shard small elements, such as
    file names or indices, and load, `map`, `batch` and `prefetch` afterwards.
    Each new iterator has a new order: iterate over the result equally often on
    every rank. It does not depend on `tf.random.set_seed` or
    `keras.utils.set_random_seed`, which may have other seeds on every rank.

    In training that resumes in the middle of an epoch, perhaps with another
    number of ranks, `seed` is the epoch's and `skip` the number of elements
    that all ranks have taken of it: none of them is repeated, and none is left
    out.

    Collective: every rank must call it, eagerly, with the same arguments.

    The ranks compare the seeds of all shuffles before it, and the first
    elements of arrays in memory; a `tfring.DifferentOrdersWarning` says where
    orders may differ. Other elements, such as those of a Python generator, are
    not compared, because `shard` reads no elements.

    Args:
        dataset: Elements, not batches, in the same order on every rank. So an
            earlier `shuffle` needs a seed, and `list_files` needs
            `shuffle=False`. The dataset may be infinite, or of unknown
            cardinality.
        seed: The seed of the orders. None leaves the order as it is, in every
            epoch.
        remainder: "drop" leaves out the remaining elements. "pad" keeps them,
            and repeats one of them on the ranks that have none. "keep" gives
            the first ranks one element more than the others.
        buffer_size: Elements in the buffer of the shuffle, as in
            `Dataset.shuffle`; by default all of them. Needed with a seed where
            the dataset is infinite or its cardinality is unknown.
        skip: How many elements at the beginning of the order to leave out. Use
            it for one epoch, because it leaves them out in every epoch.

    Returns:
        A dataset of this rank's elements. Its cardinality is known if
        `dataset`'s is.

    Raises:
        RuntimeError: It was called while tracing a `tf.function`.
        TypeError: `dataset` is no `tf.data.Dataset`, or `seed` no integer.
        ValueError: `buffer_size` is missing or not positive, `skip` is
            negative, `remainder` is none of these, or, on every rank, the ranks
            have different datasets or arguments, or shuffle before it without a
            seed or by different seeds.

    Example:

    ```python
    import tensorflow as tf
    import tfring

    tfring.init()
    images = tf.data.Dataset.range(1000 * tfring.size())
    mine = tfring.data.shard(images, seed=0).batch(50)
    assert mine.cardinality() == 20
    ```
    """
    _check_arguments(dataset, remainder, skip)
    cardinality = int(dataset.cardinality())
    order = {
        "draws": draws_of(dataset),
        "unordered": unordered_operations(dataset),
        "first elements": first_elements(dataset),
    }
    if seed is not None:
        buffer_size = _checked_buffer_size(buffer_size, cardinality)
        dataset = _shuffle(dataset, buffer_size, seed)
    arguments = {
        "cardinality": {
            tf.data.INFINITE_CARDINALITY: "infinite",
            tf.data.UNKNOWN_CARDINALITY: "unknown",
        }.get(cardinality, cardinality),
        "seed": seed if seed is None else int(seed),
        "remainder": remainder,
        "buffer_size": buffer_size,
        "skip": int(skip),
    }
    orders = gather_same("shard", arguments, order)
    if len(orders) > 1:
        _check_orders(orders)
    problem = ""
    if skip > 0:
        dataset = dataset.skip(skip)
        if cardinality >= 0:
            cardinality = max(cardinality - skip, 0)
        problem = "tfring.data.shard has a skip"
    elif remainder == "keep":
        problem = "remainder='keep' gives ranks different numbers of elements"
    mine = _part(dataset, cardinality, remainder)
    return mark_shared(mine, problem)


def _check_arguments(dataset: Any, remainder: str, skip: int) -> None:
    if not tf.executing_eagerly():
        raise RuntimeError(
            "shard was called while tracing a tf.function. Call it eagerly, "
            "before training starts."
        )
    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(
            "shard takes a tf.data.Dataset, got an object of type "
            f"{type(dataset).__name__}. Use "
            "tf.data.Dataset.from_tensor_slices for arrays."
        )
    if remainder not in ("drop", "pad", "keep"):
        raise ValueError(
            "shard: remainder must be 'drop', 'pad' or 'keep', got "
            f"{remainder!r}."
        )
    if skip < 0:
        raise ValueError(f"shard: skip must not be negative, got {skip}.")


def _part(
    dataset: tf.data.Dataset, cardinality: int, remainder: str
) -> tf.data.Dataset:
    """Returns this rank's elements."""
    place = runtime.place()
    rank, size = place.rank, place.size
    if size == 1:
        return dataset
    if remainder == "keep" or cardinality == tf.data.INFINITE_CARDINALITY:
        return dataset.shard(size, rank)
    known = cardinality != tf.data.UNKNOWN_CARDINALITY
    if known and (remainder == "drop" or cardinality % size == 0):
        return dataset.shard(size, rank).take(cardinality // size)
    mine = _one_of_each(dataset, size, rank, drop_remainder=remainder == "drop")
    if known:
        steps = -(-cardinality // size)
        mine = mine.apply(tf.data.experimental.assert_cardinality(steps))
    return mine


def _checked_buffer_size(buffer_size: int | None, cardinality: int) -> int:
    if buffer_size is None:
        if cardinality < 0:
            raise ValueError(
                "shard: the dataset is infinite or of unknown cardinality, so "
                "that it cannot be shuffled as a whole. Pass buffer_size=, or "
                "seed=None to leave its order."
            )
        return max(cardinality, 1)
    if buffer_size < 1:
        raise ValueError(
            f"shard: buffer_size must be positive, got {buffer_size}."
        )
    return int(buffer_size)


def _shuffle(
    dataset: tf.data.Dataset, buffer_size: int, seed: int
) -> tf.data.Dataset:
    """Returns `dataset.shuffle(buffer_size, seed)` for any global seed.

    With `Dataset.shuffle`, ranks that have called `tf.random.set_seed(rank())`
    would have different orders, and elements in common.
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise TypeError(
            "shard: seed must be an integer or None, got "
            f"{seed!r} of type {type(seed).__name__}."
        )
    shuffled = tf.raw_ops.ShuffleDatasetV3(
        input_dataset=tf.data.experimental.to_variant(dataset),
        buffer_size=tf.constant(buffer_size, tf.int64),
        seed=tf.constant(_GLOBAL_SEED, tf.int64),
        seed2=tf.constant(seed, tf.int64),
        seed_generator=tf.raw_ops.DummySeedGenerator(),
        reshuffle_each_iteration=True,
        **dataset._flat_structure,  # as in TensorFlow's datasets
    )
    return tf.data.experimental.from_variant(
        shuffled, dataset.element_spec
    ).with_options(dataset.options())


def _one_of_each(
    dataset: tf.data.Dataset, size: int, rank: int, *, drop_remainder: bool
) -> tf.data.Dataset:
    """Takes the element at `rank` of every `size`; fewer are repeated.

    It makes no batches, because elements may differ in shape.
    """
    spec = dataset.element_spec
    are_none: list[bool] = []

    def components(*element: Any) -> tuple[Any, ...]:
        # A window has no None, and unpacks tuples, but not those with names.
        flat = tf.nest.flatten(element)
        are_none[:] = [each is None for each in flat]
        return tuple(each for each in flat if each is not None)

    def element_of(*components: Any) -> Any:
        left = iter(components)
        flat = [None if is_none else next(left) for is_none in are_none]
        return tf.nest.pack_sequence_as(spec, flat)

    def own(*window: Any) -> tf.data.Dataset:
        return tf.data.Dataset.zip(window).repeat().skip(rank).take(1)

    windows = dataset.map(components).window(
        size, drop_remainder=drop_remainder
    )
    return windows.flat_map(own).map(element_of)


def gather_same(
    function: str, arguments: dict[str, Any], more: Any = None
) -> list[Any]:
    """Returns what more each rank has; all must have the same arguments.

    Collective.

    Raises:
        ValueError: The ranks have different arguments.
    """
    everyones = gather_json([arguments, more], name=function)
    first, _ = everyones[0]
    for rank, (others, _) in enumerate(everyones):
        if others != first:
            raise ValueError(
                f"{function}: the ranks have different data or arguments, and "
                f"so would have elements in common. Rank 0 has {first}; "
                f"rank {rank} has {others}. Give every rank the same."
            )
    return [more for _, more in everyones]


def _check_orders(of_rank: Sequence[dict[str, Any]]) -> None:
    """Raises if the ranks' orders differ, and warns if they may differ."""
    effect = "some elements would be on several ranks and others on none"
    draws = [each["draws"] for each in of_rank]
    unseeded = [name for own in draws for name, seeds in own if not any(seeds)]
    if unseeded:
        raise ValueError(
            f"shard: the dataset has '{unseeded[0]}' without a seed, which "
            f"gives each rank an order of its own: {effect}. Leave the order "
            "to shard, which shuffles by its seed=, and take "
            "list_files(..., shuffle=False); or pass the same seed= there on "
            "every rank."
        )
    for rank, own in enumerate(draws):
        if own != draws[0]:
            raise ValueError(
                "shard: the ranks' datasets are shuffled by different seeds: "
                f"{effect}. Rank 0 has {draws[0]}; rank {rank} has {own}: "
                "names, and the seeds of tf.random.set_seed and of the "
                "operation. Leave the order to shard, which shuffles by its "
                "seed= alone; or set the same seeds on every rank."
            )
    problems = [
        f"'{name}' is not deterministic, and gives elements in the order in "
        "which threads have them. Call it after shard, or with "
        "deterministic=True, also in tf.data.Options."
        for name in sorted({n for each in of_rank for n in each["unordered"]})
    ]
    problems += [
        f"the first elements in memory are others on rank {rank} than on rank "
        "0. Sort file names, shuffle by the seed= of shard alone, and give "
        "every rank the same."
        for rank, each in enumerate(of_rank)
        if each["first elements"] != of_rank[0]["first elements"]
    ][:1]
    for problem in problems:
        warn_all_ranks(
            DifferentOrdersWarning,
            "shard takes a dataset in the same order on every rank; otherwise "
            f"{effect}. Here {problem}",
            "the order is the same",
            is_shown=runtime.rank() == 0,
        )
