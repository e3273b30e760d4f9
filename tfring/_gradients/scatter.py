"""Reduces gradients into shares, and gathers weights from them.

Communication overlaps with backpropagation as in tfring/_gradients/reducer.py,
which reduces whole gradients. See Note [Shares] in shares.py.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any

import tensorflow as tf

from tfring._gradients.overlap import Backpropagation
from tfring._gradients.reducer import count_call, made_dense
from tfring._gradients.request_names import request_names_of
from tfring._gradients.shares import Bucket, Layout, Share
from tfring._ops import chains
from tfring._ops.allreduce import allreduce
from tfring._ops.arguments import check_reduction
from tfring._ops.compression import split_engine_cast
from tfring._ops.devices import on_device
from tfring._ops.ordering import Started
from tfring._ops.reductions import ReduceOp


def scatter_gradients(
    gradients: Sequence[Any], layout: Layout
) -> list[tuple[Share, tf.Tensor]]:
    """Averages or adds up gradients, and gives each rank its shares.

    Collective: every rank of the layout must call it, with gradients for the
    same variables.

    Args:
        gradients: One for each of the layout's variables: a tensor,
            `tf.IndexedSlices`, which are made dense, or None. The gradient of a
            sharded parameter is the mean of this rank's part already.
        layout: Assigns the shares of the variables to the ranks.

    Returns:
        Pairs of a share and this rank's part of the reduced gradient, one for
        each variable with a gradient, in the order the gradients become ready.

    Raises:
        TypeError: A gradient is neither a tensor nor `tf.IndexedSlices`.
    """
    count_call()
    backpropagation = Backpropagation()
    order = backpropagation.order(gradients)
    dense = _made_dense(gradients, order, layout)
    if layout.size == 1:
        return [
            (layout.shares[i], layout.shares[i].of(dense[i])) for i in order
        ]
    started = _start_scatters(dense, order, layout)
    backpropagation.wait_for([start for _, start in started])
    parts = {}
    for bucket, start in started:
        with on_device(layout.options.device_dense):
            own = bucket.own(chains.finish(start))
            for i, part in own.items():
                parts[i] = tf.cast(part, bucket.dtype)
    return [
        # An empty variable and a sharded parameter are in no bucket.
        (
            layout.shares[i],
            parts[i] if i in parts else layout.shares[i].of(dense[i]),
        )
        for i in order
    ]


def _made_dense(
    gradients: Sequence[Any], order: Sequence[int], layout: Layout
) -> list[Any]:
    options = layout.options
    dense = list(gradients)
    with on_device(options.device_dense):
        for i in order:
            dense[i] = made_dense(
                gradients[i], layout.variables[i], layout.names[i]
            )
            check_reduction("gradients", options.op, dense[i].dtype)
            if layout.shares[i].parameter and options.op is ReduceOp.Sum:
                dense[i] *= layout.size
    return dense


def _start_scatters(
    dense: Sequence[Any], order: Sequence[int], layout: Layout
) -> list[tuple[Bucket, Started]]:
    """Starts the buckets; the one whose last gradient is ready first leads."""
    options = layout.options
    ready = {i: position for position, i in enumerate(order)}
    buckets = sorted(
        (b for b in layout.buckets if any(i in ready for i in b.indices)),
        key=lambda b: max(ready.get(i, -1) for i in b.indices),
    )
    _, wire_dtype = split_engine_cast(options.compression, options.op)
    names = request_names_of(len(buckets), options.process_set)
    started: list[tuple[Bucket, Started]] = []
    previous: Started | None = None
    for bucket, name in zip(buckets, names, strict=True):
        with on_device(options.device_dense):
            rows = [
                tf.cast(each, wire_dtype(each.dtype))
                for each in bucket.pack(dense)
            ]
            previous = chains.start_scatter_in_place(
                rows,
                request_name=name,
                tensor_names=_names_in_errors(bucket, rows, layout),
                previous=previous,
                op=options.op,
                prescale_factor=1 / options.predivide_factor,
                postscale_factor=options.predivide_factor,
                last=bucket is buckets[-1],
                process_set=options.process_set,
            )
        started.append((bucket, previous))
    return started


def gather_shares(
    values: Sequence[tuple[Share, tf.Tensor]], layout: Layout
) -> list[tuple[int, tf.Tensor]]:
    """Gathers whole variables from the ranks' shares.

    Collective: every rank of the layout must call it, for the same shares.

    Args:
        values: Pairs of a share and this rank's value of it.
        layout: Assigns the shares to the ranks.

    Returns:
        Pairs of a variable's number and its new value, which has the same bits
        on all ranks.
    """
    options = layout.options
    updated = {share.index: value for share, value in values}
    if layout.size == 1:
        return [
            (i, tf.reshape(part, tuple(layout.variables[i].shape)))
            for i, part in updated.items()
        ]
    buckets = [
        b for b in layout.buckets if any(i in updated for i in b.indices)
    ]
    names = request_names_of(len(buckets), options.process_set, "weights")
    started: list[tuple[Bucket, Started]] = []
    previous: Started | None = None
    for bucket, name in zip(buckets, names, strict=True):
        with on_device(options.device_dense):
            parts = {
                i: updated[i]
                if i in updated
                else layout.shares[i].of(layout.variables[i])
                for i in bucket.indices
            }
            rows = bucket.pack_own(parts, layout.variables)
            previous = chains.start_gather_in_place(
                rows,
                request_name=name,
                tensor_names=_names_in_errors(bucket, rows, layout),
                previous=previous,
                last=bucket is buckets[-1],
                process_set=options.process_set,
            )
        started.append((bucket, previous))
    result: list[tuple[int, tf.Tensor]] = []
    for bucket, start in started:
        with on_device(options.device_dense):
            whole = bucket.whole(chains.finish(start))
            result.extend((i, whole[i]) for i in whole if i in updated)
    return result


def _names_in_errors(
    bucket: Bucket, tensors: Sized, layout: Layout
) -> list[str]:
    return [layout.names[bucket.indices[0]]] * len(tensors)


def summed(tensor: tf.Tensor, layout: Layout) -> tf.Tensor:
    """Adds up a small tensor over the ranks of a layout. Collective."""
    if layout.size == 1:
        return tensor
    return allreduce(
        tensor,
        op=ReduceOp.Sum,
        name=next(request_names_of(1, layout.options.process_set, "norms")),
        ignore_name_scope=True,
        process_set=layout.options.process_set,
    )
