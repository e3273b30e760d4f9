"""Spool keeps arrays in a temporary file."""

import gc
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np

from tfring._state import spool
from tfring._state.spool import spooled

ARRAYS = [
    np.arange(12, dtype="float32").reshape(3, 4),
    np.array(2.5),
    np.zeros((0, 3), "int64"),
    np.arange(6).reshape(2, 3).T,
    np.array([1.5, -2.0], ml_dtypes.bfloat16),
    np.array([True, False]),
]


def test_arrays_come_back_in_any_order():
    kept = [spooled(array) for array in ARRAYS]
    for each, array in reversed(list(zip(kept, ARRAYS, strict=True))):
        for _ in range(2):
            np.testing.assert_array_equal(each.read(), array, strict=True)


def test_the_file_is_deleted_with_the_last_array(monkeypatch):
    # Arrays of earlier tests may still be in memory, and keep their file.
    monkeypatch.setattr(spool, "_current", None)
    first, second = spooled(ARRAYS[0]), spooled(ARRAYS[1])
    file = first.spool.file
    assert second.spool is first.spool
    del first
    gc.collect()
    assert not file.closed
    del second
    gc.collect()
    assert spool._current() is None
    later = spooled(ARRAYS[2])
    assert later.spool.file is not file


def test_threads_read_and_write_at_the_same_time():
    def is_kept(number):
        array = np.full(1000, number)
        kept = spooled(array)
        return all((kept.read() == array).all() for _ in range(5))

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(is_kept, range(200)))
