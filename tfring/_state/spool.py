"""Keeps arrays in a temporary file, outside of the process's memory."""

from __future__ import annotations

import dataclasses
import math
import os
import tempfile
import threading
import weakref

import numpy as np


class _Spool:
    """A temporary file, which is deleted with the last array in it."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        # A saver may read in several threads, and the file has one position.
        self.lock = threading.Lock()


# One file for all arrays: a process may open about a thousand.
_current: weakref.ref[_Spool] | None = None


@dataclasses.dataclass(frozen=True)
class Spooled:
    """An array in a temporary file."""

    spool: _Spool
    offset_bytes: int
    dtype: np.dtype
    shape: tuple[int, ...]

    def read(self) -> np.ndarray:
        size_bytes = math.prod(self.shape) * self.dtype.itemsize
        with self.spool.lock:
            self.spool.file.seek(self.offset_bytes)
            data = np.fromfile(self.spool.file, np.uint8, size_bytes)
        return data.view(self.dtype).reshape(self.shape)


def spooled(array: np.ndarray) -> Spooled:
    """Writes an array to a temporary file, in the folder of `tempfile`."""
    global _current
    spool = None if _current is None else _current()
    if spool is None:
        spool = _Spool()
        _current = weakref.ref(spool)
    # Bytes, because NumPy does not know dtypes such as bfloat16 by itself.
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    with spool.lock:
        offset = spool.file.seek(0, os.SEEK_END)
        data.tofile(spool.file)
    return Spooled(spool, offset, array.dtype, array.shape)
