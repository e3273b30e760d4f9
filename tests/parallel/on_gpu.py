"""Behaviour that shows only where tensors are on a GPU.

`make gpu` runs it with TFRING_TEST_DEVICE=GPU:0; tests/parallel by itself
does not.
"""

from __future__ import annotations

import time

import numpy as np
import pytest
import tensorflow as tf

import tfring
from tfring._ops import chains


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


def test_what_is_copied_to_the_host_stays(slow_streams, rank, size):
    # TensorFlow copies on streams of their own, before, beside and after the
    # collective: what it takes in, may be reduced in place, and gives.
    @tf.function
    def step(own):
        with tf.device("CPU:0"):
            made_on_host = own + 1
        doubled = 2 * made_on_host
        with tf.device("CPU:0"):
            before = tf.identity(doubled)
        total = tfring.allreduce(doubled, op=tfring.Sum)
        with tf.device("CPU:0"):
            after = total + 0
        return before, after

    for number in range(10):
        own = np.arange(20_000, dtype=np.float32) + rank + number
        before, after = step(own)
        np.testing.assert_array_equal(before, 2 * (own + 1))
        expected = 2 * (own + 1) * size + size * (size - 1) - 2 * size * rank
        np.testing.assert_array_equal(after, expected)


def test_without_waits_the_order_is_lost(slow_streams, rank, size):
    if slow_streams is None or size == 1:
        return  # a real driver always waits; a rank alone does too little
    slow_streams.ignore_waits = 1
    wrong = _wrong_steps(rank, size)
    slow_streams.ignore_waits = 0
    with tf.device("CPU:0"):
        assert tfring.allreduce(wrong, op=tfring.Max).numpy() > 0


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


def test_memory_that_is_given_late_is_free(slow_streams, rank, size):
    count, times = (24, 300) if slow_streams is not None else (2048, 100)
    same = tf.eye(count)

    # The result is allocated when all ranks have started. By then the products
    # have freed memory that the GPU has yet to write.
    @tf.function
    def step(own, matrix, request_name):
        started = chains.start_allgather(
            [own, own],
            request_name=request_name,
            tensor_names=[request_name, "the same"],
        )
        with tf.control_dependencies([started.handle]):
            for _ in range(times):
                matrix = tf.matmul(matrix, same)
        gathered, _ = chains.finish_allgather(started)
        return gathered, matrix

    own = tf.fill([count // size, count], np.float32(rank))
    expected = np.repeat(np.arange(size), count // size)
    for attempt in range(4):
        # All but one wait in the engine.
        if rank == attempt % size:
            time.sleep(0.03)
        gathered, _ = step(own, 9 * same, "late")
        for result in gathered:
            np.testing.assert_array_equal(result[:, 0], expected)
            np.testing.assert_array_equal(result[:, -1], expected)


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
