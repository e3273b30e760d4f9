"""global_mean: a loss that is the mean over the valid elements of all ranks."""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tfring._core.process_sets import (
    ProcessSet,
    global_process_set,
    is_alone,
)
from tfring._ops.allreduce import allreduce
from tfring._ops.arguments import check_process_set, own_name
from tfring._ops.autograph import not_converted
from tfring._ops.reductions import ReduceOp

_counts_own_elements = contextvars.ContextVar(
    "counts_own_elements", default=False
)


@contextmanager
def counting_own_elements() -> Iterator[None]:
    """Makes `global_mean` the mean over this rank's elements alone."""
    before = _counts_own_elements.set(True)
    try:
        yield
    finally:
        _counts_own_elements.reset(before)


@not_converted
def global_mean(
    values: Any,
    weights: Any = None,
    *,
    process_set: ProcessSet = global_process_set,
    name: str | None = None,
) -> tf.Tensor:
    """Divides the sum of this rank's values by the mean count of the ranks.

    A loss with a mask divides by the number of valid elements. This number
    differs between ranks, so the average of the ranks' means is not the mean
    over all elements: if one rank has few valid elements, these count too much.
    Averaged over the ranks, this loss and its gradients are the same as in one
    process with the batches of all ranks.

    Collective: every rank must call it, also under `jit_compile=True`. Use it
    with the default `op=tfring.Average` of the optimizer or the tape. As the
    loss of a compiled model it is not collective in `evaluate` and for the
    `validation_data` of `fit`, where it divides by this rank's count.

    Args:
        values: The losses of this rank's elements, of a floating-point dtype
            and any shape.
        weights: The weight of each element: a mask of bools, or numbers, with a
            shape that broadcasts to the shape of `values`. By default all
            elements count equally. It has no gradient.
        process_set: The ranks that train together.
        name: See `tfring.allreduce`.

    Returns:
        A scalar of the dtype of `values`; 0 if no rank has a valid element.

    Raises:
        TypeError: `values` are not of a floating-point dtype.
        ValueError: `init` has not been called, or the set is not of the job.

    Example:

    ```python
    import keras
    import tensorflow as tf
    import tfring

    tfring.init()

    def loss(labels, logits):  # -1 is no class
        each = keras.losses.sparse_categorical_crossentropy(
            tf.maximum(labels, 0), logits, from_logits=True
        )
        return tfring.global_mean(each, labels >= 0)

    model = keras.Sequential([keras.Input((5, 4)), keras.layers.Dense(3)])
    model.compile(tfring.DistributedOptimizer("adam"), loss)
    ```
    """
    check_process_set("global_mean", process_set)
    values = tf.convert_to_tensor(values)
    if not values.dtype.is_floating:
        raise TypeError(
            "global_mean takes values of a floating-point dtype, got "
            f"{values.dtype.name}."
        )
    exact = tf.float64 if values.dtype == tf.float64 else tf.float32
    losses = tf.cast(values, exact)
    counts = tf.ones_like(losses)
    if weights is not None:
        counts *= tf.stop_gradient(tf.cast(weights, exact))
    count = tf.reduce_sum(counts)
    if not (_counts_own_elements.get() or is_alone(process_set)):
        count = allreduce(
            count,
            op=ReduceOp.Average,
            name=name or own_name("global_mean", process_set),
            ignore_name_scope=name is None,
            process_set=process_set,
        )
    # A value with weight 0 may be infinite.
    total = tf.reduce_sum(tf.math.multiply_no_nan(losses, counts))
    return tf.cast(tf.math.divide_no_nan(total, count), values.dtype)
