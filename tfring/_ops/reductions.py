"""Reduction operations, and the dtypes that collectives take."""

from __future__ import annotations

import enum

import tensorflow as tf

# The dtypes that the engine computes with.
SUPPORTED_DTYPES = frozenset(
    {
        tf.float16,
        tf.bfloat16,
        tf.float32,
        tf.float64,
        tf.int8,
        tf.int16,
        tf.int32,
        tf.int64,
        tf.uint8,
        tf.uint16,
        tf.uint32,
        tf.uint64,
        tf.bool,
    }
)


class ReduceOp(enum.Enum):
    """Reduction operations of `allreduce` and `reducescatter`.

    For `tf.bool`, `Sum` and `Max` are "or", `Product` and `Min` are "and", and
    there is no `Average`.

    `Adasum` is between average and sum: of two tensors a and b it is `(1 - a.b
    / (2 |a|^2)) a + (1 - a.b / (2 |b|^2)) b`, their sum where they are
    orthogonal and their average where they are the same; more than two are
    combined pair by pair. It applies to each floating-point tensor as a whole.
    Reference: [Maleki et al., 2020](https://arxiv.org/abs/2006.02924).
    """

    # The names are those of the package's constants, such as tfring.Average.
    Average = "average"
    Sum = "sum"
    Min = "min"
    Max = "max"
    Product = "product"
    Adasum = "adasum"

    def __int__(self) -> int:
        """Returns Horovod's number of the reduction."""
        names = ("Average", "Sum", "Adasum", "Min", "Max", "Product")
        return names.index(self.name)


Average = ReduceOp.Average
Sum = ReduceOp.Sum
Min = ReduceOp.Min
Max = ReduceOp.Max
Product = ReduceOp.Product
Adasum = ReduceOp.Adasum
