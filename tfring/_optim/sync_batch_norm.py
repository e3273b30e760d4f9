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
from tfring._ops.arguments import own_name
from tfring._ops.reductions import ReduceOp


@keras.saving.register_keras_serializable(package="tfring")
class SyncBatchNormalization(keras.layers.BatchNormalization):
    """Batch normalization with the statistics of all ranks' batches.

    `keras.layers.BatchNormalization` takes mean and variance of the rank's own
    batch, which has few samples if the model or the images are large. This
    layer takes mean and variance of the global batch, forward and backward, as
    one rank with all the samples would. The ranks may have different numbers of
    samples. So the moving statistics are the same on every rank. Keras losses
    are means over the rank's batch, and `DistributedOptimizer` averages their
    gradients: if all ranks have equally many samples, this gives the gradients
    of the mean over the global batch.

    It costs an allreduce of three vectors of the channels' length in the
    forward pass, and one in the backward pass, for which every layer must wait.
    Collective in training: every rank must run the same model, eagerly, in
    `fit`, or under `jit_compile=True`. In inference it calls nothing.

    `tfring.load_model` knows the layer; `keras.models.load_model` knows it once
    the program has used its name.

    Args:
        fused: False, as in Horovod: there is no fused implementation.
        process_set: The ranks that combine their statistics; a rank outside
            uses its own. It is not saved: set the attribute `process_set` of a
            loaded layer.
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
    """Returns the mean and the variance of all ranks' inputs. Collective.

    Args:
        inputs: float32 or float64; with a mask, the last axis is the channels'
            axis.
        mask: Which inputs count: bools, of their shape without the last axis;
            or None, for all.
        axes: All axes except the channels' axis.
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
    # One allreduce of sums. Each rank subtracts its own mean before it squares.
    # The final subtraction is in float64: in float32 a mean far from 0 would
    # swallow the variance.
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
            name=own_name("batch statistics", process_set),
            ignore_name_scope=True,
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
    """Reshapes a vector of the channels so that it broadcasts to the inputs."""
    for axis in axes:
        vector = tf.expand_dims(vector, axis)
    return vector
