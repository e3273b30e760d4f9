"""The driver of tests/fake_cuda, where it is in use."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator


class Options(ctypes.Structure):
    """The first of those in tests/fake_cuda/fake_cuda.h."""

    _fields_ = tuple(
        (name, ctypes.c_int) for name in ("delay_us", "ignore_waits", "held")
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


# The values of Options.held.
FRAMEWORK_STREAM, ENGINE_STREAMS = 1, 2


@contextlib.contextmanager
def held(streams: int) -> Iterator[None]:
    """For the first half second of the block these streams do nothing.

    So whoever does not wait for them is sure to come too early. Nothing happens
    where the driver is a real one.
    """
    found = options()
    if found is None:
        yield
        return
    release = threading.Timer(0.5, lambda: setattr(found, "held", 0))
    found.held = streams
    release.start()
    yield
    release.join()
