"""Compression of tensors before they travel, and back.

`Compression.fp16` and `bf16` send half of the bytes, or a quarter of them;
users can add compressors of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfring._ops.reductions import SUPPORTED_DTYPES, ReduceOp


class Compressor:
    """Base class of compressors: what travels in place of a tensor.

    Derive from it for a compression of your own, and pass the class, or an
    instance of it, wherever `compression` is an argument. The ranks reduce the
    tensor that `compress` returns: from tensors of one dtype and shape it must
    make such of one dtype and shape on every rank. It is called in graphs and
    under `jit_compile=True`, too, so it consists of TensorFlow's operations.

    `tf.IndexedSlices` are gathered, and reduced where they arrive. They travel
    as they are, but for `Compression.fp16` and `bf16`. On one rank nothing
    travels, and no compressor is called.

    Example:

    ```python
    import tensorflow as tf
    import tfring
    from tfring.compression import Compressor

    class FixedPoint(Compressor):
        # To thousandths, in integers: the sum has the same bits in any order.
        @staticmethod
        def compress(tensor):
            return tf.cast(tf.round(tensor * 1000), tf.int32), tensor.dtype

        @staticmethod
        def decompress(tensor, ctx):
            return tf.cast(tensor, ctx) / 1000

    tfring.init()
    total = tfring.allreduce(
        tf.fill([3], 0.25), op=tfring.Sum, compression=FixedPoint
    )
    assert total.numpy().tolist() == [0.25 * tfring.size()] * 3
    ```
    """

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Makes of a tensor what travels.

        Args:
            tensor: A tensor of any dtype and shape.

        Returns:
            A tensor of a dtype that `tfring.allreduce` takes, and anything that
            `decompress` needs.
        """
        raise NotImplementedError("A Compressor must have its own compress.")

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """Makes of what has travelled a tensor as it was before.

        Args:
            tensor: The reduction of the tensors that `compress` returned.
            ctx: The context that `compress` returned with its tensor.

        Returns:
            A tensor of the dtype and shape of that before `compress`.
        """
        raise NotImplementedError("A Compressor must have its own decompress.")


class NoneCompressor(Compressor):
    """Changes nothing."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Returns `tensor` itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """Returns `tensor` itself."""
        return tensor


class _Cast(Compressor):
    wire: tf.DType

    @classmethod
    def wire_dtype(cls, dtype: tf.DType) -> tf.DType:
        """Returns the dtype in which tensors of `dtype` travel."""
        is_larger = dtype.is_floating and dtype.size > cls.wire.size
        return cls.wire if is_larger else dtype

    @classmethod
    def compress(cls, tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Casts floats that are larger than the wire's."""
        return tf.cast(tensor, cls.wire_dtype(tensor.dtype)), tensor.dtype

    @classmethod
    def decompress(cls, tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """Casts back to the dtype `ctx`."""
        return tf.cast(tensor, ctx)


class FP16Compressor(_Cast):
    """Casts float32 and float64 to float16."""

    wire = tf.float16


class BF16Compressor(_Cast):
    """Casts float32 and float64 to bfloat16."""

    wire = tf.bfloat16


class Compression:
    """The compressors of tfring, which make floats smaller on the wire.

    A tensor is rounded to the dtype of the wire, reduced in it, and cast back.
    That concerns floats that are larger than the wire's: float32 and float64.
    All other tensors travel as they are. Must agree across ranks.

    An allreduce is cast by the engine, block by block, as it copies: that takes
    no memory of a tensor's size. All else is cast by TensorFlow's operations.

    Worth it where the network is the limit. Inside one machine casting, and
    adding float16 above all, may take longer than what it saves.

    Each addition on the way is done in float32 and rounded to the dtype of the
    wire, and so are scale factors and the division of an average. Over n ranks
    a sum or an average has, to first order, an error of at most (n + 1) u times
    the sum or the average of the absolute values; u is `2**-11` for `fp16` and
    `2**-8` for `bf16`. All ranks still get the same bits. On one rank nothing
    travels, and nothing is rounded.

    For another way of your own see `tfring.compression.Compressor`.

    Attributes:
        none: Nothing is changed.
        fp16: float16. A value over 65504, even a sum on its way to an average,
            becomes infinite (see `gradient_predivide_factor` of
            `tfring.DistributedOptimizer`); below 6e-5 precision is lost.
        bf16: bfloat16. The range of float32, with 8 bits of precision.

    Example:

    ```python
    import tensorflow as tf
    import tfring

    tfring.init()
    mean = tfring.allreduce(
        tf.fill([1000], 0.5), compression=tfring.Compression.fp16
    )
    assert mean.dtype == tf.float32
    ```
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


# A subclass, as Horovod's are passed, or an instance, which can have a state.
AnyCompressor = type[Compressor] | Compressor


def checked(function: str, compression: Any) -> AnyCompressor:
    """Returns it, or raises TypeError in the name of a function."""
    for method in "compress", "decompress":
        if not callable(getattr(compression, method, None)):
            raise TypeError(
                f"{function}: compression must be one of tfring.Compression."
                "none, fp16 and bf16, or a tfring.compression.Compressor of "
                f"your own, got {compression!r}, which has no {method}."
            )
    compressor: AnyCompressor = compression
    return compressor


def split_engine_cast(
    compression: AnyCompressor, op: ReduceOp
) -> tuple[AnyCompressor, Callable[[tf.DType], tf.DType]]:
    """Splits an allreduce's compression between the engine and TensorFlow.

    The engine casts as it copies, which saves two passes over each tensor; but
    not for Adasum, which is computed where the tensors are.

    Returns:
        The compressor for what is left to do, and in which dtype the engine
        must let tensors of a dtype travel.
    """
    kind = compression if isinstance(compression, type) else type(compression)
    if kind in (FP16Compressor, BF16Compressor) and op is not ReduceOp.Adasum:
        return NoneCompressor, kind.wire_dtype
    return compression, lambda dtype: dtype


def compressor_for_rows(compression: AnyCompressor) -> AnyCompressor:
    """Returns the compressor for the rows of `tf.IndexedSlices`.

    They meet those of other ranks, of which another compressor than a cast does
    not know: its context is of this rank's rows.
    """
    kind = compression if isinstance(compression, type) else type(compression)
    return compression if issubclass(kind, _Cast) else NoneCompressor


def compress(
    function: str, compression: AnyCompressor, tensor: tf.Tensor
) -> tuple[tf.Tensor, Any]:
    """Returns what travels of a tensor, and the context for `decompress`.

    Raises:
        TypeError: The compressor gives something that cannot travel.
    """
    if compression is NoneCompressor:
        return tensor, None
    pair = compression.compress(tensor)
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise TypeError(
            f"{function}: {compression!r}.compress must return a pair, of what "
            f"travels and of what decompress needs, got {pair!r}."
        )
    travels = tf.convert_to_tensor(pair[0])
    if travels.dtype not in SUPPORTED_DTYPES:
        raise TypeError(
            f"{function}: {compression!r}.compress gave a tensor of dtype "
            f"{travels.dtype.name}. Only floating-point numbers, integers and "
            "bool can travel."
        )
    return travels, pair[1]


def decompress(
    function: str,
    compression: AnyCompressor,
    travelled: tf.Tensor,
    context: Any,
    dtype: tf.DType,
) -> tf.Tensor:
    """Returns the tensor that has travelled in the dtype it had before.

    Raises:
        TypeError: The compressor gives another dtype.
    """
    if compression is NoneCompressor:
        return travelled
    tensor = tf.convert_to_tensor(compression.decompress(travelled, context))
    if tensor.dtype != dtype:
        raise TypeError(
            f"{function}: {compression!r}.decompress must give back "
            f"{dtype.name}, as it was before compress, got {tensor.dtype.name}."
        )
    return tensor
