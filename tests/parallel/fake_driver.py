"""The driver of tests/fake_cuda, where it is in use."""

from __future__ import annotations

import ctypes

# Of `held`: all streams but TensorFlow's.
OTHER_STREAMS = 2


class Options(ctypes.Structure):
    """The first of those in tests/fake_cuda/fake_cuda.h."""

    _fields_ = (
        ("delay_us", ctypes.c_int),
        ("ignore_waits", ctypes.c_int),
        ("held", ctypes.c_int),
    )


def options() -> Options | None:
    """None where the driver is a real one, or none."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        find = driver.FakeCudaOptions
    except (OSError, AttributeError):
        return None
    find.restype = ctypes.POINTER(Options)
    found: Options = find().contents
    return found
