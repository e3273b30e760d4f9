"""Collectives on tensors: every rank calls them, and all get the result.

They work eagerly, in a `tf.function` and, but for `allgather`, under
`jit_compile=True`, and they have gradients. Ranks may reach collectives of
different names in different orders.

When ranks disagree on a collective, in dtype, shape or anything else, every one
of them gets the same `tf.errors.FailedPreconditionError`, which says who
brought what; the job may go on afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfring import _gradients as _gradients  # registers them
from tfring import _runtime
from tfring._arguments import (
    check_reduction,
    check_root_rank,
    checked_factor,
    checked_name,
    checked_tensor,
)
from tfring.chains import SUPPORTED_DTYPES as SUPPORTED_DTYPES
from tfring.chains import ReduceOp as ReduceOp
from tfring.chains import Started as Started
from tfring.chains import finish as finish
from tfring.chains import finish_allgather, start_allgather, traced_for_xla
from tfring.chains import start_allreduce as start_allreduce
from tfring.chains import start_broadcast as start_broadcast
from tfring.compression import Compression
from tfring.compression import checked as _checked_compression

Average = ReduceOp.Average
Sum = ReduceOp.Sum
Min = ReduceOp.Min
Max = ReduceOp.Max
Product = ReduceOp.Product


def allreduce(
    tensor: Any,
    *,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: Compression = Compression.none,
    name: str | None = None,
) -> Any:
    """Reduces a tensor over all ranks; every rank gets the same bits.

    Collective: every rank must call it, with the same dtype, shape, `op`,
    factors, `compression` and `name`.

    `tf.IndexedSlices` are gathered, not added up: the result has the slices of
    every rank. Under `jit_compile=True` they are made dense.

    Args:
        tensor: A tensor of any shape, or what `tf.convert_to_tensor` makes
            one of. Floating-point, integer or, but for `Average`, bool. Or
            `tf.IndexedSlices`, for `Average` and `Sum`.
        op: `tfring.Average`, `Sum`, `Min`, `Max` or `Product`. The average of
            integers is rounded towards zero.
        prescale_factor: Multiplies the tensor before the reduction.
        postscale_factor: Multiplies the result.
        compression: `tfring.Compression.none`, `fp16` or `bf16`: in which dtype
            larger floats travel, and are reduced.
        name: Identifies the call, and names the tensor in errors. By default
            it comes from the order of calls, which must then be the same on
            all ranks.

    Returns:
        A tensor like `tensor`, or `tf.IndexedSlices`.

    Raises:
        TypeError: The dtype is not supported, or an argument is of a wrong
            type.
        ValueError: There is no such reduction of this tensor, or `init` has
            not been called.
        tf.errors.FailedPreconditionError: The ranks did not agree.

    Example:
    ```python
    import tensorflow as tf
    import tfring

    tfring.init()
    total = tfring.allreduce(tf.ones([3]), op=tfring.Sum)
    assert total.numpy().tolist() == [tfring.size()] * 3
    ```
    """
    prescale_factor = checked_factor("allreduce", prescale_factor)
    postscale_factor = checked_factor("allreduce", postscale_factor)
    compression = _compression("allreduce", compression)
    if isinstance(tensor, tf.IndexedSlices) and not traced_for_xla():
        return _allreduce_slices(
            tensor,
            op=op,
            factor=prescale_factor * postscale_factor,
            compression=compression,
            name=name,
        )
    tensor = checked_tensor("allreduce", tensor)
    check_reduction("allreduce", op, tensor.dtype)
    name = checked_name("allreduce", name)
    tensor, dtype = compression.compress(tensor)
    buffers, started = start_allreduce(
        [tensor],
        request_name=name,
        tensor_names=[name],
        previous=None,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )
    [result] = finish(buffers, started)
    return compression.decompress(result, dtype)


def grouped_allreduce(
    tensors: Iterable[Any],
    *,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: Compression = Compression.none,
    name: str | None = None,
) -> list[tf.Tensor]:
    """Reduces several tensors over all ranks, those of one dtype together.

    Faster than as many calls of `allreduce`.

    Collective: every rank must call it, with the same number of tensors and
    the same dtypes, shapes, `op`, factors, `compression` and `name`.

    Args:
        tensors: As for `allreduce`; dtypes may be mixed. `tf.IndexedSlices` are
            made dense.
        op: As for `allreduce`.
        prescale_factor: As for `allreduce`.
        postscale_factor: As for `allreduce`.
        compression: As for `allreduce`.
        name: As for `allreduce`.

    Returns:
        The results, in the order of `tensors`.

    Raises:
        TypeError: As for `allreduce`.
        ValueError: As for `allreduce`, or there are no tensors.
        tf.errors.FailedPreconditionError: The ranks did not agree.

    Example:
    ```python
    import tensorflow as tf
    import tfring

    tfring.init()
    loss, count = tfring.grouped_allreduce(
        [tf.constant(0.5), tf.constant(32)], op=tfring.Sum
    )
    assert count == 32 * tfring.size()
    ```
    """
    if isinstance(tensors, tf.Tensor | tf.IndexedSlices | tf.Variable):
        raise TypeError(
            "grouped_allreduce takes a list of tensors, got a single "
            f"{type(tensors).__name__}. Use allreduce for it."
        )
    tensors = [checked_tensor("grouped_allreduce", t) for t in tensors]
    if not tensors:
        raise ValueError("grouped_allreduce: the list of tensors is empty.")
    prescale_factor = checked_factor("grouped_allreduce", prescale_factor)
    postscale_factor = checked_factor("grouped_allreduce", postscale_factor)
    compression = _compression("grouped_allreduce", compression)
    dtypes = [tensor.dtype for tensor in tensors]
    positions: dict[tf.DType, list[int]] = {}
    for position, tensor in enumerate(tensors):
        check_reduction("grouped_allreduce", op, tensor.dtype)
        tensors[position], _ = compression.compress(tensor)
        positions.setdefault(tensors[position].dtype, []).append(position)

    name = checked_name("allreduce", name)
    request_name = name
    started: Started | None = None
    in_flight = []
    for group, (dtype, of_dtype) in enumerate(positions.items()):
        if name and group > 0:
            request_name = f"{name}/{dtype.name}"
        buffers, started = start_allreduce(
            [tensors[position] for position in of_dtype],
            request_name=request_name,
            tensor_names=[f"tensor {position}" for position in of_dtype],
            previous=started,
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            last=group == len(positions) - 1,
        )
        in_flight.append((of_dtype, buffers, started))
    for of_dtype, buffers, started in in_flight:
        for position, result in zip(
            of_dtype, finish(buffers, started), strict=True
        ):
            tensors[position] = compression.decompress(result, dtypes[position])
    return tensors


def allgather(tensor: Any, *, name: str | None = None) -> tf.Tensor:
    """Concatenates the tensors of all ranks along their first dimension.

    Collective: every rank must call it, with the same dtype, `name` and
    dimensions but for the first, which may differ and may be 0. Not supported
    under `jit_compile=True`, where shapes are static.

    Args:
        tensor: A tensor with at least one dimension, of a dtype that
            `allreduce` takes.
        name: As for `allreduce`.

    Returns:
        The rows of rank 0, then those of rank 1, and so on.

    Raises:
        NotImplementedError: It is being traced for XLA.
        TypeError: The dtype is not supported.
        ValueError: `tensor` is a scalar, or `init` has not been called.
        tf.errors.FailedPreconditionError: The ranks did not agree.

    Example:
    ```python
    import tensorflow as tf
    import tfring

    tfring.init()
    ranks = tfring.allgather(tf.constant([tfring.rank()]))
    assert ranks.numpy().tolist() == list(range(tfring.size()))
    ```
    """
    tensor = checked_tensor("allgather", tensor)
    if tensor.shape.rank == 0:
        raise ValueError(
            "allgather: a scalar has no first dimension to gather along. Pass "
            "a tensor of shape (1,)."
        )
    name = checked_name("allgather", name)
    started = start_allgather(
        [tensor], request_name=name, tensor_names=[name], previous=None
    )
    [result] = finish_allgather([tensor], started, request_name=name)
    return result


def broadcast(
    tensor: Any, root_rank: int, *, name: str | None = None
) -> tf.Tensor:
    """Gives every rank the tensor of one of them.

    Collective: every rank must call it, with the same dtype, shape,
    `root_rank` and `name`.

    Args:
        tensor: A tensor of a dtype that `allreduce` takes. On other ranks than
            the root only its dtype and shape count.
        root_rank: Whose tensor it is, from 0 to `size() - 1`.
        name: As for `allreduce`.

    Returns:
        The tensor of `root_rank`.

    Raises:
        TypeError: The dtype is not supported, or `root_rank` is no integer.
        ValueError: There is no such rank, or `init` has not been called.
        tf.errors.FailedPreconditionError: The ranks did not agree.

    Example:
    ```python
    import tensorflow as tf
    import tfring

    tfring.init()
    seed = tfring.broadcast(tf.constant(100 + tfring.rank()), 0)
    assert seed == 100
    ```
    """
    tensor = checked_tensor("broadcast", tensor)
    check_root_rank("broadcast", root_rank)
    name = checked_name("broadcast", name)
    buffers, started = start_broadcast(
        [tensor],
        request_name=name,
        tensor_names=[name],
        previous=None,
        root_rank=root_rank,
    )
    [result] = finish(buffers, started)
    return result


def _allreduce_slices(
    slices: tf.IndexedSlices,
    *,
    op: ReduceOp,
    factor: float,
    compression: Compression,
    name: str | None,
) -> tf.IndexedSlices:
    values = checked_tensor("allreduce", slices.values)
    indices = checked_tensor("allreduce", slices.indices)
    check_reduction("allreduce", op, values.dtype)
    if op not in (Average, Sum):
        raise ValueError(
            "allreduce: tf.IndexedSlices can be reduced with Average or Sum, "
            f"got {op.name}. Pass tf.convert_to_tensor(slices)."
        )
    name = checked_name("allreduce", name)
    values, dtype = compression.compress(values)
    indices_name = f"{name}/indices" if name else ""
    values_started = start_allgather(
        [values],
        request_name=name,
        tensor_names=[name],
        previous=None,
        last=False,
    )
    indices_started = start_allgather(
        [indices],
        request_name=indices_name,
        tensor_names=[indices_name],
        previous=values_started,
    )
    [all_values] = finish_allgather([values], values_started, request_name=name)
    [all_indices] = finish_allgather(
        [indices], indices_started, request_name=indices_name
    )
    all_values = compression.decompress(all_values, dtype)
    if op is Average:
        factor /= _runtime.size()
    return tf.IndexedSlices(
        _scaled(all_values, factor), all_indices, slices.dense_shape
    )


def _scaled(tensor: tf.Tensor, factor: float) -> tf.Tensor:
    if factor == 1:
        return tensor
    # As the engine does it: half floats in float32, integers in float64.
    half = tensor.dtype in (tf.float16, tf.bfloat16, tf.float32)
    wide = tf.float32 if half else tf.float64
    return tf.cast(
        tf.cast(tensor, wide) * tf.constant(factor, wide), tensor.dtype
    )


def _compression(function: str, compression: Any) -> Compression:
    compression = _checked_compression(function, compression)
    # One rank sends nothing, and keeps all its bits.
    return Compression.none if _runtime.size() == 1 else compression
