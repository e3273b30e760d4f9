"""The ops of a collective, start and done.

A start hands tensors to the engine and returns at once; a done waits for them.
Several starts, each given the handle of the one before it, are a chain; the
dones of a chain come after its last start: see tfring/_ops/ordering.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfring._core import native
from tfring._core.process_sets import ProcessSet, checked_id, global_process_set
from tfring._ops.ordering import (
    Started,
    add_to_chain,
    count_eager_start,
    handle_before,
    keep_done,
    last_handle,
    traced_for_xla,
)
from tfring._ops.reductions import ReduceOp

Attributes = Mapping[str, Any]


def allreduce_attributes(
    *,
    op: ReduceOp,
    prescale_factor: float,
    postscale_factor: float,
    wire_dtype: tf.DType,
    process_set: ProcessSet,
) -> Attributes:
    """The attributes of an allreduce's operation but for names."""
    return {
        "process_set_id": checked_id(process_set),
        "reduce_op": op.value,
        "wire_dtype": wire_dtype,
        # Text, which keeps all 64 bits; see `DoubleAttribute` in tf/request.cc.
        "prescale_factor": repr(float(prescale_factor)),
        "postscale_factor": repr(float(postscale_factor)),
    }


def start_allreduce(
    tensors: Sequence[tf.Tensor],
    *,
    request_name: str,
    tensor_names: Sequence[str],
    previous: Started | None,
    op: ReduceOp,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    wire_dtype: tf.DType | None = None,
    last: bool = True,
    process_set: ProcessSet = global_process_set,
) -> tuple[list[tf.Tensor], Started]:
    """Starts an allreduce of tensors of one dtype.

    Args:
        tensors: Reduced in place where nothing else uses them.
        request_name: Equal on all ranks, and unique among those in flight.
        tensor_names: Names of the tensors in errors.
        previous: The start before it in the chain; None begins a chain.
        op: The reduction.
        prescale_factor: Multiplies each tensor before the reduction.
        postscale_factor: Multiplies the result.
        wire_dtype: float16 or bfloat16, to which tensors of float32 and
            float64 are cast before they are scaled and reduced, and back from
            afterwards; not for Adasum. By default nothing is cast.
        last: True if it ends the chain; dones may follow.
        process_set: Whose ranks take part, this one among them; it need not be
            that of the rest of the chain.

    Returns:
        Buffers that must not be read, and the start: both are for `finish`.
    """
    result = native.ops().tfring_allreduce_start(
        x=tensors,
        prev=handle_before(previous),
        request_name=request_name,
        tensor_names=tensor_names,
        **allreduce_attributes(
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            wire_dtype=wire_dtype or tensors[0].dtype,
            process_set=process_set,
        ),
    )
    return list(result.buf), add_to_chain(
        result.handle, process_set, previous, last=last
    )


def allreduce_now(
    tensor: tf.Tensor, request_name: str, attributes: Attributes
) -> tf.Tensor:
    """The result of a chain of one allreduce; no function is being traced.

    One operation, where a start and its done are two.
    """
    count_eager_start()
    return native.ops().tfring_allreduce(
        x=tensor, request_name=request_name, **attributes
    )


def start_broadcast(
    tensors: Sequence[tf.Tensor],
    *,
    request_name: str,
    tensor_names: Sequence[str],
    previous: Started | None,
    root_rank: int,
    last: bool = True,
    process_set: ProcessSet = global_process_set,
) -> tuple[list[tf.Tensor], Started]:
    """Starts a broadcast of tensors of one dtype; see `start_allreduce`."""
    result = native.ops().tfring_broadcast_start(
        x=tensors,
        prev=handle_before(previous),
        request_name=request_name,
        process_set_id=checked_id(process_set),
        tensor_names=tensor_names,
        root_rank=root_rank,
    )
    return list(result.buf), add_to_chain(
        result.handle, process_set, previous, last=last
    )


def start_reducescatter(
    tensors: Sequence[tf.Tensor],
    *,
    request_name: str,
    tensor_names: Sequence[str],
    previous: Started | None,
    op: ReduceOp,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    last: bool = True,
    process_set: ProcessSet = global_process_set,
) -> tuple[list[tf.Tensor], Started]:
    """Starts a reducescatter of tensors of one dtype; see `start_allreduce`.

    Raises:
        NotImplementedError: It is being traced for XLA.
    """
    if traced_for_xla():
        raise NotImplementedError(
            f"reducescatter of '{request_name}': XLA runs one program on every "
            "rank, and the shape of the result may differ between ranks. Call "
            "it outside of jit_compile=True."
        )
    result = native.ops().tfring_reducescatter_start(
        x=tensors,
        prev=handle_before(previous),
        request_name=request_name,
        process_set_id=checked_id(process_set),
        tensor_names=tensor_names,
        reduce_op=op.value,
        prescale_factor=repr(float(prescale_factor)),
        postscale_factor=repr(float(postscale_factor)),
    )
    return list(result.buf), add_to_chain(
        result.handle, process_set, previous, last=last
    )


def start_scatter_in_place(
    tensors: Sequence[tf.Tensor],
    *,
    request_name: str,
    tensor_names: Sequence[str],
    previous: Started | None,
    op: ReduceOp,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    last: bool = True,
    process_set: ProcessSet = global_process_set,
) -> tuple[list[tf.Tensor], Started]:
    """Starts a reducescatter whose results have the shapes of its tensors.

    Only this rank's share of a result is defined: of its elements, whatever
    the shape, each rank has the same multiple of 16, and the last ones what is
    left. All shapes are static, so that it can be traced for XLA. Otherwise see
    `start_allreduce`.
    """
    result = native.ops().tfring_scatter_in_place_start(
        x=tensors,
        prev=handle_before(previous),
        request_name=request_name,
        process_set_id=checked_id(process_set),
        tensor_names=tensor_names,
        reduce_op=op.value,
        prescale_factor=repr(float(prescale_factor)),
        postscale_factor=repr(float(postscale_factor)),
    )
    return list(result.buf), add_to_chain(
        result.handle, process_set, previous, last=last
    )


def start_gather_in_place(
    tensors: Sequence[tf.Tensor],
    *,
    request_name: str,
    tensor_names: Sequence[str],
    previous: Started | None,
    last: bool = True,
    process_set: ProcessSet = global_process_set,
) -> tuple[list[tf.Tensor], Started]:
    """Starts an allgather of the shares that the ranks have of whole tensors.

    They are those that `start_scatter_in_place` leaves; what else is in the
    tensors does not count. Otherwise see `start_allreduce`.
    """
    result = native.ops().tfring_gather_in_place_start(
        x=tensors,
        prev=handle_before(previous),
        request_name=request_name,
        process_set_id=checked_id(process_set),
        tensor_names=tensor_names,
    )
    return list(result.buf), add_to_chain(
        result.handle, process_set, previous, last=last
    )


def finish(buffers: Sequence[tf.Tensor], started: Started) -> list[tf.Tensor]:
    """The results of a start that gave `buffers`."""
    result = native.ops().tfring_done(
        buf=buffers,
        handle=started.handle,
        last=last_handle(started),
    )
    keep_done(result.ended)
    return list(result.y)


def after_start(tensor: tf.Tensor, started: Started) -> tf.Tensor:
    """The same tensor, of floats, but not before a start has run."""
    return native.ops().tfring_after_start(x=tensor, handle=started.handle)


def start_allgather(
    tensors: Sequence[tf.Tensor],
    *,
    request_name: str,
    tensor_names: Sequence[str],
    previous: Started | None,
    last: bool = True,
    process_set: ProcessSet = global_process_set,
) -> Started:
    """Starts an allgather of tensors of one dtype; see `start_allreduce`.

    Raises:
        NotImplementedError: It is being traced for XLA.
    """
    if traced_for_xla():
        raise NotImplementedError(
            f"allgather of '{request_name}': XLA needs static shapes, and the "
            "first dimension of the result is known only when all ranks have "
            "met. Call it outside of jit_compile=True."
        )
    handle = native.ops().tfring_allgather_start(
        x=tensors,
        prev=handle_before(previous),
        request_name=request_name,
        process_set_id=checked_id(process_set),
        tensor_names=tensor_names,
    )
    return add_to_chain(handle, process_set, previous, last=last)


def finish_allgather(
    tensors: Sequence[tf.Tensor], started: Started, *, request_name: str
) -> list[tf.Tensor]:
    """The results of `start_allgather`, which had the same `tensors`."""
    return finish_counted_allgather(
        tensors, started, request_name=request_name
    )[0]


def finish_counted_allgather(
    tensors: Sequence[tf.Tensor], started: Started, *, request_name: str
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Returns `finish_allgather`'s results, and how many ranks took part.

    The count, of int64, is that of the ranks that have not joined.
    """
    result = native.ops().tfring_allgather_done(
        x=tensors,
        handle=started.handle,
        last=last_handle(started),
        request_name=request_name,
        process_set_id=started.process_set_id,
    )
    return list(result.y), result.contributors


def start_alltoall(
    tensors: Sequence[tf.Tensor],
    splits: tf.Tensor,
    *,
    request_name: str,
    tensor_names: Sequence[str],
    previous: Started | None,
    last: bool = True,
    process_set: ProcessSet = global_process_set,
) -> Started:
    """Starts an alltoall of tensors of one dtype; see `start_allreduce`.

    `splits`, of int64, says how many rows of each tensor go to each rank. If it
    is empty, equally many do.

    Raises:
        NotImplementedError: It is being traced for XLA.
    """
    if traced_for_xla():
        raise NotImplementedError(
            f"alltoall of '{request_name}': XLA needs static shapes, and the "
            "first dimension of the result is known only when all ranks have "
            "met. Call it outside of jit_compile=True."
        )
    handle = native.ops().tfring_alltoall_start(
        x=tensors,
        prev=handle_before(previous),
        splits=splits,
        request_name=request_name,
        process_set_id=checked_id(process_set),
        tensor_names=tensor_names,
    )
    return add_to_chain(handle, process_set, previous, last=last)


def finish_alltoall(
    tensors: Sequence[tf.Tensor], started: Started, *, request_name: str
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """The results of `start_alltoall`, which had the same `tensors`.

    Behind them, of int64, how many rows came from each rank.
    """
    result = native.ops().tfring_alltoall_done(
        x=tensors,
        handle=started.handle,
        last=last_handle(started),
        request_name=request_name,
        process_set_id=started.process_set_id,
    )
    return list(result.y), result.received_splits


def start_barrier(
    *, request_name: str, process_set: ProcessSet = global_process_set
) -> Started:
    """Starts a barrier, a chain by itself.

    Raises:
        NotImplementedError: It is being traced for XLA.
    """
    if traced_for_xla():
        raise NotImplementedError(
            f"barrier '{request_name}': XLA runs what does not depend on each "
            "other in any order, so there is no before and after. Call it "
            "outside of jit_compile=True."
        )
    handle = native.ops().tfring_barrier_start(
        prev=handle_before(None),
        request_name=request_name,
        process_set_id=checked_id(process_set),
    )
    return add_to_chain(handle, process_set, None, last=True)


def finish_barrier(started: Started) -> Any:
    """Waits for `start_barrier`.

    Returns:
        None, but in a graph of TensorFlow 1 the operation that must be run.
    """
    done = native.ops().tfring_barrier_done(
        handle=started.handle, last=last_handle(started)
    )
    graph = tf.compat.v1.get_default_graph()
    # A function runs all that is stateful, and can return no operation.
    return None if graph.building_function else done


def join() -> tf.Tensor:
    """Stands by until all ranks do, and returns the last, of int64.

    Raises:
        NotImplementedError: It is being traced for XLA.
    """
    if traced_for_xla():
        raise NotImplementedError(
            "join: XLA runs what does not depend on each other in any order, "
            "so there is no before and after. Call it outside of "
            "jit_compile=True."
        )
    handle = native.ops().tfring_join_start(
        prev=handle_before(None), request_name="join", process_set_id=0
    )
    started = add_to_chain(handle, global_process_set, None, last=True)
    return native.ops().tfring_join_done(
        handle=started.handle, last=last_handle(started)
    )
