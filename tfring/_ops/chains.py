"""The ops of a collective, start and done.

A start hands tensors to the engine and returns at once; a done waits for them.
Several starts, each given the handle of the one before it, are a chain. The
dones of a chain come after its last start, or each after the start that follows
its own: see tfring/_ops/ordering.py. Some collectives cannot run under XLA:
their starts raise NotImplementedError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

import tensorflow as tf

from tfring._core import native
from tfring._core.process_sets import ProcessSet, checked_id, global_process_set
from tfring._ops.ordering import (
    Chain,
    Started,
    count_start,
    handle_before,
    inputs_of_done,
    keep_done,
    traced_for_xla,
)
from tfring._ops.reductions import ReduceOp

if TYPE_CHECKING:
    from typing_extensions import NotRequired, Unpack

Attributes = Mapping[str, Any]

_NO_STATIC_SHAPES = (
    "XLA needs static shapes, and the first dimension of the result is known "
    "only when all ranks have met."
)
_NO_ORDER = (
    "XLA runs what does not depend on each other in any order, so there is no "
    "before and after."
)


class Common(TypedDict):
    """Arguments of every start of tensors, which have one dtype.

    Attributes:
        request_name: Equal on all ranks, and unique among those in flight.
        tensor_names: Names of the tensors in errors.
        previous: The preceding start of the chain; None, the default, begins a
            chain.
        last: True, the default, if this start ends the chain, so that dones may
            follow.
        process_set: The ranks that take part, including this one; by default
            all ranks. The starts of a chain may have different sets.
    """

    request_name: str
    tensor_names: Sequence[str]
    previous: NotRequired[Started | None]
    last: NotRequired[bool]
    process_set: NotRequired[ProcessSet]


class Reduction(Common):
    """Arguments of every start that reduces.

    Attributes:
        op: The reduction.
        prescale_factor: Multiplies each tensor before the reduction; by default
            1.
        postscale_factor: Multiplies the result; by default 1.
    """

    op: ReduceOp
    prescale_factor: NotRequired[float]
    postscale_factor: NotRequired[float]


def start_allreduce(
    tensors: Sequence[tf.Tensor],
    *,
    wire_dtype: tf.DType | None = None,
    **reduction: Unpack[Reduction],
) -> Started:
    """Starts an allreduce, in place where nothing else uses the tensors.

    Tensors of float32 and float64 are cast to `wire_dtype`, float16 or
    bfloat16, before they are scaled and reduced, and back afterwards. Adasum
    does not cast. By default nothing is cast.
    """
    return _start(
        native.ops().tfring_allreduce_start,
        x=tensors,
        wire_dtype=wire_dtype or tensors[0].dtype,
        **_attributes(**reduction),
    )


def allreduce_now(tensor: tf.Tensor, request: str) -> tf.Tensor:
    """Returns the result of an eager allreduce, which is a chain of its own.

    It takes one operation in place of a start and a done. `request` is the text
    of `allreduce_request`, followed by the name, if there is one.
    """
    count_start()
    return native.ops().tfring_allreduce(x=tensor, request=request)


def allreduce_request(
    op: ReduceOp,
    prescale_factor: float,
    postscale_factor: float,
    wire_dtype: tf.DType,
    process_set: ProcessSet,
) -> str:
    """Returns the request of `allreduce_now`; see `ReadAllreduce` in C++."""
    reduction = _attributes(op, prescale_factor, postscale_factor).values()
    words = (*reduction, wire_dtype.name, checked_id(process_set), "")
    return " ".join(map(str, words))


def attributes_of_allreduce(request: str) -> Attributes:
    """Returns the attributes of a start of the same allreduce."""
    names = ("reduce_op", "prescale_factor", "postscale_factor")
    *reduction, wire_dtype, process_set_id, name = request.split(" ", 5)
    return {
        **dict(zip(names, reduction, strict=True)),
        "wire_dtype": tf.as_dtype(wire_dtype),
        "process_set_id": int(process_set_id),
        "request_name": name,
    }


def start_broadcast(
    tensors: Sequence[tf.Tensor], *, root_rank: int, **common: Unpack[Common]
) -> Started:
    """Starts a broadcast, in place where nothing else uses the tensors."""
    operation = native.ops().tfring_broadcast_start
    return _start(operation, x=tensors, root_rank=root_rank, **common)


def start_reducescatter(
    tensors: Sequence[tf.Tensor], **reduction: Unpack[Reduction]
) -> Started:
    """Starts a reducescatter: each rank gets some rows of the result."""
    _refuse_xla(
        f"reducescatter of '{reduction['request_name']}'",
        "XLA runs one program on every rank, and the shape of the result may "
        "differ between ranks.",
    )
    operation = native.ops().tfring_reducescatter_start
    return _start(operation, x=tensors, **_attributes(**reduction))


def start_scatter_in_place(
    tensors: Sequence[tf.Tensor], **reduction: Unpack[Reduction]
) -> Started:
    """Starts a reducescatter with results in the shapes of the tensors.

    Only this rank's share of a result is defined. All ranks' shares have the
    same multiple of 16 elements, whatever the shape, and the last ones have
    the rest. All shapes are static, so that it can be traced for XLA.
    """
    operation = native.ops().tfring_scatter_in_place_start
    return _start(operation, x=tensors, **_attributes(**reduction))


def start_gather_in_place(
    tensors: Sequence[tf.Tensor], **common: Unpack[Common]
) -> Started:
    """Starts an allgather of the shares that the ranks have of whole tensors.

    `start_scatter_in_place` returns such shares. The rest of the tensors is
    ignored.
    """
    return _start(
        native.ops().tfring_gather_in_place_start, x=tensors, **common
    )


def start_gather_shares(
    shares: Sequence[tf.Tensor],
    *,
    shapes: Sequence[tuple[int, ...]],
    begins: Sequence[int],
    **common: Unpack[Common],
) -> Started:
    """Starts an allgather of this rank's shares, which are flat.

    Args:
        shares: This rank's shares, cut as for `start_gather_in_place`.
        shapes: The shapes of the whole tensors, which are the results.
        begins: The index of each share's first element in the whole tensor.
        **common: See `Common`.
    """
    return _start(
        native.ops().tfring_gather_shares_start,
        x=shares,
        shapes=shapes,
        begins=begins,
        counts=[int(share.shape[0]) for share in shares],
        **common,
    )


def finish(started: Started) -> list[tf.Tensor]:
    """Returns the results of one of the starts above."""
    done = native.ops().tfring_done(
        buf=started.tensors, **inputs_of_done(started)
    )
    keep_done(done.ended)
    return list(done.y)


def after_start(tensor: tf.Tensor, started: Started) -> tf.Tensor:
    """Returns a tensor of floats unchanged, once a start has run."""
    # It runs on the tensor's device, and depends on nothing else.
    with tf.control_dependencies(None), tf.device(tensor.device or None):
        return native.ops().tfring_after_start(x=tensor, handle=started.handle)


def start_allgather(
    tensors: Sequence[tf.Tensor], **common: Unpack[Common]
) -> Started:
    """Starts an allgather of rows."""
    _refuse_xla(f"allgather of '{common['request_name']}'", _NO_STATIC_SHAPES)
    return _start(native.ops().tfring_allgather_start, x=tensors, **common)


def finish_allgather(started: Started) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Returns the results, and how many ranks have not joined, as int64."""
    done = _done_of_rows(native.ops().tfring_allgather_done, started)
    return list(done.y), done.contributors


def start_alltoall(
    tensors: Sequence[tf.Tensor], splits: tf.Tensor, **common: Unpack[Common]
) -> Started:
    """Starts an alltoall of rows.

    `splits`, of int64, has the number of rows of each tensor for each rank. If
    it is empty, all ranks get equally many.
    """
    _refuse_xla(f"alltoall of '{common['request_name']}'", _NO_STATIC_SHAPES)
    operation = native.ops().tfring_alltoall_start
    return _start(operation, x=tensors, splits=splits, **common)


def finish_alltoall(started: Started) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Returns the results, and the int64 number of rows from each rank."""
    done = _done_of_rows(native.ops().tfring_alltoall_done, started)
    return list(done.y), done.received_splits


def barrier(request_name: str, process_set: ProcessSet) -> Any:
    """Waits for all ranks of the set, and returns the operation of its done."""
    _refuse_xla(f"barrier '{request_name}'", _NO_ORDER)
    started = _start(
        native.ops().tfring_barrier_start,
        request_name=request_name,
        process_set=process_set,
    )
    return native.ops().tfring_barrier_done(**inputs_of_done(started))


def join() -> tf.Tensor:
    """Joins: waits until all ranks have, and returns the last, as int64."""
    _refuse_xla("join", _NO_ORDER)
    operation = native.ops().tfring_join_start
    started = _start(operation, request_name="join")
    return native.ops().tfring_join_done(**inputs_of_done(started))


def _attributes(
    op: ReduceOp,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    **others: Any,
) -> dict[str, Any]:
    """Returns the arguments of `_start` for those of a `Reduction`."""
    return {
        "reduce_op": op.value,
        # As text, the attribute keeps all 64 bits; see `DoubleAttribute` in
        # tf/request.cc.
        "prescale_factor": repr(float(prescale_factor)),
        "postscale_factor": repr(float(postscale_factor)),
        **others,
    }


def _start(
    operation: Callable[..., Any],
    *,
    request_name: str,
    previous: Started | None = None,
    last: bool = True,
    process_set: ProcessSet = global_process_set,
    **own: Any,
) -> Started:
    """Calls the operation of a start; `own` are inputs that only it has."""
    process_set_id = checked_id(process_set)
    result = operation(
        prev=handle_before(previous),
        request_name=request_name,
        process_set_id=process_set_id,
        **own,
    )
    # A start in place also returns its buffers.
    tensors, handle = (
        result if isinstance(result, tuple) else (own.get("x", ()), result)
    )
    count_start()
    chain = Chain() if previous is None else previous.chain
    chain.add(handle, last=last)
    return Started(handle, chain, process_set_id, request_name, tensors)


def _done_of_rows(operation: Callable[..., Any], started: Started) -> Any:
    return operation(
        x=started.tensors,
        request_name=started.request_name,
        process_set_id=started.process_set_id,
        **inputs_of_done(started),
    )


def _refuse_xla(what: str, why: str) -> None:
    if traced_for_xla():
        raise NotImplementedError(
            f"{what}: {why} Call it outside of jit_compile=True."
        )
