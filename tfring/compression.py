"""Floats that travel as half floats: half the bytes, or a quarter of them."""

from __future__ import annotations

import enum

import tensorflow as tf


class Compression(enum.Enum):
    """How floats are made smaller for the way between the ranks.

    A tensor is rounded to the dtype of the wire, reduced in it, and cast back.
    That concerns floats that are larger than the wire's: float32 and float64.
    All other tensors travel as they are. Must agree across ranks.

    Worth it where the network is the limit. Inside one machine casting, and
    adding float16 above all, may take longer than what it saves.

    Each addition on the way is done in float32 and rounded to the dtype of the
    wire, and so are scale factors and the division of an average. Over n ranks
    a sum or an average has, to first order, an error of at most (n + 1) u times
    the sum or the average of the absolute values; u is 2**-11 for `fp16` and
    2**-8 for `bf16`. All ranks still get the same bits. On one rank nothing
    travels, and nothing is rounded.

    Attributes:
        none: Nothing is changed.
        fp16: float16. What exceeds 65504, be it a sum on its way to an average,
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

    none = "none"
    fp16 = "float16"
    bf16 = "bfloat16"

    def compress(self, tensor: tf.Tensor) -> tuple[tf.Tensor, tf.DType]:
        """Casts a tensor to the dtype of the wire, where it is larger.

        Args:
            tensor: A tensor of any dtype and shape.

        Returns:
            What travels, and the dtype that `decompress` brings back.
        """
        wire = tensor.dtype
        if self is not Compression.none and wire.is_floating:
            wire = min(wire, tf.as_dtype(self.value), key=lambda d: d.size)
        return tf.cast(tensor, wire), tensor.dtype

    def decompress(self, tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        """Casts a tensor back to the dtype that `compress` gave with it."""
        return tf.cast(tensor, dtype)


def checked(function: str, compression: object) -> Compression:
    """Returns it, or raises TypeError in the name of a function."""
    if not isinstance(compression, Compression):
        raise TypeError(
            f"{function}: compression must be one of tfring.Compression.none, "
            f"fp16 and bf16, got {compression!r}."
        )
    return compression
