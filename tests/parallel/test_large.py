"""Tensors of more than 2 GiB: counts and sizes beyond 32 bits."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from mpi4py import MPI

import tfring

pytestmark = pytest.mark.skipif(
    "TFRING_TEST_DEVICE" in os.environ, reason="fills the memory of a host"
)

# Rows of int8, 2**31 + 52 elements in all.
COLUMNS = 50
ROWS = 42_949_674
# Rows that are not zero: the ends, and around the borders of chunks.
MARKED = [
    range(begin, begin + 1000) for begin in (0, ROWS // 2 - 500, ROWS - 1000)
]


def available_bytes():
    [line] = [
        line
        for line in Path("/proc/meminfo").read_text().splitlines()
        if line.startswith("MemAvailable")
    ]
    return int(line.split()[1]) << 10


def need(gibibytes, size):
    """Skips a test if this machine has no `gibibytes` for both ranks."""
    if size != 2:
        pytest.skip("runs on two ranks, as it fills the memory of a machine")
    available = MPI.COMM_WORLD.allreduce(available_bytes(), op=MPI.MIN)
    if available < gibibytes << 30:
        pytest.skip(f"takes {gibibytes} GiB of memory")


def marks(rank, rows):
    """A rank's values in the rows `rows`, if they are marked."""
    return (
        np.add.outer(3 * np.asarray(rows), np.arange(COLUMNS) + 5 * rank) % 11
    ).astype(np.int8)


def marked(rank):
    """Returns all rows of a rank; unmarked rows take no memory.

    The kernel has one page of zeros for all that has not been written yet, and
    TensorFlow is given that memory as it is.
    """
    memory = np.zeros(ROWS * COLUMNS + 64, np.int8)
    aligned = memory[-memory.ctypes.data % 64 :][: ROWS * COLUMNS]
    array = aligned.reshape(ROWS, COLUMNS)
    for rows in MARKED:
        array[rows.start : rows.stop] = marks(rank, rows)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def check(result, first, ranks):
    """Compares rows from `first` on with the sum over some ranks."""
    array = np.asarray(memoryview(result))  # without the copy of numpy()
    end = first + len(array)
    for rows in MARKED:
        numbers = np.arange(max(rows.start, first), min(rows.stop, end))
        expected = sum(marks(r, numbers) for r in ranks)
        np.testing.assert_array_equal(array[numbers - first], expected)
    for before, behind in pairwise(MARKED):
        begin = max(before.stop - first, 0)
        assert not array[begin : max(behind.start - first, 0) : 997].any()


# The first use of memory takes most of the time.
@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_more_elements_than_32_bits_count(rank, size):
    need(9, size)

    # Within one function, the ops after the allreduce are in place.
    @tf.function
    def step(rows, own_rows):
        total = tfring.allreduce(tf.reshape(rows, [-1]), op=tfring.Sum)
        # Rank 0 has zeros until the broadcast from rank 1.
        total = tfring.broadcast(total * tf.cast(rank, tf.int8), 1)
        # Rank 0 contributes all rows but one.
        return tfring.allgather(tf.reshape(total, [-1, COLUMNS])[:own_rows])

    result = step(marked(rank), tf.constant(ROWS if rank == 0 else 1))
    rows = np.asarray(memoryview(result))
    assert rows.shape == (ROWS + 1, COLUMNS)
    check(rows[:-1], first=0, ranks=[0, 1])
    np.testing.assert_array_equal(rows[-1], rows[0])


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_alltoall_of_more_than_32_bits(rank, size):
    need(4, size)
    # Rank 0 sends all rows but one to rank 1.
    rows = marked(rank)
    if rank == 0:
        result, received = tfring.alltoall(rows, [1, ROWS - 1])
        first_rows = np.concatenate([marks(r, [0]) for r in range(2)])
        np.testing.assert_array_equal(result, first_rows)
    else:
        result, received = tfring.alltoall(rows[:1], [1, 0])
        check(result, first=1, ranks=[0])
    assert received.numpy().tolist() == [[1, 1], [ROWS - 1, 0]][rank]


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_grouped_reducescatter_of_more_than_32_bits(rank, size):
    need(4, size)
    ranks = tf.constant([[rank], [rank + 10]])
    large, small = tfring.grouped_reducescatter(
        [marked(rank), ranks], op=tfring.Sum
    )
    assert large.shape == [ROWS // 2, COLUMNS]
    check(large, first=rank * (ROWS // 2), ranks=[0, 1])
    assert small.numpy().tolist() == [[1 + 20 * rank]]
