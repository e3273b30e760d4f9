"""What there is to show only where tensors are on a GPU.

`make gpu-test` runs it with TFRING_TEST_DEVICE=GPU:0; tests/parallel by itself
does not.
"""

from __future__ import annotations

import time

import fake_driver
import numpy as np
import pytest
import tensorflow as tf
from mpi4py import MPI

import tfring
from tfring import chains


def _wrong_steps(rank: int, size: int) -> int:
    """How many steps of upstream, collectives and downstream are wrong."""
    wrong = 0
    for step in range(6):
        host = np.arange(1000, dtype=np.float32) + 7 * step + rank
        upstream = tf.identity(tf.constant(host))  # a copy that takes its time
        total = tfring.allreduce(upstream, op=tfring.Sum)
        gathered = tfring.allgather(upstream)
        downstream = tf.identity(total).numpy()
        parts = [
            np.arange(1000, dtype=np.float32) + 7 * step + r
            for r in range(size)
        ]
        wrong += not np.array_equal(downstream, sum(parts))
        wrong += not np.array_equal(gathered.numpy(), np.concatenate(parts))
    return wrong


def test_streams_keep_the_order(slow_streams, rank, size):
    assert _wrong_steps(rank, size) == 0


def test_without_waits_the_order_is_lost(slow_streams, rank, size):
    if slow_streams is None or size == 1:
        return  # a real driver always waits; a rank alone does too little
    slow_streams.ignore_waits = 1
    wrong = _wrong_steps(rank, size)
    slow_streams.ignore_waits = 0
    with tf.device("CPU:0"):
        assert tfring.allreduce(wrong, op=tfring.Max).numpy() > 0


# In functions: an op by itself may end only when TensorFlow's stream has come
# so far.
@pytest.mark.parametrize(
    "streams", [fake_driver.FRAMEWORK_STREAM, fake_driver.ENGINE_STREAMS]
)
def test_neither_comes_before_the_other(streams, rank, size):
    same = tf.eye(8)

    @tf.function
    def step(matrix):
        made = tf.matmul(matrix, same)
        total = tfring.allreduce(made, op=tfring.Sum)
        return tf.matmul(total, same)

    step(same)
    for round_ in range(2):
        own = tf.constant(8 * [8 * [float(10 * round_ + rank)]])
        MPI.COMM_WORLD.Barrier()
        with fake_driver.held(streams):
            result = step(own)
        total = sum(10 * round_ + r for r in range(size))
        np.testing.assert_array_equal(result, np.full((8, 8), total))


def test_outputs_made_late_wait_for_their_memory(rank, size):
    """As TensorFlow gives memory out again while work on it is still queued."""
    if size == 1:
        return  # its engine waits for nobody

    @tf.function
    def step(rows, other):
        started = chains.start_allgather(
            [rows], request_name="late", tensor_names=["rows"], previous=None
        )
        with tf.control_dependencies([started.handle]):
            # Each of the output's size, and let go by the next.
            for _ in range(30):
                other = tf.multiply(other, other)
        gathered = chains.finish_allgather([rows], started, request_name="late")
        return gathered[0], other

    other = tf.ones([500 * size, 40])
    step(tf.zeros([500, 40]), other)
    for round_ in range(2):
        rows = tf.fill([500, 40], np.float32(10 * round_ + rank))
        MPI.COMM_WORLD.Barrier()
        if rank == size - 1:
            time.sleep(0.2)
        with fake_driver.held(fake_driver.FRAMEWORK_STREAM):
            gathered, _ = step(rows, other)
        values = 10 * round_ + np.arange(size, dtype=np.float32)
        expected = np.tile(np.repeat(values, 500)[:, np.newaxis], 40)
        np.testing.assert_array_equal(gathered.numpy(), expected)


@pytest.mark.parametrize("mode", ["eager", "function"])
def test_a_long_kernel_before_and_after(slow_streams, mode, rank, size):
    count, times = (16, 20) if slow_streams is not None else (4096, 100)
    same = tf.eye(count)

    def work(matrix):
        for _ in range(times):
            matrix = tf.matmul(matrix, same)
        return matrix

    def step(matrix):
        return work(tfring.allreduce(work(matrix), op=tfring.Sum))

    run = step if mode == "eager" else tf.function(step)
    values = np.arange(count * count, dtype=np.float32) % 100
    result = run(tf.constant(values.reshape(count, count) + rank))
    expected = size * values + size * (size - 1) / 2
    np.testing.assert_array_equal(result, expected.reshape(count, count))


@pytest.mark.parametrize("mode", ["eager", "function"])
def test_collectives_stay_on_the_gpu(mode, rank, size):
    def collectives(tensor):
        return (
            tfring.allreduce(tensor, op=tfring.Sum),
            tfring.allgather(tensor),
            tfring.broadcast(tensor, 0),
            tfring.reducescatter(tensor, op=tfring.Sum),
            tfring.alltoall(tensor),
        )

    run = collectives if mode == "eager" else tf.function(collectives)
    tensor = tf.fill([2 * size, 3], np.float32(rank + 1))
    results = run(tensor)
    for result in results:
        assert "GPU:0" in result.device
    total = size * (size + 1) / 2
    np.testing.assert_array_equal(results[0], np.full((2 * size, 3), total))
    np.testing.assert_array_equal(results[2], np.full((2 * size, 3), 1.0))
    np.testing.assert_array_equal(results[3], np.full((2, 3), total))


def test_int32_is_reduced_on_the_host(rank, size):
    result = tfring.allreduce(tf.constant([rank, 1]), op=tfring.Sum)
    assert "CPU:0" in result.device
    assert result.numpy().tolist() == [size * (size - 1) // 2, size]


def test_ranks_that_disagree_on_the_device_are_told(rank, size):
    place = "CPU:0" if rank == 0 else "GPU:0"
    with tf.device(place):
        tensor = tf.ones([3])
        if size == 1:
            tfring.allreduce(tensor)
            return
        with pytest.raises(
            tf.errors.FailedPreconditionError,
            match=r"Rank \d sent (host|GPU) memory; rank \d sent (host|GPU)",
        ):
            tfring.allreduce(tensor, name="places")
    assert tfring.allreduce(tf.ones([]), op=tfring.Sum).numpy() == size
