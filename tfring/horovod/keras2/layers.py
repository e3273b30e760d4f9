"""Horovod's layers for Keras 2."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras

from tfring._core.process_sets import (
    ProcessSet,
    global_process_set,
    is_alone,
)
from tfring._optim.sync_batch_norm import (
    along,
    check_not_fused,
    moments_of_ranks,
)


@tf_keras.saving.register_keras_serializable(package="tfring")
class SyncBatchNormalization(tf_keras.layers.BatchNormalization):
    """Batch normalization with the statistics of all ranks' batches.

    Args:
        fused: Must be False: there is no fused implementation.
        process_set: The ranks that combine their statistics.
        **kwargs: All arguments of `tf_keras.layers.BatchNormalization`.

    Raises:
        ValueError: `fused` is not False.
    """

    def __init__(
        self,
        fused: bool = False,
        process_set: ProcessSet = global_process_set,
        **kwargs: Any,
    ) -> None:
        check_not_fused(fused)
        super().__init__(fused=False, **kwargs)
        self.process_set = process_set

    def _moments(
        self,
        inputs: Any,
        reduction_axes: list[int],
        keep_dims: bool,
        mask: Any = None,
    ) -> tuple[Any, Any]:
        process_set = self.process_set
        if is_alone(process_set) or not process_set.included():
            moments: tuple[Any, Any] = super()._moments(
                inputs, reduction_axes, keep_dims, mask
            )
            return moments
        dtype = inputs.dtype
        mean, variance = moments_of_ranks(
            tf.cast(inputs, tf.float32) if dtype.size < 4 else inputs,
            mask,
            reduction_axes,
            process_set,
        )
        if keep_dims:
            mean, variance = (
                along(mean, reduction_axes),
                along(variance, reduction_axes),
            )
        return tf.cast(mean, dtype), tf.cast(variance, dtype)
