"""Reduces gradients into shares, and gathers weights from them.

What tfring/_gradients/reducer.py does for whole gradients, with its overlap.
See Note [Shares] in shares.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfring._gradients.overlap import Backpropagation
from tfring._gradients.reducer import (
    count_call,
    made_dense,
    request_names_of,
)
from tfring._gradients.shares import Layout, Share
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
    """Averages gradients over the ranks, or adds them up, and shares them out.

    Collective: every rank of the layout must call it, with gradients for the
    same variables.

    Args:
        gradients: One for each of the layout's variables: a tensor,
            `tf.IndexedSlices`, which are made dense, or None.
        layout: Who gets what.

    Returns:
        The shares, of whose variables some have a gradient, and what this rank
        has of the result: zeros where there is none.

    Raises:
        TypeError: A gradient is neither a tensor nor `tf.IndexedSlices`.
    """
    count_call()
    options = layout.options
    backpropagation = Backpropagation()
    order = backpropagation.order(gradients)
    dense = list(gradients)
    with on_device(options.device_dense):
        for i in order:
            dense[i] = made_dense(
                gradients[i], layout.variables[i], layout.names[i]
            )
            check_reduction("gradients", options.op, dense[i].dtype)
    ready = {i: position for position, i in enumerate(order)}
    # In the order in which the last of their gradients become ready.
    shares = sorted(
        (s for s in layout.shares if any(i in ready for i in s.indices)),
        key=lambda s: max(ready.get(i, -1) for i in s.indices),
    )
    if layout.size == 1:
        return [(share, layout.packed(share, dense)) for share in shares]

    _, wire_dtype = split_engine_cast(options.compression, options.op)
    request_names = request_names_of(len(shares), options.process_set)
    started = []
    previous = None
    for number, share in enumerate(shares):
        with on_device(options.device_dense):
            flat = layout.packed(share, dense)
            buffers, previous = chains.start_scatter_in_place(
                [tf.cast(flat, wire_dtype(flat.dtype))],
                request_name=next(request_names),
                tensor_names=[layout.names[share.indices[0]]],
                previous=previous,
                op=options.op,
                prescale_factor=1 / options.predivide_factor,
                postscale_factor=options.predivide_factor,
                last=number == len(shares) - 1,
                process_set=options.process_set,
            )
        started.append((share, buffers, previous))
    backpropagation.wait_for([start for _, _, start in started])
    result = []
    for share, buffers, start in started:
        with on_device(options.device_dense):
            [flat] = chains.finish(buffers, start)
            own = flat[share.first : share.first + share.count]
            result.append((share, tf.cast(own, share.dtype)))
    return result


def gather_shares(
    values: Sequence[tuple[Share, tf.Tensor]], layout: Layout
) -> list[tuple[int, tf.Tensor]]:
    """Gives every rank the whole variables of which each has a share.

    Collective: every rank of the layout must call it, for the same shares.

    Args:
        values: Shares, and what this rank has of them.
        layout: Where they belong.

    Returns:
        The numbers of the variables, and what is to be assigned to them: the
        same bits on all ranks.
    """
    options = layout.options
    started: list[tuple[Share, list[Any], Started | None]] = []
    previous = None
    names = _request_names(layout, len(values))
    for number, (share, value) in enumerate(values):
        if layout.size == 1:
            started.append((share, [value], None))
            continue
        behind = share.count * share.size - share.first - share.count
        with on_device(options.device_dense):
            buffers, previous = chains.start_gather_in_place(
                [tf.pad(value, [[share.first, behind]])],
                request_name=next(names),
                tensor_names=[layout.names[share.indices[0]]],
                previous=previous,
                last=number == len(values) - 1,
                process_set=options.process_set,
            )
        started.append((share, buffers, previous))
    result: list[tuple[int, tf.Tensor]] = []
    for share, buffers, start in started:
        with on_device(options.device_dense):
            [flat] = buffers if start is None else chains.finish(buffers, start)
            result.extend(layout.unpacked(share, flat))
    return result


def summed(tensor: tf.Tensor, layout: Layout) -> tf.Tensor:
    """Adds up a small tensor over the ranks of a layout. Collective."""
    if layout.size == 1:
        return tensor
    return allreduce(
        tensor,
        op=ReduceOp.Sum,
        name=next(_request_names(layout, 1)),
        ignore_name_scope=True,
        process_set=layout.options.process_set,
    )


def _request_names(layout: Layout, count: int) -> Any:
    if layout.size == 1:
        return iter(())
    return request_names_of(count, layout.options.process_set)
