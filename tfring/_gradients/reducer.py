"""Reduces gradients over the ranks while backpropagation still runs.

Note [Sparse buckets]: how many rows `tf.IndexedSlices` have is known only when
the step runs, and differs from rank to rank, so that no limit of bytes can cut
them. Those that become ready between two dense buckets travel together, as
those before a dense bucket's last gradient are ready sooner than it.

Note [Starts before dones]: a bucket is a start and a done operation. All starts
are traced before the first done, as one chain (see tfring/_ops/chains.py), so
that no bucket waits for the result of another.

Note [Request names]: ranks find each other's buckets by name, so a name must
not depend on what else a rank has done: Keras numbers layers and optimizers by
how many the process has made, and rank 0 may well have made one more. Buckets
are therefore numbered within the function being traced.
"""

from __future__ import annotations

import collections
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfring._core import runtime
from tfring._core.process_sets import ProcessSet, is_alone
from tfring._gradients.buckets import (
    bucket_limits,
    cut_by_groups,
    cut_into_buckets,
)
from tfring._gradients.gradient_options import GradientOptions
from tfring._gradients.local_variables import variable_key
from tfring._gradients.overlap import Backpropagation
from tfring._ops import chains
from tfring._ops.allreduce import allreduce
from tfring._ops.arguments import check_reduction, checked_tensor
from tfring._ops.compression import (
    Compression,
    compress,
    decompress,
    split_engine_cast,
)
from tfring._ops.devices import on_device
from tfring._ops.ordering import Started, traced_for_xla
from tfring._ops.reductions import ReduceOp
from tfring._ops.slices import (
    SlicesInFlight,
    checked_slices,
    finish_slices,
    start_slices,
    summed_by_index,
)

_Gradient = Any  # tf.Tensor | tf.IndexedSlices | None

_calls = 0


def count_of_calls() -> int:
    """How often gradients have been reduced, or that has been traced."""
    return _calls


def count_call() -> None:
    """Counts a call, or trace, of what reduces gradients."""
    global _calls
    _calls += 1


def reduce_gradients(
    gradients: Sequence[_Gradient],
    variables: Sequence[Any],
    options: GradientOptions,
) -> list[_Gradient]:
    """Averages each gradient over the ranks, or adds it up.

    Collective: every rank of the process set must call it, with gradients of
    the same dtypes and shapes, in a graph or eagerly. A rank that is not in the
    set keeps its own gradients.

    On any rank, one that is alone or not in the set too, `tf.IndexedSlices`
    have each index once, or are made dense: see Note [Repeated rows] in
    tfring/_ops/slices.py.

    Args:
        gradients: Tensors, `tf.IndexedSlices` or `None`.
        variables: The variable, or other source, of each gradient. It gives the
            name by which errors speak of the gradient, and the shape where the
            trace does not know it.
        options: How they are reduced.

    Returns:
        The averages or sums. `None` stays `None`, and what is not made dense
        stays `tf.IndexedSlices`.

    Raises:
        NotImplementedError: `tf.IndexedSlices` have no such reduction.
        TypeError: A gradient is neither a tensor nor `tf.IndexedSlices`.
    """
    count_call()
    result = list(gradients)
    op, process_set = options.op, options.process_set
    is_included = process_set.included()
    travels = is_included and not is_alone(process_set)
    names = [name_of(v, i) for i, v in enumerate(variables)]
    backpropagation = Backpropagation()
    make_dense = options.sparse_as_dense or traced_for_xla()
    order = []
    for i in backpropagation.order(result):
        if is_included and variables[i] not in options.local_variables:
            order.append(i)
            continue
        result[i] = _with_each_index_once(result[i], make_dense, options)
        if travels and options.scale_local_gradients:
            result[i] = tf.math.scalar_mul(1 / process_set.size(), result[i])
    dense_compression, wire_dtype = split_engine_cast(options.compression, op)
    before: dict[int, tuple[Any, tf.DType]] = {}  # being compressed
    dense: list[int] = []
    sparse: list[int] = []
    averages_of_integers: list[int] = []  # which a compressor has made
    for i in order:
        if isinstance(result[i], tf.IndexedSlices) and not make_dense:
            with on_device(options.device_sparse):
                result[i] = checked_slices("gradients", result[i], op)
            sparse.append(i)
        else:
            with on_device(options.device_dense):
                tensor = made_dense(result[i], variables[i], names[i])
                if not travels and dense_compression is not Compression.none:
                    # No compressor is called, which may make another dtype.
                    result[i] = tensor
                    continue
                result[i], context = compress(
                    "gradients", dense_compression, tensor
                )
                checked_tensor("gradients", result[i])
                check_reduction("gradients", op, result[i].dtype)
                before[i] = context, tensor.dtype
            is_integer = result[i].dtype.is_integer
            apart = op is ReduceOp.Average and is_integer
            (averages_of_integers if apart else dense).append(i)
    if not travels:
        for i in sparse:
            result[i] = _with_each_index_once(result[i], make_dense, options)
        return result

    if options.groups is None:
        tensors = [result[i] for i in dense]
        first_limit_bytes, limit_bytes = bucket_limits(
            tensors, runtime.fusion_threshold_bytes(), wire_dtype=wire_dtype
        )
        buckets = cut_into_buckets(
            tensors,
            limit_bytes,
            first_limit_bytes=first_limit_bytes,
            wire_dtype=wire_dtype,
        )
    else:
        buckets = cut_by_groups(
            [result[i] for i in dense],
            group_numbers([variables[i] for i in dense], options.groups),
        )
    in_turn = _in_turn(
        order, [[dense[position] for position in b] for b in buckets], sparse
    )
    request_names = request_names_of(
        len(in_turn) + len(averages_of_integers), process_set
    )

    # See Note [Starts before dones].
    started: list[tuple[list[int], Started]] = []
    gathered: list[tuple[list[int], SlicesInFlight]] = []
    starts: list[Started] = []
    previous = None
    for number, (indices, is_sparse) in enumerate(in_turn):
        last = number == len(in_turn) - 1
        if is_sparse:
            with on_device(options.device_sparse):
                slices = start_slices(
                    "gradients",
                    [result[i] for i in indices],
                    op=op,
                    factor=1.0,
                    compression=options.compression,
                    process_set=process_set,
                    name=next(request_names),
                    tensor_names=[names[i] for i in indices],
                    previous=previous,
                    last=last,
                )
            gathered.append((indices, slices))
            starts += slices.gathering.starts
        else:
            with on_device(options.device_dense):
                start = chains.start_allreduce(
                    [result[i] for i in indices],
                    request_name=next(request_names),
                    tensor_names=[names[i] for i in indices],
                    previous=previous,
                    op=op,
                    prescale_factor=1 / options.predivide_factor,
                    postscale_factor=options.predivide_factor,
                    wire_dtype=wire_dtype(result[indices[0]].dtype),
                    last=last,
                    process_set=process_set,
                )
            started.append((indices, start))
            starts.append(start)
        previous = starts[-1]
    backpropagation.wait_for(starts)
    for i in averages_of_integers:
        average = allreduce(
            result[i],
            device_dense=options.device_dense,
            op=op,
            name=next(request_names),
            ignore_name_scope=True,
            process_set=process_set,
        )
        result[i] = decompress(
            "gradients", dense_compression, average, *before[i]
        )
    for indices, start in started:
        with on_device(options.device_dense):
            for i, tensor in zip(indices, chains.finish(start), strict=True):
                result[i] = decompress(
                    "gradients", dense_compression, tensor, *before[i]
                )
    for indices, slices in gathered:
        with on_device(options.device_sparse):
            for i, reduced in zip(indices, finish_slices(slices), strict=True):
                result[i] = reduced
    return result


def _in_turn(
    order: Sequence[int],
    dense_buckets: Sequence[list[int]],
    sparse: Sequence[int],
) -> list[tuple[list[int], bool]]:
    """The buckets in the order in which they become ready.

    See Note [Sparse buckets].

    Args:
        order: Gradients in the order in which they become ready.
        dense_buckets: Those of them that are dense, by their last one.
        sparse: Those of them that are not, in that order.

    Returns:
        For each bucket its gradients, and whether they are sparse.
    """
    place = {i: position for position, i in enumerate(order)}
    ends = [max(place[i] for i in bucket) for bucket in dense_buckets]
    result = []
    for bucket, end in zip([*dense_buckets, None], [*ends, None], strict=True):
        ready = [i for i in sparse if end is None or place[i] < end]
        sparse = sparse[len(ready) :]
        if ready:
            result.append((ready, True))
        if bucket is not None:
            result.append((bucket, False))
    return result


def _with_each_index_once(
    gradient: _Gradient, make_dense: bool, options: GradientOptions
) -> _Gradient:
    """A gradient that stays on this rank, in the form of reduced ones."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    if make_dense:
        with on_device(options.device_dense):
            return tf.convert_to_tensor(gradient)
    with on_device(options.device_sparse):
        return summed_by_index(gradient)


def made_dense(gradient: _Gradient, variable: Any, name: str) -> tf.Tensor:
    if not isinstance(gradient, tf.Tensor | tf.IndexedSlices):
        raise TypeError(
            f"The gradient of '{name}' is a {type(gradient).__name__}; only "
            "tf.Tensor and tf.IndexedSlices can be averaged over the ranks."
        )
    tensor = tf.convert_to_tensor(gradient)
    shape = getattr(variable, "shape", None)
    if shape is not None and not tensor.shape.is_fully_defined():
        # All ranks must cut their gradients into the same buckets, even if one
        # has traced for a batch of unknown size and another has not.
        tensor.set_shape(shape)
    return tensor


def group_numbers(
    variables: Sequence[Any], groups: int | Sequence[Sequence[Any]]
) -> list[int]:
    """Returns the number of each variable's group."""
    if isinstance(groups, int):  # parts of equal length, in backward order
        return [i * groups // len(variables) for i in range(len(variables))]
    number_of = {
        variable_key(variable): number
        for number, group in enumerate(groups)
        for variable in group
    }
    alone = range(len(number_of), len(number_of) + len(variables))
    return [
        number_of.get(variable_key(variable), other)
        for variable, other in zip(variables, alone, strict=True)
    ]


def name_of(variable: Any, index: int) -> str:
    if isinstance(variable, keras.Variable):
        return str(variable.path)
    if isinstance(variable, tf.Variable):
        return str(variable.name)
    return f"gradient {index}"


# By graph and process set, how many names. Not in a collection of the graph: a
# saver writes those.
_taken: weakref.WeakKeyDictionary[Any, collections.Counter[int | None]] = (
    weakref.WeakKeyDictionary()
)


def request_names_of(count: int, process_set: ProcessSet) -> Iterator[str]:
    """Names that no other reduction of this function has; see the Note."""
    graph = tf.compat.v1.get_default_graph()
    if tf.executing_eagerly():
        first = 0  # Each call has ended before the next one begins.
    else:
        while graph.building_function and graph.outer_graph.building_function:
            graph = graph.outer_graph
        # Another rank of the set may be in other sets besides.
        taken = _taken.setdefault(graph, collections.Counter())
        first = taken[process_set.process_set_id]
        taken[process_set.process_set_id] += count
    return (f"gradients/{number}" for number in range(first, first + count))
