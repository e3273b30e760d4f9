"""Reduces gradients into shares, and gathers weights from them.

Communication overlaps with backpropagation as in tfring/_gradients/reducer.py,
which reduces whole gradients. See Note [Shares] in cuts.py.

Note [Two buckets in flight]: a rank keeps only its shares of the gradients
(ZeRO-2). The start of a bucket waits until the bucket before the last one has
been reduced, and this rank's share of it copied, so the whole gradients of at
most two buckets are in flight. Backpropagation waits for starts (see
overlap.py), so it computes at most the gradients of one bucket meanwhile. With
two buckets in flight, the next one is ready as soon as one has been sent. New
weights are gathered and assigned in the same way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfring._gradients.local_variables import inner_variable
from tfring._gradients.overlap import Backpropagation
from tfring._gradients.reducer import count_call, made_dense
from tfring._gradients.request_names import request_names_of
from tfring._gradients.share_buckets import Bucket
from tfring._gradients.shares import Layout, Share
from tfring._ops import chains
from tfring._ops.allreduce import allreduce
from tfring._ops.arguments import check_reduction
from tfring._ops.compression import split_engine_cast
from tfring._ops.devices import on_device
from tfring._ops.ordering import Started, traced_for_xla
from tfring._ops.reductions import ReduceOp

# See Note [Two buckets in flight]. A chain needs at least two.
_IN_FLIGHT = 2


def scatter_gradients(
    gradients: Sequence[Any], layout: Layout
) -> list[tuple[Share, tf.Tensor]]:
    """Averages or adds up gradients, and gives each rank its shares.

    Collective: every rank of the layout must call it, with gradients for the
    same variables.

    Args:
        gradients: One for each of the layout's variables: a tensor,
            `tf.IndexedSlices`, which are made dense, or None. The gradient of a
            sharded parameter is already the mean of this rank's part.
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
    parts = {}
    starts = []
    for bucket, start in _scatters(dense, order, layout):
        starts.append(start)
        with on_device(layout.options.device_dense):
            own = bucket.own(chains.finish(start))
            for i, part in own.items():
                parts[i] = tf.cast(part, bucket.dtype)
    backpropagation.wait_for(starts)
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


def _scatters(
    dense: Sequence[Any], order: Sequence[int], layout: Layout
) -> Iterator[tuple[Bucket, Started]]:
    """Starts the buckets in the order in which they become complete."""
    options = layout.options
    ready = {i: position for position, i in enumerate(order)}
    buckets = sorted(
        (b for b in layout.buckets if any(i in ready for i in b.indices)),
        key=lambda b: max(ready.get(i, -1) for i in b.indices),
    )
    _, wire_dtype = split_engine_cast(options.compression, options.op)

    def start(bucket: Bucket, **common: Any) -> Started:
        return chains.start_scatter_in_place(
            [
                tf.cast(each, wire_dtype(each.dtype))
                for each in bucket.pack(dense)
            ],
            op=options.op,
            prescale_factor=1 / options.predivide_factor,
            postscale_factor=options.predivide_factor,
            **common,
        )

    return _in_windows(start, buckets, "gradients", layout)


def gather_shares(
    values: Sequence[tuple[Share, tf.Tensor]], layout: Layout
) -> None:
    """Gathers whole variables from the ranks' shares, and assigns them.

    The variables have the same bits on all ranks.

    Collective: every rank of the layout must call it, for the same shares.

    Args:
        values: Pairs of a share and this rank's value of it.
        layout: Assigns the shares to the ranks.
    """
    options = layout.options
    updated = {share.index: value for share, value in values}
    if layout.size == 1:
        for i, part in updated.items():
            variable = layout.variables[i]
            variable.assign(tf.reshape(part, tuple(variable.shape)))
        return
    assigned: list[tf.Tensor] = []

    def start(bucket: Bucket, **common: Any) -> Started:
        parts = {
            i: updated[i]
            if i in updated
            else layout.shares[i].of(layout.variables[i])
            for i in bucket.indices
        }
        own = bucket.pack_own(parts)
        if traced_for_xla():
            wholes = bucket.write_own(own, layout.variables)
            return chains.start_gather_in_place(wholes, **common)
        shapes, begins = zip(*bucket.wholes(), strict=True)
        with tf.control_dependencies(assigned):
            return chains.start_gather_shares(
                own, shapes=shapes, begins=begins, **common
            )

    buckets = [
        b for b in layout.buckets if any(i in updated for i in b.indices)
    ]
    for bucket, started in _in_windows(start, buckets, "weights", layout):
        with on_device(options.device_dense):
            whole = bucket.whole(chains.finish(started))
        assigned.clear()
        for variable, value in (
            (layout.variables[i], whole[i]) for i in whole if i in updated
        ):
            variable.assign(value)
            # Waiting for this read waits for the assignment.
            assigned.append(inner_variable(variable).read_value())


def _in_windows(
    start: Callable[..., Started],
    buckets: Sequence[Bucket],
    name: str,
    layout: Layout,
) -> Iterator[tuple[Bucket, Started]]:
    """Starts buckets, and yields each to be finished before a later start.

    See Note [Two buckets in flight].
    """
    options = layout.options
    names = request_names_of(len(buckets), options.process_set, name)
    in_flight: deque[tuple[Bucket, Started]] = deque()
    previous: Started | None = None
    for bucket, request_name in zip(buckets, names, strict=True):
        with on_device(options.device_dense):
            previous = start(
                bucket,
                request_name=request_name,
                tensor_names=[layout.names[bucket.indices[0]]]
                * len(bucket.wholes()),
                previous=previous,
                last=bucket is buckets[-1],
                process_set=options.process_set,
            )
        in_flight.append((bucket, previous))
        if len(in_flight) == _IN_FLIGHT:
            yield in_flight.popleft()
    yield from in_flight


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
