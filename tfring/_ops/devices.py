"""Places collectives on the device that the caller names."""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import kernels

from tfring._core import native
from tfring._ops.ordering import traced_for_xla


def checked_device(function: str, argument: str, device: Any) -> str:
    """Returns the device if it can run collectives; "" is any device.

    Without this check TensorFlow would silently take another device if the
    device does not exist or has no kernel.
    """
    if not isinstance(device, str):
        raise TypeError(
            f"{function}: {argument} must be the name of a device, or '' for "
            f"any, got {device!r}."
        )
    if not device:
        return device
    given = f"{function}: {argument}={device!r}"
    try:
        wanted = tf.DeviceSpec.from_string(device)
    except ValueError as error:
        raise ValueError(
            f"{given} is no name of a device, such as '/cpu:0' or '/gpu:0': "
            f"{error}"
        ) from error
    if wanted.device_type is None:
        return device
    existing = [
        tf.DeviceSpec.from_string(each.name)
        for each in tf.config.list_logical_devices()
    ]
    if not any(
        each.device_type == wanted.device_type
        and wanted.device_index in (None, each.device_index)
        for each in existing
    ):
        names = ", ".join(each.to_string() for each in existing)
        raise ValueError(
            f"{given}: TensorFlow has no such device in this process, but "
            f"{names}. Leave the argument out, or name one of these."
        )
    if wanted.device_type not in _types_with_kernels():
        raise NotImplementedError(
            f"{given}: tfring has no kernels for a {wanted.device_type}. Leave "
            "the argument out, and TensorFlow copies to the host and back."
        )
    return device


def on_device(device: str) -> AbstractContextManager[Any]:
    """Returns a scope that places operations; '' leaves it to TensorFlow."""
    # XLA compiles everything for one device.
    if not device or traced_for_xla():
        return nullcontext()
    scope: AbstractContextManager[Any] = tf.device(device)
    return scope


@functools.cache
def _types_with_kernels() -> frozenset[str]:
    native.ops()
    registered = kernels.get_registered_kernels_for_op("TfringAllreduceStart")
    return frozenset(kernel.device_type for kernel in registered.kernel)
