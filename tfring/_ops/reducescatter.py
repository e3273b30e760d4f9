"""reducescatter and grouped_reducescatter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfring._core.process_sets import ProcessSet, global_process_set
from tfring._ops import gradients as gradients  # registers them
from tfring._ops.arguments import (
    check_process_set,
    check_reduction,
    check_rows,
    check_rows_kept,
    checked_compression,
    checked_factor,
    checked_name,
    checked_tensor,
    checked_tensors,
)
from tfring._ops.autograph import not_converted
from tfring._ops.chains import start_reducescatter
from tfring._ops.compression import (
    AnyCompressor,
    Compression,
    compress,
    decompress,
)
from tfring._ops.devices import checked_device, on_device
from tfring._ops.integer_averages import Reduction
from tfring._ops.reductions import ReduceOp


@not_converted
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: AnyCompressor = Compression.none,
    op: ReduceOp = ReduceOp.Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """Reduces a tensor over all ranks; every rank gets some rows of the result.

    It has half the traffic of an `allreduce`. Use it if each rank needs only a
    part of the result.

    Collective: every rank must call it, with the same dtype, shape, `op`,
    factors, `compression` and `name`. Not supported under `jit_compile=True`.

    Its gradient is the gathered gradients of all ranks, times
    `prescale_factor`, `postscale_factor` and, for `Sum`, `size()`, as in
    Horovod. The exact gradient of the sum of the ranks' losses would be this
    divided by `size()`. So `reducescatter` followed by `allgather` has the
    gradient of `allreduce`.

    The arguments are those of `allreduce`, except that `tensor` has at least
    one dimension and is no `tf.IndexedSlices`, and that a compressor of your
    own must keep the rows.

    Returns:
        This rank's rows of the result of `allreduce`: the first rows for rank
        0, the next rows for rank 1, and so on. All ranks get equally many rows.
        If the rows cannot be split evenly, the first `tensor.shape[0] % size()`
        ranks get one more.

    Raises:
        NotImplementedError: It is being traced for XLA.
        TypeError: As for `allreduce`.
        ValueError: `tensor` is a scalar, or as for `allreduce`.
        tf.errors.FailedPreconditionError: The ranks did not agree.

    Example:
    ```python
    import tensorflow as tf
    import tfring

    tfring.init()
    rows = tf.range(2 * tfring.size())
    mine = tfring.reducescatter(rows, op=tfring.Max)
    assert mine.numpy().tolist() == [2 * tfring.rank(), 2 * tfring.rank() + 1]
    ```
    """
    checked_device("reducescatter", "device_dense", device_dense)
    with on_device(device_dense):
        [result] = _scatter(
            "reducescatter",
            [tensor],
            compression=compression,
            op=op,
            name=name,
            ignore_name_scope=ignore_name_scope,
            process_set=process_set,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
        )
    return result


@not_converted
def grouped_reducescatter(
    tensors: Iterable[Any],
    device_dense: str = "",
    compression: AnyCompressor = Compression.none,
    op: ReduceOp = ReduceOp.Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    ignore_name_scope: bool = False,
) -> list[tf.Tensor]:
    """Reduces and scatters several tensors, grouped by dtype.

    It is faster than as many calls of `reducescatter`, and equivalent to them.
    `tensors` is a list of tensors, of any dtypes and numbers of rows. All other
    arguments, and the errors, are those of `reducescatter`.

    Collective: every rank must call it, with the same number of tensors and
    the same dtypes, shapes, `op`, factors, `compression` and `name`.

    Returns:
        The results, in the order of `tensors`; an empty list for no tensors.

    Example:
    ```python
    import tensorflow as tf
    import tfring

    tfring.init()
    rows = tf.ones([tfring.size(), 3])
    weights, counts = tfring.grouped_reducescatter(
        [rows, tf.cast(rows, tf.int32)], op=tfring.Sum
    )
    assert counts.numpy().tolist() == [[tfring.size()] * 3]
    ```
    """
    tensors = checked_tensors("grouped_reducescatter", tensors)
    checked_device("grouped_reducescatter", "device_dense", device_dense)
    with on_device(device_dense):
        return _scatter(
            "grouped_reducescatter",
            tensors,
            compression=compression,
            op=op,
            name=name,
            ignore_name_scope=ignore_name_scope,
            process_set=process_set,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
        )


def _scatter(
    function: str,
    tensors: Sequence[Any],
    *,
    compression: AnyCompressor,
    op: ReduceOp,
    name: str | None,
    ignore_name_scope: bool,
    process_set: ProcessSet,
    prescale_factor: float,
    postscale_factor: float,
) -> list[tf.Tensor]:
    check_process_set(function, process_set)
    prescale_factor = checked_factor(function, prescale_factor)
    postscale_factor = checked_factor(function, postscale_factor)
    compression = checked_compression(function, compression, process_set)
    tensors = [checked_tensor(function, tensor) for tensor in tensors]
    for tensor in tensors:
        check_reduction(function, op, tensor.dtype)
        check_rows(function, tensor)
    if not tensors:
        return []
    name = checked_name("reducescatter", name, ignore_name_scope, process_set)
    compressed = [compress(function, compression, t) for t in tensors]
    for tensor, (travels, _) in zip(tensors, compressed, strict=True):
        check_reduction(function, op, travels.dtype)
        check_rows_kept(function, compression, tensor, travels)
    is_single = function == "reducescatter"
    reduction = Reduction(
        op,
        prescale_factor,
        postscale_factor,
        [travels for travels, _ in compressed],
        [name if is_single else f"tensor {i}" for i in range(len(tensors))],
        # reducescatter fails once a rank has joined.
        rank_count=process_set.size(),
    )
    results = reduction.run(start_reducescatter, name, process_set)
    return [
        _with_known_rows(
            decompress(function, compression, result, context, tensor.dtype),
            tensor,
            process_set,
        )
        for result, (_, context), tensor in zip(
            results, compressed, tensors, strict=True
        )
    ]


def _with_known_rows(
    result: tf.Tensor, tensor: tf.Tensor, process_set: ProcessSet
) -> tf.Tensor:
    if tensor.shape.rank is not None and tensor.shape[0] is not None:
        rows, more = divmod(tensor.shape[0], process_set.size())
        rows += process_set.rank() < more
        result.set_shape([rows, *tensor.shape[1:]])
    return result
