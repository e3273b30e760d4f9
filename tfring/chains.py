"""The ops of a collective, start and done, and the order between them.

A start hands tensors to the engine and returns at once; a done waits for them.
Several starts, each given the handle of the one before it, are a chain; the
dones of a chain come after its last start.

Note [Order under XLA]: without XLA the stateful ops of a graph run in the order
in which they were traced. XLA:CPU knows only data, and runs what is independent
in an order that differs between steps and between ranks. So the order is data
there: a start takes the handle of the start before it, a done the handle of its
chain's last start, and the first start of a chain what the dones of the chains
before it in the same graph return. The ranks thus start everything in one
order; and when a done fails, and XLA frees all memory of the step, nothing that
still uses it is in flight. Graphs inside a graph, such as the branches of
`tf.cond`, are ordered each by itself. A graph of TensorFlow 1 has no order: a
session runs what is fetched, and ranks meet by name.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from tfring import _native
from tfring.process_sets import ProcessSet, checked_id, global_process_set
from tfring.reductions import SUPPORTED_DTYPES as SUPPORTED_DTYPES
from tfring.reductions import ReduceOp as ReduceOp

# The attribute of a graph under which the dones of its chains are kept, until
# the first start of the next chain takes them.
_ENDED = "_tfring_ended"


@dataclasses.dataclass(slots=True)
class _Chain:
    last_handle: tf.Tensor | None = None
    open: bool = True


@dataclasses.dataclass(slots=True)
class Started:
    """A start, as its done and the next start of its chain need it."""

    handle: tf.Tensor
    chain: _Chain
    process_set_id: int


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
        tensors: What is reduced, in place where nothing else uses it.
        request_name: Equal on all ranks, and unique among those in flight.
        tensor_names: As errors shall call the tensors.
        previous: The start before it in the chain; None begins a chain.
        op: The reduction.
        prescale_factor: Multiplies each tensor before the reduction.
        postscale_factor: Multiplies the result.
        wire_dtype: What the tensors are cast to before they are scaled and
            reduced, and back from afterwards: float16 or bfloat16, of float32
            and float64, but for Adasum. By default nothing is cast.
        last: Whether it ends the chain; dones may follow.
        process_set: Whose ranks take part, this one among them; it need not be
            that of the rest of the chain.

    Returns:
        Buffers that must not be read, and the start: both are for `finish`.
    """
    result = _native.ops().tfring_allreduce_start(
        x=tensors,
        prev=_handle_before(previous),
        request_name=request_name,
        process_set_id=checked_id(process_set),
        tensor_names=tensor_names,
        reduce_op=op.value,
        wire_dtype=wire_dtype or tensors[0].dtype,
        # Text, which keeps all 64 bits; see `DoubleAttribute` in tf/request.cc.
        prescale_factor=repr(float(prescale_factor)),
        postscale_factor=repr(float(postscale_factor)),
    )
    return list(result.buf), _started(
        result.handle, process_set, previous, last
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
    result = _native.ops().tfring_broadcast_start(
        x=tensors,
        prev=_handle_before(previous),
        request_name=request_name,
        process_set_id=checked_id(process_set),
        tensor_names=tensor_names,
        root_rank=root_rank,
    )
    return list(result.buf), _started(
        result.handle, process_set, previous, last
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
    result = _native.ops().tfring_reducescatter_start(
        x=tensors,
        prev=_handle_before(previous),
        request_name=request_name,
        process_set_id=checked_id(process_set),
        tensor_names=tensor_names,
        reduce_op=op.value,
        prescale_factor=repr(float(prescale_factor)),
        postscale_factor=repr(float(postscale_factor)),
    )
    return list(result.buf), _started(
        result.handle, process_set, previous, last
    )


def finish(buffers: Sequence[tf.Tensor], started: Started) -> list[tf.Tensor]:
    """The results of a start that gave `buffers`."""
    result = _native.ops().tfring_done(
        buf=buffers,
        handle=started.handle,
        last=_last_handle(started),
    )
    if not tf.executing_eagerly():
        _ended().append(result.ended)
    return list(result.y)


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
    handle = _native.ops().tfring_allgather_start(
        x=tensors,
        prev=_handle_before(previous),
        request_name=request_name,
        process_set_id=checked_id(process_set),
        tensor_names=tensor_names,
    )
    return _started(handle, process_set, previous, last)


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
    """As `finish_allgather`, and how many ranks took part, of int64.

    These are all that have not joined.
    """
    result = _native.ops().tfring_allgather_done(
        x=tensors,
        handle=started.handle,
        last=_last_handle(started),
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
    handle = _native.ops().tfring_alltoall_start(
        x=tensors,
        prev=_handle_before(previous),
        splits=splits,
        request_name=request_name,
        process_set_id=checked_id(process_set),
        tensor_names=tensor_names,
    )
    return _started(handle, process_set, previous, last)


def finish_alltoall(
    tensors: Sequence[tf.Tensor], started: Started, *, request_name: str
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """The results of `start_alltoall`, which had the same `tensors`.

    Behind them, of int64, how many rows came from each rank.
    """
    result = _native.ops().tfring_alltoall_done(
        x=tensors,
        handle=started.handle,
        last=_last_handle(started),
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
    handle = _native.ops().tfring_barrier_start(
        prev=_handle_before(None),
        request_name=request_name,
        process_set_id=checked_id(process_set),
    )
    return _started(handle, process_set, None, last=True)


def finish_barrier(started: Started) -> Any:
    """Waits for `start_barrier`.

    Returns:
        None, but in a graph of TensorFlow 1 the operation that must be run.
    """
    done = _native.ops().tfring_barrier_done(
        handle=started.handle, last=_last_handle(started)
    )
    graph = tf.compat.v1.get_default_graph()
    # A function runs all that is stateful, and can return no operation.
    return None if graph.building_function else done


def unique_name(name: str, process_set: ProcessSet) -> str:
    """A request name that is new in the graph that is being traced.

    Equal on the ranks of the set, whatever collectives of other sets they have
    in their graphs. And in whatever name scope they are: such have the numbers
    of Keras's layers, and one rank may have made more layers than another.
    """
    process_set_id = checked_id(process_set)
    if process_set_id != 0:
        name = f"process_set_{process_set_id}/{name}"
    graph = tf.compat.v1.get_default_graph()
    with graph.name_scope(None):
        return str(graph.unique_name(name))


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
    handle = _native.ops().tfring_join_start(
        prev=_handle_before(None), request_name="join", process_set_id=0
    )
    started = _started(handle, global_process_set, None, last=True)
    return _native.ops().tfring_join_done(
        handle=started.handle, last=_last_handle(started)
    )


def traced_for_xla() -> bool:
    """Whether a function is being traced under `jit_compile=True`."""
    # Not public in TensorFlow, which has no other way to ask.
    return bool(
        control_flow_util.GraphOrParentsInXlaContext(
            tf.compat.v1.get_default_graph()
        )
    )


def _handle_before(previous: Started | None) -> tf.Tensor:
    """The input `prev` of a start; see Note [Order under XLA].

    It is in host memory, as the start wants it: to be brought there from a GPU,
    it would have to wait for all that the GPU has been asked for.
    """
    if previous is not None:
        return previous.handle
    if tf.executing_eagerly():
        return _no_handle()
    ended = _ended()
    with tf.device("CPU:0"):
        if not ended:
            return tf.constant(0, tf.int64)
        handle = tf.add_n(ended)  # each is 0
    ended.clear()
    return handle


@functools.cache
def _no_handle() -> tf.Tensor:
    """Eagerly, the input `prev` of the first start of a chain."""
    with tf.device("CPU:0"):
        return tf.constant(0, tf.int64)


def _started(
    handle: tf.Tensor,
    process_set: ProcessSet,
    previous: Started | None,
    last: bool,
) -> Started:
    chain = _Chain() if previous is None else previous.chain
    assert chain.open, "a start after the last of its chain"
    chain.last_handle = handle
    chain.open = not last
    return Started(handle, chain, checked_id(process_set))


def _last_handle(started: Started) -> tf.Tensor:
    assert not started.chain.open, "a done before the last start of its chain"
    return started.chain.last_handle


def _ended() -> list[tf.Tensor]:
    graph = tf.compat.v1.get_default_graph()
    if not graph.building_function:
        # A graph of TensorFlow 1 runs what is fetched, and no more: what is
        # traced first may belong to another step.
        return []
    # On the graph itself, so that it dies with it.
    if not hasattr(graph, _ENDED):
        setattr(graph, _ENDED, [])
    ended: list[tf.Tensor] = getattr(graph, _ENDED)
    return ended
