"""Collectives in which every rank gets something of its own, or nothing.

As those of `tfring.collectives`, which every rank gets the same from.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfring import _runtime
from tfring._arguments import (
    check_reduction,
    checked_factor,
    checked_name,
    checked_tensor,
)
from tfring.chains import (
    ReduceOp,
    finish,
    finish_alltoall,
    finish_barrier,
    start_alltoall,
    start_barrier,
    start_reducescatter,
)


def reducescatter(
    tensor: Any,
    *,
    op: ReduceOp = ReduceOp.Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
) -> tf.Tensor:
    """Reduces a tensor over all ranks; every rank gets some rows of the result.

    Half the traffic of an `allreduce`, for when each rank goes on with a part.

    Collective: every rank must call it, with the same dtype, shape, `op`,
    factors and `name`. Not supported under `jit_compile=True`.

    Its gradient is an allgather, with the factors of `op`, `prescale_factor`
    and `postscale_factor`: for the sum of the losses of all ranks, as that of
    `allreduce` is. Horovod's is `size()` times that.

    Args:
        tensor: A tensor with at least one dimension; otherwise as for
            `allreduce`, but no `tf.IndexedSlices`.
        op: As for `allreduce`.
        prescale_factor: As for `allreduce`.
        postscale_factor: As for `allreduce`.
        name: As for `allreduce`.

    Returns:
        This rank's rows of what `allreduce` would return: the first for rank
        0, those behind them for rank 1, and so on. All ranks get equally many;
        where the rows cannot be shared out so, the first
        `tensor.shape[0] % size()` ranks get one more.

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
    prescale_factor = checked_factor("reducescatter", prescale_factor)
    postscale_factor = checked_factor("reducescatter", postscale_factor)
    tensor = checked_tensor("reducescatter", tensor)
    check_reduction("reducescatter", op, tensor.dtype)
    if tensor.shape.rank == 0:
        raise ValueError(
            "reducescatter: a scalar has no first dimension to share out. Pass "
            "a tensor with a row for each rank, or use allreduce."
        )
    name = checked_name("reducescatter", name)
    buffers, started = start_reducescatter(
        [tensor],
        request_name=name,
        tensor_names=[name],
        previous=None,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )
    [result] = finish(buffers, started)
    if tensor.shape.rank is not None and tensor.shape[0] is not None:
        rows, more = divmod(tensor.shape[0], _runtime.size())
        rows += _runtime.rank() < more
        result.set_shape([rows, *tensor.shape[1:]])
    return result


def alltoall(
    tensor: Any, splits: Any = None, *, name: str | None = None
) -> Any:
    """Gives every rank the rows that each rank has for it.

    Collective: every rank must call it, with the same dtype, `name` and
    dimensions but for the first. Not supported under `jit_compile=True`, where
    shapes are static.

    Args:
        tensor: A tensor with at least one dimension, of a dtype that
            `allreduce` takes. First in it are the rows for rank 0, behind them
            those for rank 1, and so on.
        splits: An integer tensor of shape (`size()`,): how many rows are for
            each rank, which are all rows. May differ between ranks. By
            default equally many.
        name: As for `allreduce`.

    Returns:
        The rows from rank 0, behind them those from rank 1, and so on. With
        `splits` a pair: that, and an int32 tensor of shape (`size()`,), how
        many rows came from each rank.

    Raises:
        NotImplementedError: It is being traced for XLA.
        TypeError: The dtype is not supported, or `splits` are no integers.
        ValueError: `tensor` is a scalar, the rows cannot be split evenly, the
            splits are not those of this tensor, or `init` has not been called.
        tf.errors.InvalidArgumentError: The same, where shapes or splits are
            not known before a graph is run.
        tf.errors.FailedPreconditionError: The ranks did not agree.

    Example:
    ```python
    import tensorflow as tf
    import tfring

    tfring.init()
    names = tf.fill([tfring.size()], tfring.rank())
    one_of_each = tfring.alltoall(names)
    assert one_of_each.numpy().tolist() == list(range(tfring.size()))
    ```
    """
    tensor = checked_tensor("alltoall", tensor)
    if tensor.shape.rank == 0:
        raise ValueError(
            "alltoall: a scalar has no first dimension to split. Pass a tensor "
            "with rows for each rank."
        )
    counts = _checked_splits(tensor, splits)
    name = checked_name("alltoall", name)
    started = start_alltoall(
        [tensor],
        counts,
        request_name=name,
        tensor_names=[name],
        previous=None,
    )
    [result], received = finish_alltoall([tensor], started, request_name=name)
    if splits is None:
        return result
    received.set_shape([_runtime.size()])
    return result, tf.cast(received, tf.int32)


def _checked_splits(tensor: tf.Tensor, splits: Any) -> tf.Tensor:
    size = _runtime.size()
    rows = None if tensor.shape.rank is None else tensor.shape[0]
    if splits is None:
        if rows is not None and rows % size:
            raise ValueError(
                f"alltoall: {rows} rows cannot be split evenly between {size} "
                "ranks. Pass splits=."
            )
        return tf.zeros([0], tf.int64)
    splits = tf.convert_to_tensor(splits)
    if not splits.dtype.is_integer:
        raise TypeError(
            "alltoall: splits must be integers, got a tensor of dtype "
            f"{splits.dtype.name}."
        )
    if not splits.shape.is_compatible_with([size]):
        raise ValueError(
            f"alltoall: splits must have the shape ({size},), a number for "
            f"each rank, got {splits.shape}."
        )
    known = tf.get_static_value(splits)
    if known is not None and (
        (known < 0).any() or (rows is not None and known.sum() != rows)
    ):
        raise ValueError(
            "alltoall: splits must be numbers of rows, none negative and "
            f"{'all' if rows is None else rows} in all, got {known.tolist()}."
        )
    return tf.cast(splits, tf.int64)


def barrier(*, name: str | None = None) -> Any:
    """Waits until every rank has come here.

    For what ranks do to each other without a collective: rank 0 writes a file,
    and the others read it behind the barrier.

    Collective: every rank must call it. In a `tf.function` it waits in its
    place among the collectives, variables, prints and files; what only computes
    may run before or after. Not supported under `jit_compile=True`.

    Args:
        name: As for `allreduce`.

    Returns:
        None; in a graph of TensorFlow 1, the operation to be run.

    Raises:
        NotImplementedError: It is being traced for XLA.
        TypeError: `name` is not a string.
        ValueError: `init` has not been called.
        tf.errors.FailedPreconditionError: The ranks did not agree.

    Example:
    ```python
    import tfring

    tfring.init()
    if tfring.rank() == 0:
        print("Rank 0 prepares something.")
    tfring.barrier()
    ```
    """
    _runtime.size()  # raises before init
    return finish_barrier(
        start_barrier(request_name=checked_name("barrier", name))
    )
