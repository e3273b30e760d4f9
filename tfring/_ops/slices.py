"""Reductions of `tf.IndexedSlices`: rows are gathered, not added.

Every rank gets the rows of all ranks, as many as there are, and whoever applies
them adds up those of one index.
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
    # The op first: no dtype makes up for it.
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
    """Starts what comes after `previous`, a request for each dtype.

    Args:
        function: The name of the user's call, for errors.
        slices: From `checked_slices`.
        op: `Average` or `Sum`.
        factor: That of the result.
        compression: For the values.
        process_set: The ranks that take part.
        name: The first request's.
        tensor_names: Names of the slices.
        previous: The start before.
        last: Whether that ends the chain.
    """
    compression = compressor_for_rows(compression)
    compressed = [compress(function, compression, s.values) for s in slices]
    gathering = start_gather(
        [values for values, _ in compressed]
        + [each.indices for each in slices],
        name=name,
        previous=previous,
        last=last,
        process_set=process_set,
        tensor_names=[
            *tensor_names,
            *(each and f"{each}/indices" for each in tensor_names),
        ],
    )
    contexts = [context for _, context in compressed]
    return SlicesInFlight(
        function, slices, op, factor, compression, contexts, gathering
    )


def finish_slices(in_flight: SlicesInFlight) -> list[tf.IndexedSlices]:
    """The results of `start_slices`."""
    slices, op, factor = in_flight.slices, in_flight.op, in_flight.factor
    gathered, contributors = finish_gather(in_flight.gathering)
    ratio = tf.constant(factor, tf.float64)
    if op is ReduceOp.Average:
        ratio /= tf.cast(contributors, tf.float64)
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
        indices = gathered[len(slices) + i]
        if op is ReduceOp.Average or factor != 1:
            if values.dtype.is_integer:
                divisor = contributors if op is ReduceOp.Average else 1
                values, indices = _summed_by_index(
                    values, indices, divisor, factor
                )
            else:
                values = _scaled(values, ratio)
        results.append(tf.IndexedSlices(values, indices, each.dense_shape))
    return results


def _summed_by_index(
    values: tf.Tensor, indices: tf.Tensor, divisor: Any, factor: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """Integers, which are rounded when all rows of an index are together."""
    unique, numbers = tf.unique(indices)
    sums = [
        tf.math.unsorted_segment_sum(part, numbers, tf.size(unique))
        for part in summands(values)
    ]
    return quotient(sums, divisor, factor, values.dtype), unique


def _scaled(tensor: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    # The engine computes in the same types.
    product = tf.cast(tensor, tf.float64) * factor
    if tensor.dtype in (tf.float16, tf.bfloat16):
        product = tf.cast(product, tf.float32)
    return tf.cast(product, tensor.dtype)
