"""Reduces gradients over the ranks while backpropagation still runs.

Note [Sparse buckets]: the number of rows of `tf.IndexedSlices` is known only
when the step runs, and differs between ranks. So no limit in bytes can cut
them. All `tf.IndexedSlices` that become ready between two dense buckets share
one bucket: they are ready before the later dense bucket's last gradient.

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
import dataclasses
import enum
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
    checked_slices,
    finish_slices,
    start_slices,
    summed_by_index,
)

_Gradient = Any  # tf.Tensor | tf.IndexedSlices | None

_calls = 0


def count_of_calls() -> int:
    """Returns the number of gradient reductions that were called or traced."""
    return _calls


def count_call() -> None:
    """Counts one call, or trace, of a function that reduces gradients."""
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
        variables: The variable, or other source, of each gradient. Error
            messages name the gradient after it. It also gives the gradient's
            shape if the trace does not know the shape.
        options: How they are reduced.

    Returns:
        The averages or sums. `None` stays `None`, and what is not made dense
        stays `tf.IndexedSlices`.

    Raises:
        NotImplementedError: `tf.IndexedSlices` have no such reduction.
        TypeError: A gradient is neither a tensor nor `tf.IndexedSlices`.
    """
    count_call()
    if traced_for_xla():
        options = dataclasses.replace(options, sparse_as_dense=True)
    process_set = options.process_set
    is_included = process_set.included()
    travels = is_included and not is_alone(process_set)
    backpropagation = Backpropagation()
    result = list(gradients)
    shared = []
    for i in backpropagation.order(result):
        if is_included and variables[i] not in options.local_variables:
            shared.append(i)
            continue
        result[i] = each_index_once(result[i], options)
        if travels and options.scale_local_gradients:
            result[i] = tf.math.scalar_mul(1 / process_set.size(), result[i])
    ready = [
        _prepare(i, variables[i], result[i], travels, options) for i in shared
    ]
    if not travels:
        for each in ready:
            result[each.index] = each_index_once(each.value, options)
        return result
    buckets = _plan(ready, options)
    backpropagation.wait_for(_start(buckets, options))
    for bucket in sorted(buckets, key=lambda bucket: bucket.kind):
        reduced = _finish(bucket, options)
        for each, gradient in zip(bucket.gradients, reduced, strict=True):
            result[each.index] = gradient
    return result


class _Kind(enum.IntEnum):
    """How a bucket is reduced. Buckets finish in the order of these kinds."""

    INTEGERS = 0  # an average by itself, after all starts
    DENSE = 1  # an allreduce
    SPARSE = 2  # an allgather of rows


@dataclasses.dataclass(frozen=True)
class _Ready:
    """A gradient that the ranks share, in the form that is sent."""

    index: int
    variable: Any
    kind: _Kind
    value: Any  # tf.Tensor | tf.IndexedSlices
    decompress: Any = None  # a function of the reduced tensor


@dataclasses.dataclass
class _Bucket:
    """Gradients of one kind that are sent together."""

    gradients: Sequence[_Ready]
    request_name: str
    in_flight: Any = None  # from `_start`: Started | SlicesInFlight

    @property
    def kind(self) -> _Kind:
        return self.gradients[0].kind

    @property
    def values(self) -> list[Any]:
        return [each.value for each in self.gradients]

    @property
    def names(self) -> list[str]:
        return [name_of(each.variable, each.index) for each in self.gradients]


def _prepare(
    index: int,
    variable: Any,
    gradient: _Gradient,
    travels: bool,
    options: GradientOptions,
) -> _Ready:
    """Checks a gradient, and compresses it if it is dense and sent."""
    if isinstance(gradient, tf.IndexedSlices) and not options.sparse_as_dense:
        with on_device(options.device_sparse):
            slices = checked_slices("gradients", gradient, options.op)
        return _Ready(index, variable, _Kind.SPARSE, slices)
    compression, _ = split_engine_cast(options.compression, options.op)
    with on_device(options.device_dense):
        tensor = made_dense(gradient, variable, name_of(variable, index))
        if not travels and compression is not Compression.none:
            # No compressor is called, which may make another dtype.
            return _Ready(index, variable, _Kind.DENSE, tensor)
        value, context = compress("gradients", compression, tensor)
        checked_tensor("gradients", value)
        check_reduction("gradients", options.op, value.dtype)
    # A compressor may have made integers.
    apart = options.op is ReduceOp.Average and value.dtype.is_integer
    return _Ready(
        index,
        variable,
        _Kind.INTEGERS if apart else _Kind.DENSE,
        value,
        lambda reduced: decompress(
            "gradients", compression, reduced, context, tensor.dtype
        ),
    )


def _plan(ready: Sequence[_Ready], options: GradientOptions) -> list[_Bucket]:
    """Returns the buckets in starting order; see Note [Sparse buckets]."""
    dense = [each for each in ready if each.kind is _Kind.DENSE]
    of_last = {bucket[-1].index: bucket for bucket in _cut(dense, options)}
    buckets: list[list[_Ready]] = []
    sparse: list[_Ready] = []
    for each in ready:
        if each.kind is _Kind.SPARSE:
            sparse.append(each)
        elif each.index in of_last:
            buckets += [sparse, of_last[each.index]]
            sparse = []
    buckets.append(sparse)
    buckets += [[each] for each in ready if each.kind is _Kind.INTEGERS]
    buckets = [bucket for bucket in buckets if bucket]
    names = request_names_of(len(buckets), options.process_set)
    return [
        _Bucket(bucket, name)
        for bucket, name in zip(buckets, names, strict=True)
    ]


def _cut(
    dense: Sequence[_Ready], options: GradientOptions
) -> list[list[_Ready]]:
    tensors = [each.value for each in dense]
    if options.groups is None:
        _, wire_dtype = split_engine_cast(options.compression, options.op)
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
        variables = [each.variable for each in dense]
        groups = group_numbers(variables, options.groups)
        buckets = cut_by_groups(tensors, groups)
    return [[dense[position] for position in bucket] for bucket in buckets]


def _start(
    buckets: Sequence[_Bucket], options: GradientOptions
) -> list[Started]:
    """Starts all buckets but integers; see Note [Starts before dones]."""
    _, wire_dtype = split_engine_cast(options.compression, options.op)
    chain = [each for each in buckets if each.kind is not _Kind.INTEGERS]
    starts: list[Started] = []
    for bucket in chain:
        previous = starts[-1] if starts else None
        last = bucket is chain[-1]
        if bucket.kind is _Kind.SPARSE:
            with on_device(options.device_sparse):
                bucket.in_flight = start_slices(
                    "gradients",
                    bucket.values,
                    op=options.op,
                    factor=1.0,
                    compression=options.compression,
                    process_set=options.process_set,
                    name=bucket.request_name,
                    tensor_names=bucket.names,
                    previous=previous,
                    last=last,
                )
            starts += bucket.in_flight.gathering.starts
        else:
            with on_device(options.device_dense):
                bucket.in_flight = chains.start_allreduce(
                    bucket.values,
                    request_name=bucket.request_name,
                    tensor_names=bucket.names,
                    previous=previous,
                    op=options.op,
                    prescale_factor=1 / options.predivide_factor,
                    postscale_factor=options.predivide_factor,
                    wire_dtype=wire_dtype(bucket.values[0].dtype),
                    last=last,
                    process_set=options.process_set,
                )
            starts.append(bucket.in_flight)
    return starts


def _finish(bucket: _Bucket, options: GradientOptions) -> list[_Gradient]:
    """Returns the reduced gradients; integers start here, too."""
    if bucket.kind is _Kind.SPARSE:
        with on_device(options.device_sparse):
            return finish_slices(bucket.in_flight)
    if bucket.kind is _Kind.DENSE:
        with on_device(options.device_dense):
            tensors = chains.finish(bucket.in_flight)
            return [
                each.decompress(tensor)
                for each, tensor in zip(bucket.gradients, tensors, strict=True)
            ]
    [each] = bucket.gradients
    average = allreduce(
        each.value,
        device_dense=options.device_dense,
        op=options.op,
        name=bucket.request_name,
        ignore_name_scope=True,
        process_set=options.process_set,
    )
    return [each.decompress(average)]


def each_index_once(gradient: _Gradient, options: GradientOptions) -> _Gradient:
    """Returns a gradient of this rank alone, in the form of reduced ones."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    if options.sparse_as_dense:
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
