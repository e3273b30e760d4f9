"""Gradients of the collectives; importing it registers them.

The gradient of received data is sent back to the ranks that sent the data. So
each gradient is itself a collective, and all ranks must compute it.

Note [Whose loss]: the factors are Horovod's, so that a ported script trains as
before. The gradients of allreduce and alltoall are exact for the sum of the
ranks' losses. The result of allgather and broadcast counts as one replicated
tensor: its gradient is the average of the ranks' gradients. That is the exact
gradient divided by `size()`. The gradient of reducescatter is `size()` times
the exact one. So a reducescatter followed by an allgather has the gradient of
an allreduce.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfring._core import runtime
from tfring._core.process_sets import ProcessSet, by_id
from tfring._ops import chains
from tfring._ops.arguments import own_name
from tfring._ops.reductions import ReduceOp

tf.no_gradient("TfringAllgatherStart")
tf.no_gradient("TfringAlltoallStart")


@tf.RegisterGradient("TfringDone")
def _done_gradient(op: Any, *gradients: Any) -> list[Any]:
    del op
    return [*gradients[:-1], None, None]


@tf.RegisterGradient("TfringAfterStart")
def _after_start_gradient(op: Any, gradient: Any) -> list[Any]:
    del op
    return [gradient, None]


@tf.RegisterGradient("TfringAllreduceStart")
def _allreduce_gradient(op: Any, *gradients: Any) -> list[Any]:
    reduced = _allreduce(
        op,
        gradients[:-1],
        reduce_op=_differentiable("allreduce", op),
        prescale_factor=float(_text_attr(op, "prescale_factor")),
        postscale_factor=float(_text_attr(op, "postscale_factor")),
        wire_dtype=op.get_attr("wire_dtype"),
    )
    return [*reduced, None]


@tf.RegisterGradient("TfringAllreduce")
def _eager_allreduce_gradient(op: Any, gradient: Any) -> tf.Tensor:
    [reduced, _] = _allreduce_gradient(_AsStart(op), gradient, None)
    return reduced


class _AsStart:
    """The operation of an eager allreduce, with the attributes of a start."""

    def __init__(self, op: Any) -> None:
        self.outputs = op.outputs
        self._attributes = chains.attributes_of_allreduce(
            _text_attr(op, "request")
        )

    def get_attr(self, name: str) -> Any:
        return self._attributes[name]


@tf.RegisterGradient("TfringReducescatterStart")
def _reducescatter_gradient(op: Any, *gradients: Any) -> list[Any]:
    reduce_op = _differentiable("reducescatter", op)
    factor = float(_text_attr(op, "prescale_factor"))
    factor *= float(_text_attr(op, "postscale_factor"))
    if reduce_op is ReduceOp.Sum:  # see Note [Whose loss]
        factor *= _process_set(op).size()
    shares = _dense(op, gradients[:-1])
    started = chains.start_allgather(shares, **_request(op, shares))
    gathered, _ = chains.finish_allgather(started)
    result = []
    for tensor, whole in zip(op.inputs, gathered, strict=False):
        whole.set_shape(tensor.shape)
        if factor != 1:
            scaled = tf.cast(whole, tf.float64) * factor  # as the engine does
            whole = tf.cast(scaled, whole.dtype)
        result.append(whole)
    return [*result, None]


@tf.RegisterGradient("TfringAlltoallDone")
def _alltoall_gradient(op: Any, *gradients: Any) -> list[Any]:
    # Each row's gradient is sent back to the rank that sent the row.
    rows = _dense(op, gradients[:-1])
    started = chains.start_alltoall(rows, op.outputs[-1], **_request(op, rows))
    result, _ = chains.finish_alltoall(started)
    for tensor, own in zip(op.inputs, result, strict=False):
        own.set_shape(tensor.shape)
    return [*result, None, None]


@tf.RegisterGradient("TfringBroadcastStart")
def _broadcast_gradient(op: Any, *gradients: Any) -> list[Any]:
    means = _allreduce(op, gradients[:-1], reduce_op=ReduceOp.Average)
    if runtime.rank() != op.get_attr("root_rank"):
        # Zeros that depend on the reduction: a TensorFlow 1 session that
        # fetches them takes part in it.
        with tf.control_dependencies(means):
            means = [tf.zeros_like(gradient) for gradient in means]
    return [*means, None]


@tf.RegisterGradient("TfringAllgatherDone")
def _allgather_gradient(op: Any, *gradients: Any) -> list[Any]:
    gradients = gradients[:-1]  # The list of contributors has no gradient.
    inputs = op.inputs[: len(gradients)]
    means = _allreduce(op, gradients, reduce_op=ReduceOp.Average)
    # `contributors` has a row for each rank that has not joined: the rank, and
    # the number of its rows in each result.
    rank = _process_set(op).rank()
    own_rows = [tf.shape(tensor, tf.int64)[0] for tensor in inputs]
    ranked = tf.stack([tf.constant(rank, tf.int64), *own_rows])[tf.newaxis]
    name = _gradient_name(op)
    rows_name = f"{name}/rows" if name else ""
    started = chains.start_allgather(
        [ranked],
        request_name=rows_name,
        tensor_names=[rows_name],
        process_set=_process_set(op),
    )
    [ranks], _ = chains.finish_allgather(started)
    before = tf.boolean_mask(ranks, ranks[:, 0] < rank)
    begins = tf.reduce_sum(before[:, 1:], axis=0)
    result = []
    for i, tensor in enumerate(inputs):
        own = means[i][begins[i] : begins[i] + own_rows[i]]
        own.set_shape(tensor.shape)
        result.append(own)
    return [*result, None, None]


def _differentiable(kind: str, op: Any) -> ReduceOp:
    reduce_op = ReduceOp(_text_attr(op, "reduce_op"))
    if reduce_op not in (ReduceOp.Average, ReduceOp.Sum):
        name = _text_attr(op, "request_name")
        what = f"{kind} of '{name}'" if name else kind
        raise NotImplementedError(
            f"{what}: only Average "
            f"and Sum have a gradient, and op is {reduce_op.name}. Use "
            "tf.stop_gradient on the result if none is wanted."
        )
    return reduce_op


def _allreduce(
    op: Any,
    gradients: Sequence[Any],
    *,
    reduce_op: ReduceOp,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    wire_dtype: tf.DType | None = None,
) -> list[tf.Tensor]:
    tensors = _dense(op, gradients)
    started = chains.start_allreduce(
        tensors,
        op=reduce_op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        wire_dtype=wire_dtype,
        **_request(op, tensors),
    )
    return chains.finish(started)


def _dense(op: Any, gradients: Sequence[Any]) -> list[tf.Tensor]:
    """Makes gradients of the first outputs of `op` dense, in their dtypes.

    Some gradients may be None or tf.IndexedSlices. They have another dtype if
    the caller passed such `grad_ys` or `output_gradients`.
    """
    return [
        tf.zeros_like(output)
        if gradient is None
        else tf.cast(tf.convert_to_tensor(gradient), output.dtype)
        for gradient, output in zip(gradients, op.outputs, strict=False)
    ]


def _request(op: Any, tensors: Sequence[tf.Tensor]) -> chains.Common:
    """Returns arguments of the start of the gradient of `op`."""
    return {
        "request_name": _gradient_name(op),
        "tensor_names": [f"tensor {i}" for i in range(len(tensors))],
        "process_set": _process_set(op),
    }


def _gradient_name(op: Any) -> str:
    name = _text_attr(op, "request_name")
    if not name:
        return ""  # an eager gradient of an eager op
    # A graph may hold more than one gradient of an op.
    return own_name(f"{name}/gradient", _process_set(op))


def _process_set(op: Any) -> ProcessSet:
    return by_id(op.get_attr("process_set_id"))


def _text_attr(op: Any, name: str) -> str:
    return str(tf.compat.as_str(op.get_attr(name)))
