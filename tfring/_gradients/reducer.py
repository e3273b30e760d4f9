"""Reduces gradients over the ranks while backpropagation still runs.

Note [Sparse buckets]: the number of rows of `tf.IndexedSlices` is known only
when the step runs, and differs between ranks. So no limit in bytes can cut
them. All `tf.IndexedSlices` that become ready between two dense buckets share
one bucket: they are ready before the later dense bucket's last gradient.

Note [Starts before dones]: a bucket is a start and a done operation. All starts
are traced before the first done, as one chain (see tfring/_ops/chains.py), so
that no bucket waits for the result of another.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfring._core import runtime
from tfring._core.process_sets import is_alone
from tfring._gradients.buckets import (
    bucket_limits,
    cut_by_groups,
    cut_into_buckets,
)
from tfring._gradients.gradient_options import GradientOptions
from tfring._gradients.local_variables import variable_key
from tfring._gradients.overlap import Backpropagation
from tfring._gradients.ready import Kind, Ready
from tfring._gradients.request_names import request_names_of
from tfring._memory.parameters import check_not_reduced
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


def reduce_shared_gradients(
    gradients: Sequence[_Gradient],
    variables: Sequence[Any],
    options: GradientOptions,
) -> list[_Gradient]:
    """Reduces the gradients of variables that are not local.

    Collective: every rank of the process set must call it, with gradients of
    the same dtypes and shapes, in a graph or eagerly. A rank that is not in the
    set keeps its own gradients. Gradients of local variables stay as they are.

    On every rank, even one that is alone or not in the set, `tf.IndexedSlices`
    have each index once, or are made dense: see Note [Repeated rows] in
    tfring/_ops/slices.py.

    Args:
        gradients: Tensors, `tf.IndexedSlices` or `None`.
        variables: The variable, or other source, of each gradient. Error
            messages name the gradient after it. It also gives the gradient's
            shape if the trace does not know the shape.
        options: How they are reduced.

    Returns:
        The averages or sums. `None` stays `None`, and `tf.IndexedSlices` that
        are not made dense stay `tf.IndexedSlices`.

    Raises:
        NotImplementedError: `tf.IndexedSlices` have no such reduction, or a
            variable is a sharded parameter.
        TypeError: A gradient is neither a tensor nor `tf.IndexedSlices`.
    """
    count_call()
    check_not_reduced(variables)
    options = for_this_compiler(options)
    process_set = options.process_set
    is_included = process_set.included()
    travels = is_included and not is_alone(process_set)
    backpropagation = Backpropagation()
    result = list(gradients)
    shared = []
    for i in backpropagation.order(result):
        if variables[i] in options.local_variables:
            continue
        if is_included:
            shared.append(i)
        else:
            result[i] = each_index_once(result[i], options)
    ready = [
        _prepare(i, variables[i], result[i], travels, options) for i in shared
    ]
    if not travels:
        for each in ready:
            result[each.index] = each_index_once(each.value, options)
        return result
    if options.low_rank is None:
        reduced = _reduce(ready, options, wait_for=backpropagation.wait_for)
    else:
        reduced = options.low_rank.reduce(
            ready,
            functools.partial(_reduce, options=options),
            wait_for=backpropagation.wait_for,
        )
    for each, gradient in zip(ready, reduced, strict=True):
        result[each.index] = gradient
    return result


def for_this_compiler(options: GradientOptions) -> GradientOptions:
    """Returns the options, changed for XLA if it compiles the step."""
    if traced_for_xla():  # shapes are static under XLA
        return dataclasses.replace(options, sparse_as_dense=True)
    return options


@dataclasses.dataclass
class _Bucket:
    """Gradients of one kind that are sent together."""

    gradients: Sequence[Ready]
    request_name: str
    in_flight: Any = None  # from `_start`: Started | SlicesInFlight

    @property
    def kind(self) -> Kind:
        return self.gradients[0].kind

    @property
    def values(self) -> list[Any]:
        return [each.value for each in self.gradients]

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.gradients]


def _reduce(
    ready: Sequence[Ready],
    options: GradientOptions,
    *,
    wait_for: Callable[[Sequence[Started]], None] = lambda starts: None,
    name: str = "gradients",
) -> list[_Gradient]:
    """Reduces gradients or their factors in one chain.

    Args:
        ready: In the order they become ready.
        options: How they are reduced.
        wait_for: Called with the starts, before the first done.
        name: The prefix of the requests' names.

    Returns:
        The reduced gradients, in the same order.
    """
    buckets = _plan(ready, options, name)
    wait_for(_start(buckets, options))
    result: dict[int, _Gradient] = {}
    for bucket in sorted(buckets, key=lambda bucket: bucket.kind):
        reduced = _finish(bucket, options)
        for each, gradient in zip(bucket.gradients, reduced, strict=True):
            result[each.index] = gradient
    return [result[each.index] for each in ready]


def _prepare(
    index: int,
    variable: Any,
    gradient: _Gradient,
    travels: bool,
    options: GradientOptions,
) -> Ready:
    """Checks a gradient, and compresses it if it is dense and sent."""
    name = name_of(variable, index)
    if isinstance(gradient, tf.IndexedSlices) and not options.sparse_as_dense:
        with on_device(options.device_sparse):
            slices = checked_slices("gradients", gradient, options.op)
        return Ready(index, variable, name, Kind.SPARSE, slices)
    compression, _ = split_engine_cast(options.compression, options.op)
    with on_device(options.device_dense):
        tensor = made_dense(gradient, variable, name)
        if not travels and compression is not Compression.none:
            # A compressor is not called, because it may make another dtype.
            return Ready(index, variable, name, Kind.DENSE, tensor)
        value, context = compress("gradients", compression, tensor)
        checked_tensor("gradients", value)
        check_reduction("gradients", options.op, value.dtype)
    # A compressor may have made integers.
    apart = options.op is ReduceOp.Average and value.dtype.is_integer
    return Ready(
        index,
        variable,
        name,
        Kind.INTEGERS if apart else Kind.DENSE,
        value,
        functools.partial(
            decompress,
            "gradients",
            compression,
            context=context,
            dtype=tensor.dtype,
        ),
    )


def _plan(
    ready: Sequence[Ready], options: GradientOptions, name: str
) -> list[_Bucket]:
    """Returns the buckets in starting order; see Note [Sparse buckets]."""
    dense = [each for each in ready if each.kind is Kind.DENSE]
    _, wire_dtype = split_engine_cast(options.compression, options.op)
    cut = buckets_of(
        [each.value for each in dense],
        [each.variable for each in dense],
        options,
        wire_dtype=wire_dtype,
    )
    of_last = {dense[b[-1]].index: [dense[i] for i in b] for b in cut}
    buckets: list[list[Ready]] = []
    sparse: list[Ready] = []
    for each in ready:
        if each.kind is Kind.SPARSE:
            sparse.append(each)
        elif each.index in of_last:
            buckets += [sparse, of_last[each.index]]
            sparse = []
    buckets.append(sparse)
    buckets += [[each] for each in ready if each.kind is Kind.INTEGERS]
    buckets = [bucket for bucket in buckets if bucket]
    names = request_names_of(len(buckets), options.process_set, name)
    return [
        _Bucket(bucket, request_name)
        for bucket, request_name in zip(buckets, names, strict=True)
    ]


def buckets_of(
    tensors: Sequence[Any],
    variables: Sequence[Any],
    options: GradientOptions,
    *,
    wire_dtype: Callable[[tf.DType], tf.DType] = lambda dtype: dtype,
) -> list[list[int]]:
    """Cuts tensors by groups, or else by size; see `cut_into_buckets`."""
    if options.groups is not None:
        groups = _group_numbers(variables, options.groups)
        return cut_by_groups(tensors, groups)
    first_limit_bytes, limit_bytes = bucket_limits(
        tensors, runtime.fusion_threshold_bytes(), wire_dtype=wire_dtype
    )
    return cut_into_buckets(
        tensors,
        limit_bytes,
        first_limit_bytes=first_limit_bytes,
        wire_dtype=wire_dtype,
    )


def _start(
    buckets: Sequence[_Bucket], options: GradientOptions
) -> list[Started]:
    """Starts all buckets except integers; see Note [Starts before dones]."""
    _, wire_dtype = split_engine_cast(options.compression, options.op)
    chain = [each for each in buckets if each.kind is not Kind.INTEGERS]
    starts: list[Started] = []
    for bucket in chain:
        previous = starts[-1] if starts else None
        last = bucket is chain[-1]
        if bucket.kind is Kind.SPARSE:
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
    """Returns the reduced gradients. Integers are started here."""
    if bucket.kind is Kind.SPARSE:
        with on_device(options.device_sparse):
            return finish_slices(bucket.in_flight)
    if bucket.kind is Kind.DENSE:
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


def _group_numbers(
    variables: Sequence[Any], groups: int | Sequence[Sequence[Any]]
) -> list[int]:
    # The groups have equal lengths, in backward order.
    if isinstance(groups, int):
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
