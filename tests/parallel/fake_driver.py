"""The driver of tests/gpu/fake/cuda, where it is in use."""

from __future__ import annotations

import ctypes

# A value of `held`: all streams except TensorFlow's.
OTHER_STREAMS = 2


class Options(ctypes.Structure):
    """The first options of tests/gpu/fake/cuda/fake_cuda.h."""

    _fields_ = (
        ("delay_us", ctypes.c_int),
        ("ignore_waits", ctypes.c_int),
        ("held", ctypes.c_int),
    )


def options() -> Options | None:
    """Returns None if there is a real driver, or no driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        find = driver.FakeCudaOptions
    except (OSError, AttributeError):
        return None
    find.restype = ctypes.POINTER(Options)
    found: Options = find().contents
    return found
