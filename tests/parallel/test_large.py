"""Tensors of more than 2 GiB: counts and sizes beyond 32 bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from mpi4py import MPI

import tfring

# Rows of int8, 2**31 + 52 elements in all.
COLUMNS = 50
ROWS = 42_949_674
# Of both ranks, with some to spare.
NEEDED_BYTES = 9 << 30


def available_bytes():
    [line] = [
        line
        for line in Path("/proc/meminfo").read_text().splitlines()
        if line.startswith("MemAvailable")
    ]
    return int(line.split()[1]) << 10


# Memory that is new to a process is what takes long.
@pytest.mark.timeout(300)
def test_more_elements_than_32_bits_count(rank, size):
    if size != 2:
        pytest.skip("runs on two ranks, as it fills the memory of a machine")
    if MPI.COMM_WORLD.allreduce(available_bytes(), op=MPI.MIN) < NEEDED_BYTES:
        pytest.skip(f"takes {NEEDED_BYTES >> 30} GiB of memory")

    # In one function, where the first two are in place.
    @tf.function
    def step(own_rows):
        # Each column has a value of its own, so that a shift would show.
        row = tf.cast(tf.range(COLUMNS) * (2 - 3 * rank), tf.int8)
        flat = tf.reshape(tf.tile(row[tf.newaxis], [ROWS, 1]), [-1])
        total = tfring.allreduce(flat, op=tfring.Sum)
        total = tfring.broadcast(total + tf.cast(rank, tf.int8), 1)
        # All but one row come from rank 0.
        return tfring.allgather(tf.reshape(total, [-1, COLUMNS])[:own_rows])

    result = step(tf.constant(ROWS if rank == 0 else 1))
    assert result.shape == [ROWS + 1, COLUMNS]
    # Without the copy that numpy() makes.
    rows = np.asarray(memoryview(result))
    expected = np.arange(COLUMNS, dtype=np.int8) + np.int8(1)
    # Both ends, and into every segment between.
    for part in rows[:1000], rows[-1000:], rows[::997]:
        assert (part == expected).all()
