"""Finds the parts of a dataset that give each rank an order of its own.

Ranks each take some elements of one order. If their orders differ, the ranks
share some elements and leave others out. Nothing is read from the dataset here:
reading would fill its buffers, use up a generator, and change later orders.

Note [Inputs of a dataset]: TensorFlow's public way to look into a dataset is
its serialized graph, which has a copy of all arrays in it: 5 s for 400 MB, and
an error above 2 GB. So this module reads the Python objects of a dataset, by
attributes that TensorFlow 2.18 to 2.22 have. If one is missing, nothing is
found.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfring._core.errors import DifferentOrdersWarning, warn_all_ranks

# How many elements of a flattened array are compared: enough to tell two orders
# apart, and few enough to be read at once.
_COMPARED_ELEMENTS = 4096
# The most elements of arrays in a graph that is serialized.
_GRAPH_ELEMENTS = 1 << 21
# The index of the first of the two seeds among an operation's inputs.
_SEED_INPUTS = {
    "ShuffleDataset": 2,
    "ShuffleDatasetV2": 2,
    "ShuffleDatasetV3": 2,
    "RandomDataset": 0,
    "RandomDatasetV2": 0,
}
_UNSEEDED = [0, 0]


def draws_of(dataset: tf.data.Dataset) -> list[list[Any]]:
    """Returns what draws the order at random: a name, and the two seeds.

    The seeds are [0, 0] if each process draws its own. Only such operations are
    found within functions of `interleave` and `flat_map`.
    """
    try:
        return list(_draws(dataset))
    except AttributeError:
        return []


def unordered_operations(dataset: tf.data.Dataset) -> list[str]:
    """Returns the methods after which the speed of threads sets the order."""
    try:
        by_default = dataset.options().deterministic is False
        return [
            _name(each)
            for each in _upstream(dataset)
            if _is_unordered(each, by_default)
        ]
    except AttributeError:
        return []


def first_elements(dataset: tf.data.Dataset) -> list[str]:
    """Returns a digest of the first elements of each array in a dataset.

    File names are compared without their common path, which differs between
    machines with disks of their own.
    """
    try:
        return [
            _digest(array)
            for each in _upstream(dataset)
            for array in getattr(each, "_tensors", ())
            if array.dtype not in (tf.variant, tf.resource)
        ]
    except AttributeError:
        return []


def buffer_sizes(dataset: tf.data.Dataset) -> list[int]:
    """Returns the elements of each buffer in a dataset.

    An iterator with other buffers may accept a state, and fail later.
    """
    try:
        return [
            int(each._buffer_size)
            for each in _upstream(dataset)
            if hasattr(each, "_buffer_size")
        ]
    except (AttributeError, TypeError):
        return []


def draws_before_shards(data: Any, size: int) -> list[list[Any]]:
    """Returns the draws before a `Dataset.shard` into `size` parts."""
    if not isinstance(data, tf.data.Dataset):
        return []
    try:
        return [
            draw
            for each in _upstream(data)
            if int(getattr(each, "_num_shards", 0)) == size
            for draw in _draws(each)
        ]
    except AttributeError:
        return []


def warn_of_different_orders(
    draws_of_rank: dict[int, list[list[Any]]], own_rank: int
) -> None:
    """Warns if ranks take elements of different orders, by `Dataset.shard`."""
    # Ranks with data of another kind are left out.
    draws = [own for own in draws_of_rank.values() if own]
    unseeded = [name for own in draws for name, seeds in own if not any(seeds)]
    if not unseeded and all(own == draws[0] for own in draws):
        return
    name = unseeded[0] if unseeded else draws[0][0][0]
    how = "without a seed" if unseeded else "with another seed on each rank"
    warn_all_ranks(
        DifferentOrdersWarning,
        f"the dataset of fit has '{name}' {how} before Dataset.shard, "
        "so that some elements are on several ranks and others on none. Call "
        "shard first, or take tfring.data.shard(dataset, seed=...), which "
        "shuffles alike on all ranks.",
        is_shown=own_rank == min(draws_of_rank),
    )


def _upstream(dataset: Any) -> Iterator[Any]:
    """Yields a dataset, and all that its order depends on."""
    yield dataset
    if _is_stored(dataset):
        return  # the order is that of the files
    # A reader of files and a dataset of TensorFlow 1 contain another dataset.
    for name in ("_impl", "_dataset"):
        if hasattr(dataset, name):
            yield from _upstream(getattr(dataset, name))
            return
    for source in dataset._inputs():
        yield from _upstream(source)


def _is_stored(dataset: Any) -> bool:
    """Tells whether a dataset is a `snapshot` or a `cache` in files."""
    place = getattr(dataset, "_filename", getattr(dataset, "_path", ""))
    return bool(place.numpy() if isinstance(place, tf.Tensor) else place)


def _draws(dataset: Any) -> Iterator[list[Any]]:
    for each in _upstream(dataset):
        # A buffer of one element leaves the order as it is.
        if hasattr(each, "_seed2") and getattr(each, "_buffer_size", 2) > 1:
            yield [_name(each), [int(each._seed), int(each._seed2)]]
        for function in each._functions():
            if not isinstance(function.output_structure, tf.data.DatasetSpec):
                continue  # it sets no order, and may have large arrays
            for operation in _unseeded_in(function.function.graph):
                name = f"{operation}, in the function of {_name(each)}"
                yield [name, _UNSEEDED]


def _unseeded_in(graph: Any) -> Iterator[str]:
    """Yields the operations of a function that draw without a seed."""
    whole = graph.as_graph_def()
    for nodes in (whole.node, *(f.node_def for f in whole.library.function)):
        by_name = {node.name: node for node in nodes}
        for node in nodes:
            first = _SEED_INPUTS.get(node.op)
            if first is None:
                continue
            of_node = [
                by_name.get(name.partition(":")[0])
                for name in node.input[first : first + 2]
            ]
            if all(seed is not None and _is_zero(seed) for seed in of_node):
                yield node.op.partition("Dataset")[0].lower()


def _is_zero(node: Any) -> bool:
    return node.op == "Const" and not np.any(
        tf.make_ndarray(node.attr["value"].tensor)
    )


def _is_unordered(dataset: Any, by_default: bool) -> bool:
    if getattr(dataset, "_num_parallel_calls", None) is None:
        return getattr(dataset, "_deterministic", "true") == "false"
    said = getattr(dataset, "_deterministic", None) or _said_in_graph(dataset)
    return said == "false" or (said == "default" and by_default)


def _said_in_graph(dataset: Any) -> str:
    """Returns the argument of an interleave, which Python does not keep."""
    held = [a for d in _upstream(dataset) for a in getattr(d, "_tensors", ())]
    if sum(array.shape.num_elements() for array in held) > _GRAPH_ELEMENTS:
        return "default"
    try:
        serialized = tf.raw_ops.DatasetToGraphV2(
            input_dataset=tf.data.experimental.to_variant(dataset),
            external_state_policy=1,  # left out of the graph
        )
    except tf.errors.OpError:
        return "default"
    graph = tf.compat.v1.GraphDef.FromString(serialized.numpy())
    # The last node is the graph's result, and its input is the dataset.
    return str(graph.node[-2].attr["deterministic"].s.decode())


def _name(dataset: Any) -> str:
    """Returns the name of the method that has made a dataset."""
    kind = type(dataset).__name__.strip("_").partition("Dataset")[0]
    name = re.sub("(?<=[a-z])(?=[A-Z])", "_", kind.removeprefix("Parallel"))
    [*sources] = dataset._inputs()
    if kind == "Shuffle" and [*map(_is_of_file_names, sources)] == [True]:
        return "list_files"
    return "sample_from_datasets" if kind == "Random" else name.lower()


def _is_of_file_names(dataset: Any) -> bool:
    return dataset.element_spec == tf.TensorSpec([], tf.string) and hasattr(
        dataset, "_tensors"
    )


def _digest(array: Any) -> str:
    first = tf.reshape(array, [-1])[:_COMPARED_ELEMENTS].numpy()
    if array.dtype == tf.string:
        texts: Sequence[bytes] = list(first)
        # The function takes any texts, unlike os.path.commonpath.
        begin = len(os.path.commonprefix(texts))  # noqa: RUF071
        first = b"\n".join(text[begin:] for text in texts)
    else:
        first = first.tobytes()
    shape = f"{array.dtype.name} {array.shape}".encode()
    return hashlib.sha256(shape + first).hexdigest()
