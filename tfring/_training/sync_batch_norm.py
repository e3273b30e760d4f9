"""Batch normalization over the batches of all ranks together."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfring._core.process_sets import (
    ProcessSet,
    global_process_set,
    is_alone,
)
from tfring._ops.allreduce import allreduce
from tfring._ops.reductions import ReduceOp


@keras.saving.register_keras_serializable(package="tfring")
class SyncBatchNormalization(keras.layers.BatchNormalization):
    """Batch normalization with the statistics of all ranks' batches.

    `keras.layers.BatchNormalization` takes mean and variance of the rank's own
    batch: few samples where a large model or image leaves room for few. This
    takes those of the global batch, forward and backward, as one rank with all
    the samples would; the ranks may have different numbers of them. The moving
    statistics are therefore the same on every rank. Where the loss is a mean
    over the rank's batch, as Keras's are, and `DistributedOptimizer` averages
    the gradients, these are those of the mean over the global batch if the
    ranks have equally many samples.

    It costs an allreduce of three vectors of the channels' length in the
    forward pass, and one in the backward pass, for which every layer must wait.
    Collective in training: every rank must run the same model, eagerly, in
    `fit`, or under `jit_compile=True`. In inference it calls nothing.

    A saved model loads in a program that has named the class before, as
    `tfring.SyncBatchNormalization`.

    Args:
        fused: False, as in Horovod: there is no fused implementation.
        process_set: Whose ranks have their statistics together; a rank outside
            has its own. It is not saved: set the attribute `process_set` of a
            layer that was loaded.
        **kwargs: All arguments of `keras.layers.BatchNormalization`.

    Raises:
        NotInitializedError: In training, if `init` has not been called.
        ValueError: `fused` is not False.

    Example:

    ```python
    import keras
    import tfring

    tfring.init()
    layer = tfring.SyncBatchNormalization()
    normalized = layer(keras.random.normal((8, 3)), training=True)
    assert normalized.shape == (8, 3)
    ```

    Reference: [Ioffe and Szegedy, 2015](https://arxiv.org/abs/1502.03167).
    """

    def __init__(
        self,
        fused: bool = False,
        process_set: ProcessSet = global_process_set,
        **kwargs: Any,
    ) -> None:
        check_not_fused(fused)
        super().__init__(**kwargs)
        self.process_set = process_set

    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        # Called by Keras in training, with float32 or float64.
        process_set = self.process_set
        if is_alone(process_set) or not process_set.included():
            moments: tuple[Any, Any] = super()._moments(inputs, mask)
            return moments
        return moments_of_ranks(inputs, mask, self._reduction_axes, process_set)


def check_not_fused(fused: bool) -> None:
    if fused is not False:
        raise ValueError(
            "SyncBatchNormalization: fused must be False, as there is no "
            f"fused implementation over several ranks, got {fused!r}."
        )


def moments_of_ranks(
    inputs: Any, mask: Any, axes: list[int], process_set: ProcessSet
) -> tuple[Any, Any]:
    """The mean and the variance of all ranks' inputs. Collective.

    Args:
        inputs: float32 or float64; the last axis is that of the channels,
            where there is a mask.
        mask: Which inputs count: bools, of their shape without the last axis;
            or None, for all.
        axes: All axes but that of the channels.
        process_set: The ranks.

    Returns:
        Vectors of the channels.
    """
    if mask is None:
        weights = tf.ones_like(inputs)
    else:
        weights = tf.broadcast_to(mask[..., tf.newaxis], tf.shape(inputs))
        weights = tf.cast(weights, inputs.dtype)
        inputs = tf.where(weights > 0, inputs, 0)
    # One allreduce of what can be added up. Each rank subtracts its own mean
    # before it squares, and what remains to be subtracted is so in float64: in
    # float32 a mean far from 0 would swallow the variance.
    count = tf.reduce_sum(weights, axes)
    mean = tf.math.divide_no_nan(tf.reduce_sum(inputs, axes), count)
    centered = (inputs - along(mean, axes)) * weights
    squares = tf.reduce_sum(tf.square(centered), axes)
    count, mean, squares = (
        tf.cast(local, tf.float64) for local in (count, mean, squares)
    )
    count, total, squares = tf.unstack(
        allreduce(
            tf.stack([count, count * mean, squares + count * tf.square(mean)]),
            op=ReduceOp.Sum,
            process_set=process_set,
        )
    )
    mean = tf.math.divide_no_nan(total, count)
    variance = tf.math.divide_no_nan(squares, count) - tf.square(mean)
    return (
        tf.cast(mean, inputs.dtype),
        tf.cast(tf.maximum(variance, 0), inputs.dtype),
    )


def along(vector: Any, axes: list[int]) -> Any:
    """The vector of the channels in a shape that goes with the inputs."""
    for axis in axes:
        vector = tf.expand_dims(vector, axis)
    return vector
