"""Gives every rank the same variables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from tfring import _runtime, chains
from tfring.buckets import cut_into_buckets


def broadcast_variables(variables: Iterable[Any], root_rank: int = 0) -> None:
    """Assigns to each variable the value that it has on one rank.

    Before the first step, so that all ranks start from the same weights, and
    whenever one rank alone has changed them, by loading a checkpoint for
    example. Collective: every rank must call it, eagerly, with variables of the
    same dtypes and shapes in the same order. On one rank it does nothing.

    Args:
        variables: Keras or TensorFlow variables of any dtype but strings.
        root_rank: The rank whose values all others take.

    Raises:
        RuntimeError: It was called while tracing a `tf.function`.
        TypeError: A variable holds strings, or is not a variable.
        ValueError: There is no rank `root_rank`.

    Example:

    ```python
    import keras
    import tfring

    tfring.init()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    tfring.broadcast_variables(model.variables, root_rank=0)
    ```
    """
    if not tf.executing_eagerly():
        raise RuntimeError(
            "broadcast_variables was called while tracing a tf.function. Call "
            "it eagerly, before training starts."
        )
    if not 0 <= root_rank < _runtime.size():
        raise ValueError(
            f"broadcast_variables: root_rank must be in [0, "
            f"{_runtime.size()}), the ranks of this job, got {root_rank}."
        )
    variables = list(variables)
    values = [_value(variable) for variable in variables]
    if _runtime.size() == 1:
        return
    buckets = cut_into_buckets(values, _runtime.fusion_threshold_bytes())
    for number, bucket in enumerate(buckets):
        # Each is assigned before the next starts: a large model is not held
        # twice.
        buffers, started = chains.start_broadcast(
            [values[i] for i in bucket],
            request_name=f"variables/{number}",
            tensor_names=[_name(variables[i]) for i in bucket],
            previous=None,
            root_rank=root_rank,
        )
        received = chains.finish(buffers, started)
        if _runtime.rank() == root_rank:
            continue
        for i, value in zip(bucket, received, strict=True):
            dtype = tf.as_dtype(variables[i].dtype)
            if value.dtype != dtype:
                value = np.frombuffer(value.numpy(), dtype.as_numpy_dtype)
                value = value.reshape(variables[i].shape)
            variables[i].assign(value)


def _value(variable: Any) -> tf.Tensor:
    """What a variable holds, as bytes where collectives lack its dtype."""
    if not hasattr(variable, "assign"):
        raise TypeError(
            "broadcast_variables takes Keras and TensorFlow variables, got "
            f"{variable!r} of type {type(variable).__name__}."
        )
    value = tf.convert_to_tensor(variable)
    if value.dtype == tf.string:
        raise TypeError(
            f"broadcast_variables: the variable '{_name(variable)}' holds "
            "strings, which cannot be broadcast. Leave it out."
        )
    if value.dtype in chains.SUPPORTED_DTYPES:
        return value
    return tf.constant(np.frombuffer(value.numpy().tobytes(), np.uint8))


def _name(variable: Any) -> str:
    return str(getattr(variable, "path", None) or variable.name)
