"""Compression of tensors before they are sent, and decompression.

`Compression.fp16` and `bf16` send half of the bytes, or a quarter of them;
users can add compressors of their own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfring._ops.reductions import SUPPORTED_DTYPES, ReduceOp


class Compressor:
    """Base class of compressors, which change tensors before they are sent.

    Derive from it for a compression of your own, and pass the class, or an
    instance of it, wherever `compression` is an argument. The ranks reduce the
    tensor that `compress` returns: for tensors of one dtype and shape its
    results must have one dtype and shape on every rank. It is also called in
    graphs and under `jit_compile=True`, so it must consist of TensorFlow
    operations.

    `tf.IndexedSlices` are gathered, and each rank reduces the rows that it
    receives. Only `Compression.fp16` and `bf16` compress them. A single rank
    sends nothing, and calls no compressor.

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
        """Compresses a tensor before it is sent.

        Args:
            tensor: A tensor of any dtype and shape.

        Returns:
            A tensor of a dtype that `tfring.allreduce` takes, and anything that
            `decompress` needs.
        """
        raise NotImplementedError("A Compressor must have its own compress.")

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """Restores the dtype and shape of a tensor after its reduction.

        Args:
            tensor: The reduction of the tensors that `compress` returned.
            ctx: The context that `compress` returned with its tensor.

        Returns:
            A tensor with the dtype and shape that it had before `compress`.
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
        """Returns the dtype in which tensors of `dtype` are sent."""
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
    Only floats that are larger than that dtype are cast: float32 and float64.
    All other tensors are sent unchanged. Must agree across ranks.

    The engine casts the tensors of an allreduce block by block as it copies
    them, which needs no memory of a tensor's size. TensorFlow operations cast
    the tensors of all other collectives.

    Use it if the network is the bottleneck. Inside one machine, casting, and in
    particular adding float16, may take more time than it saves.

    Each addition on the way is done in float32 and rounded to the dtype of the
    wire, and so are scale factors and the division of an average. Over n ranks
    a sum or an average has, to first order, an error of at most (n + 1) u times
    the sum or the average of the absolute values; u is `2**-11` for `fp16` and
    `2**-8` for `bf16`. All ranks still get the same bits. A single rank sends
    nothing, and rounds nothing.

    To write your own compressor, see `tfring.compression.Compressor`.

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


# `eq=False`, because a tape's state belongs to one object; see `LowRank`.
@dataclasses.dataclass(frozen=True, eq=False)
class PowerSGD:
    """Sends two thin factors of each large gradient, in place of all of it.

    Pass it as `compression` to `tfring.DistributedOptimizer` or
    `tfring.DistributedGradientTape`. It is for slow links between machines and
    large matrices: with rank 4, a gradient of 1024 x 1024 numbers is sent as
    8192 numbers. A step sends two messages in turn instead of one, and
    multiplies matrices, so it is slower on fast links.

    A gradient with two or more axes is a matrix: the last axis has the columns,
    and the rest has the rows. The ranks average two factors with `rank` columns
    each, and the product of the averages is the gradient that all of them
    apply. So their weights stay equal. The product leaves out a part of a
    rank's gradient. The rank keeps this error, and adds it to its gradient of
    the next step.

    Gradients are reduced whole if their factors have more than half of their
    elements, as for biases and small kernels. `tf.IndexedSlices` are gathered
    as without PowerSGD; if `sparse_as_dense` or XLA makes them dense, they are
    matrices. Gradients of float16 and bfloat16 are compressed in float32. A
    rank that is alone sends nothing, and compresses nothing.

    Each optimizer keeps for each matrix the error, as large as the weight, and
    one factor for the next step. They are in no saved file and are not
    broadcast: in a new process the error is zero. A tape is new in each step,
    so tapes keep them with this object: make one for each model, before the
    first step.

    If a reduced gradient is not finite, both stay as they were. A
    `LossScaleOptimizer` skips that step on all ranks.

    Must agree across ranks. It does not work with `op=tfring.Adasum`, with
    `shard_states`, or with optimizers of Keras 2 and TensorFlow 1. The ranks'
    weights have the same bits if the ranks compute alike: on the same kind of
    CPU or GPU, with as many threads.

    Args:
        rank: The number of columns of the factors, at least 1. More columns
            approximate the gradient better, at a proportional cost.
        start: The number of first steps that reduce whole gradients, besides
            the factors: gradients change fastest there. An optimizer counts
            them from its `iterations`, so a training that continues from a file
            does not repeat them.

    Raises:
        ValueError: An argument is not a whole number, or too small.

    Example:

    ```python
    import keras
    import tfring

    tfring.init()
    optimizer = tfring.DistributedOptimizer(
        keras.optimizers.Adam(1e-3),
        compression=tfring.PowerSGD(rank=4, start=1000),
    )
    ```

    Reference:
        Vogels, Karimireddy, Jaggi, "PowerSGD: Practical Low-Rank Gradient
        Compression for Distributed Optimization",
        https://arxiv.org/abs/1905.13727
    """

    rank: int = 4
    start: int = 1000

    def __post_init__(self) -> None:
        for name, least in ("rank", 1), ("start", 0):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ValueError(
                    f"PowerSGD: {name} must be a whole number, at least "
                    f"{least}, got {value!r}."
                )


# A compressor is a class with static methods, as in Horovod, or an instance,
# which can have a state.
AnyCompressor = type[Compressor] | Compressor
# Gradients can also be compressed by PowerSGD.
AnyCompression = AnyCompressor | PowerSGD


def checked(function: str, compression: Any) -> AnyCompressor:
    """Returns a compression that is valid, or raises TypeError."""
    if isinstance(compression, PowerSGD):
        raise TypeError(
            f"{function}: tfring.PowerSGD compresses the gradients of a "
            "tfring.DistributedOptimizer or tfring.DistributedGradientTape, "
            "for which it keeps what it leaves out. Use one of tfring."
            "Compression.none, fp16 and bf16 here."
        )
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

    The engine casts as it copies, which saves two passes over each tensor. It
    does not cast for Adasum, which computes in the tensors themselves.

    Returns:
        The compressor that TensorFlow still has to apply, and a function from
        the dtype of a tensor to the dtype that the engine must send.
    """
    kind = compression if isinstance(compression, type) else type(compression)
    if kind in (FP16Compressor, BF16Compressor) and op is not ReduceOp.Adasum:
        return NoneCompressor, kind.wire_dtype
    return compression, lambda dtype: dtype


def compressor_for_rows(compression: AnyCompressor) -> AnyCompressor:
    """Returns the compressor for the rows of `tf.IndexedSlices`.

    Each rank decompresses the rows of all ranks. Only a cast can do that: any
    other compressor's context belongs to this rank's own rows.
    """
    kind = compression if isinstance(compression, type) else type(compression)
    return compression if issubclass(kind, _Cast) else NoneCompressor


def compress(
    function: str, compression: AnyCompressor, tensor: tf.Tensor
) -> tuple[tf.Tensor, Any]:
    """Returns the tensor to send, and the context for `decompress`.

    Raises:
        TypeError: The compressor returns something that cannot be sent.
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
    """Returns the reduced tensor in the dtype it had before `compress`.

    Raises:
        TypeError: The compressor returns another dtype.
    """
    if compression is NoneCompressor:
        return travelled
    tensor = tf.convert_to_tensor(compression.decompress(travelled, context))
    if tensor.dtype != dtype:
        raise TypeError(
            f"{function}: {compression!r}.decompress must return {dtype.name}, "
            f"the dtype before compress, got {tensor.dtype.name}."
        )
    return tensor
