"""alltoall: every rank sends rows to every rank."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfring._core.process_sets import ProcessSet, global_process_set
from tfring._ops import gradients as gradients  # registers them
from tfring._ops.arguments import (
    check_process_set,
    check_rows,
    checked_name,
    checked_tensor,
)
from tfring._ops.autograph import not_converted
from tfring._ops.chains import finish_alltoall, start_alltoall
from tfring._ops.errors import InvalidArgumentError


@not_converted
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Gives every rank the rows that each rank has for it.

    Collective: every rank must call it, with the same dtype, `name` and
    dimensions, except for the first one. Not supported under
    `jit_compile=True`, where shapes are static.

    Args:
        tensor: A tensor with at least one dimension, of a dtype that
            `allreduce` takes. It has the rows for rank 0, then the rows for
            rank 1, and so on.
        splits: An integer tensor of shape (`size()`,): the number of rows for
            each rank. Their sum is the number of all rows. May differ between
            ranks. By default all ranks get equally many.
        name: See `allreduce`.
        ignore_name_scope: See `allreduce`.
        process_set: See `allreduce`.

    Returns:
        The rows from rank 0, then the rows from rank 1, and so on. With
        `splits` a pair: these rows, and a tensor of shape (`size()`,) with the
        number of rows from each rank. Its dtype is int64 if the dtype of
        `splits` is, else int32.

    Raises:
        NotImplementedError: It is being traced for XLA.
        TypeError: The dtype is not supported, or `splits` are no integers.
        ValueError: `tensor` is a scalar, or `init` has not been called.
        tf.errors.InvalidArgumentError: The rows cannot be split evenly, or
            `splits` does not fit this tensor. It is also a `ValueError`, unless
            shapes or splits are known only when a graph runs.
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
    check_process_set("alltoall", process_set)
    tensor = checked_tensor("alltoall", tensor)
    check_rows("alltoall", tensor)
    if splits is not None:
        splits = tf.convert_to_tensor(splits)
    counts = _checked_splits(tensor, splits, process_set.size())
    name = checked_name("alltoall", name, ignore_name_scope, process_set)
    started = start_alltoall(
        [tensor],
        counts,
        request_name=name,
        tensor_names=[name],
        process_set=process_set,
    )
    [result], received = finish_alltoall(started)
    if splits is None:
        return result
    received.set_shape([process_set.size()])
    wide = splits.dtype.size > 4
    return result, received if wide else tf.cast(received, tf.int32)


def _checked_splits(
    tensor: tf.Tensor, splits: tf.Tensor | None, size: int
) -> tf.Tensor:
    rows = None if tensor.shape.rank is None else tensor.shape[0]
    if splits is None:
        if rows is not None and rows % size:
            raise InvalidArgumentError(
                f"alltoall: {rows} rows cannot be split evenly between {size} "
                "ranks. Pass splits=."
            )
        return tf.zeros([0], tf.int64)
    if not splits.dtype.is_integer:
        raise TypeError(
            "alltoall: splits must be integers, got a tensor of dtype "
            f"{splits.dtype.name}."
        )
    if not splits.shape.is_compatible_with([size]):
        raise InvalidArgumentError(
            f"alltoall: splits must have the shape ({size},), a number for "
            f"each rank, got {splits.shape}."
        )
    known = tf.get_static_value(splits)
    if known is not None and (
        (known < 0).any() or (rows is not None and known.sum() != rows)
    ):
        raise InvalidArgumentError(
            "alltoall: splits must be numbers of rows, none negative and "
            f"{'all' if rows is None else rows} in all, got {known.tolist()}."
        )
    return tf.cast(splits, tf.int64)
