"""Reductions of `tf.IndexedSlices`: each rank gathers the rows of all ranks.

Note [Repeated rows]: if a step looks up a row twice, its gradient has two rows
of that index. Their sum is the gradient, but Keras's optimizers, and its norms
for clipping, square each row by itself. So a result has each index once, like a
dense gradient. Each rank adds up its rows before it sends them, to save bytes,
and then adds up the rows of all ranks.

Note [Order of sums]: all ranks must get the same bits, and a GPU adds up the
rows of a segment in any order. So the gathered rows are added rank by rank: a
rank has one row of an index at most. Integers need no order, because their sums
are exact. They are sent without being added up, because a sum may overflow
although the average does not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfring._core.process_sets import ProcessSet
from tfring._ops.allgather import Gathering, finish_gather, start_gather
from tfring._ops.arguments import check_reduction, checked_tensor
from tfring._ops.compression import (
    AnyCompressor,
    compress,
    compressor_for_rows,
    decompress,
)
from tfring._ops.integer_averages import quotient, summands
from tfring._ops.ordering import Started
from tfring._ops.reductions import ReduceOp


@dataclasses.dataclass(frozen=True)
class SlicesInFlight:
    """A reduction that `start_slices` has started, for `finish_slices`."""

    function: str
    slices: Sequence[tf.IndexedSlices]
    op: ReduceOp
    factor: float
    compression: AnyCompressor
    contexts: Sequence[Any]
    gathering: Gathering


def checked_slices(
    function: str, slices: tf.IndexedSlices, op: Any
) -> tf.IndexedSlices:
    # The op is checked first, because no dtype would make it possible.
    if isinstance(op, ReduceOp) and op not in (ReduceOp.Average, ReduceOp.Sum):
        raise NotImplementedError(
            f"{function}: tf.IndexedSlices can be reduced with Average or Sum, "
            f"got {op.name}. Pass tf.convert_to_tensor(slices)."
        )
    values = checked_tensor(function, slices.values)
    indices = checked_tensor(function, slices.indices)
    check_reduction(function, op, values.dtype)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def start_slices(
    function: str,
    slices: Sequence[tf.IndexedSlices],
    *,
    op: ReduceOp,
    factor: float,
    compression: AnyCompressor,
    process_set: ProcessSet,
    name: str,
    tensor_names: Sequence[str],
    previous: Started | None = None,
    last: bool = True,
) -> SlicesInFlight:
    """Starts gathering slices after `previous`, with one request per dtype.

    They are from `checked_slices`, and `factor` multiplies the result. See
    `chains.Common` for the chain.
    """
    slices = [
        summed_by_index(each) if each.values.dtype.is_floating else each
        for each in slices
    ]
    compression = compressor_for_rows(compression)
    compressed = [compress(function, compression, s.values) for s in slices]
    # Row counts have the dtype of the indices, to share one request with them.
    is_int32 = any(each.indices.dtype == tf.int32 for each in slices)
    row_counts = [
        tf.size(each.indices, tf.int32 if is_int32 else tf.int64)
        for each in slices
    ]
    gathering = start_gather(
        [
            *(values for values, _ in compressed),
            *(each.indices for each in slices),
            tf.stack([row_counts]),
        ],
        name=name,
        previous=previous,
        last=last,
        process_set=process_set,
        tensor_names=[
            *tensor_names,
            *(each and f"{each}/indices" for each in tensor_names),
            "numbers of rows",
        ],
    )
    contexts = [context for _, context in compressed]
    return SlicesInFlight(
        function, slices, op, factor, compression, contexts, gathering
    )


def finish_slices(in_flight: SlicesInFlight) -> list[tf.IndexedSlices]:
    """Returns the results of `start_slices`."""
    slices, op = in_flight.slices, in_flight.op
    (*gathered, row_counts), contributors = finish_gather(in_flight.gathering)
    results = []
    for i, (each, context) in enumerate(
        zip(slices, in_flight.contexts, strict=True)
    ):
        values = decompress(
            in_flight.function,
            in_flight.compression,
            gathered[i],
            context,
            each.values.dtype,
        )
        values, indices = _summed_by_index(
            values,
            gathered[len(slices) + i],
            row_counts[:, i],
            contributors if op is ReduceOp.Average else 1,
            in_flight.factor,
        )
        results.append(tf.IndexedSlices(values, indices, each.dense_shape))
    return results


def summed_by_index(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Adds up the rows of each index; see Note [Repeated rows]."""
    values, indices = _summed_by_index(
        tf.convert_to_tensor(slices.values),
        tf.convert_to_tensor(slices.indices),
    )
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def _summed_by_index(
    values: tf.Tensor,
    indices: tf.Tensor,
    row_counts: tf.Tensor | None = None,
    divisor: Any = 1,
    factor: float = 1.0,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the scaled sums of the rows of each index, and the indices.

    Sums are rounded to the dtype of the values once. See Note [Order of sums].
    Each rank has its own of `row_counts`, in order.
    """
    unique, numbers = tf.unique(indices)
    dtype = values.dtype
    if not dtype.is_floating:
        sums = [
            tf.math.unsorted_segment_sum(part, numbers, tf.size(unique))
            for part in summands(values)
        ]
        if dtype == tf.bool:  # an "or", which no factor changes
            factor = 1.0
        return quotient(sums, divisor, factor, dtype), unique
    if dtype.size < tf.float32.size:
        values = tf.cast(values, tf.float32)
    if row_counts is None:
        total = tf.math.unsorted_segment_sum(values, numbers, tf.size(unique))
    else:
        total = _summed_rank_by_rank(
            values, numbers, tf.size(unique), row_counts
        )
    if factor != 1 or not isinstance(divisor, int):
        ratio = tf.constant(factor, tf.float64) / tf.cast(divisor, tf.float64)
        scaled = tf.cast(total, tf.float64) * ratio
        total = tf.cast(scaled, total.dtype)  # as the engine rounds
    return tf.cast(total, dtype), unique


def _summed_rank_by_rank(
    values: tf.Tensor,
    numbers: tf.Tensor,
    count: tf.Tensor,
    row_counts: tf.Tensor,
) -> tf.Tensor:
    """Adds up segments in a fixed order; see Note [Order of sums]."""
    # TensorFlow refuses to add rows that have no elements.
    has_elements = tf.reduce_all(tf.shape(values) > 0)
    row_counts *= tf.cast(has_elements, row_counts.dtype)

    def add(rank: Any, begin: Any, total: tf.Tensor) -> tuple[Any, ...]:
        end = begin + row_counts[rank]
        total = tf.tensor_scatter_nd_add(
            total, numbers[begin:end, tf.newaxis], values[begin:end]
        )
        return rank + 1, end, total

    shape = tf.concat([[count], tf.shape(values)[1:]], axis=0)
    start = tf.constant(0), tf.constant(0, row_counts.dtype)
    *_, total = tf.while_loop(
        lambda rank, *_: rank < tf.size(row_counts),
        add,
        [*start, tf.zeros(shape, values.dtype)],
        parallel_iterations=1,
    )
    total.set_shape(tf.TensorShape([None]).concatenate(values.shape[1:]))
    return total
