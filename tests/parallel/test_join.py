"""Ranks without more data join, and the remaining ranks continue."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tensorflow as tf
from helpers import NUMPY_REDUCTIONS, gradient_of

import tfring

# Rank r has r + 1 batches: rank 0 joins first, and the last rank last.


def contributors(batch, size):
    return list(range(batch, size))


def test_reductions_are_of_the_ranks_that_contribute(rank, size):
    for batch in range(rank + 1):
        values = np.add(contributors(batch, size), 1)
        for op, reduction in NUMPY_REDUCTIONS.items():
            # The call has no name, so the ranks have different counts of such
            # calls.
            result = tfring.allreduce(tf.fill([5], rank + 1.0), op=op)
            np.testing.assert_allclose(result, reduction(values), rtol=1e-6)
        ints = tfring.allreduce(tf.fill([3], rank + 1))
        assert ints.numpy().tolist() == [int(np.mean(values))] * 3
        large = tfring.allreduce(tf.fill([3], tf.constant(48000, tf.float16)))
        assert large.numpy().tolist() == [48000] * 3
    assert tfring.join() == size - 1
    assert tfring.allreduce(1, op=tfring.Sum) == size


def test_sparse_averages_are_of_the_ranks_that_contribute(rank, size):
    for batch in range(rank + 1):
        slices = tf.IndexedSlices(
            tf.fill([2, 3], rank + 1.0), tf.constant([rank, 0]), (size, 3)
        )
        mean = tfring.allreduce(slices)
        ranks = contributors(batch, size)
        expected = np.zeros([size, 3])
        for r in ranks:
            expected[r] += (r + 1) / len(ranks)
            expected[0] += (r + 1) / len(ranks)
        np.testing.assert_allclose(tf.convert_to_tensor(mean), expected, 1e-6)
    assert tfring.join() == size - 1


def test_other_collectives(rank, size):
    for batch in range(rank + 1):
        ranks = contributors(batch, size)
        rows = tfring.allgather(tf.fill([2, 1], rank), name="rows")
        assert rows.numpy().ravel().tolist() == sorted(2 * ranks)
        got = tfring.broadcast(tf.constant([rank]), size - 1, name="last")
        assert got == size - 1
        tfring.barrier()
    assert tfring.join() == size - 1
    assert len(tfring.allgather([[rank]])) == size


def test_objects_of_the_ranks_that_contribute(rank, several_ranks, size):
    last = size - 1
    for batch in range(rank + 1):
        ranks = contributors(batch, size)
        assert tfring.allgather_object(rank, name="whole") == ranks
        own = threading.Lock() if rank == last else rank
        error = TypeError if rank == last else RuntimeError
        match = "pickle" if rank == last else f": rank {last} could not"
        with pytest.raises(error, match=match):
            tfring.allgather_object(own, name="fails")
    assert tfring.join() == last


def test_the_gradient_of_an_allgather(rank, size):
    def loss(x):
        rows = tfring.allgather(x)
        return tf.range(len(rows), dtype=tf.float32) * rows

    for batch in range(rank + 1):
        gradient = gradient_of(loss)(tf.ones([rank + 1]))
        begin = sum(r + 1 for r in contributors(batch, size) if r < rank)
        expected = np.arange(begin, begin + rank + 1)
        np.testing.assert_array_equal(gradient, expected)
    assert tfring.join() == size - 1


def test_what_needs_every_rank_is_an_error_and_the_job_goes_on(
    rank, several_ranks, size
):
    if rank > 0:
        # Rank 0 has joined once this has gone through without it.
        while tfring.allreduce(1, op=tfring.Sum, name="here") == size:
            pass
        for call in (
            lambda: tfring.broadcast([1], 0, name="b"),
            lambda: tfring.reducescatter(tf.ones([size]), name="r"),
            lambda: tfring.alltoall(tf.ones([size]), name="a"),
        ):
            with pytest.raises(
                tf.errors.FailedPreconditionError, match=r"rank 0.* has joined"
            ):
                call()
        tfring.barrier(name="failed")
    else:
        tfring.allreduce(1, op=tfring.Sum, name="here")
    assert tfring.join() > 0
    assert tfring.allreduce(1, op=tfring.Sum) == size


@pytest.mark.parametrize("jit_compile", [False, True])
def test_gradients_in_a_function(rank, size, jit_compile):
    variable = tf.Variable([1.0, 2.0])

    @tf.function(jit_compile=jit_compile)
    def gradient(x):
        with tfring.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(variable * x)
        return tape.gradient(loss, variable)

    for batch in range(rank + 1):
        mean = gradient(tf.fill([2], float(rank)))
        expected = np.mean(contributors(batch, size))
        np.testing.assert_allclose(mean, [expected] * 2, rtol=1e-6)
    assert tfring.join() == size - 1


def test_in_a_function(size):
    @tf.function
    def twice():
        first = tfring.join()
        total = tfring.allreduce(1, op=tfring.Sum)
        return first, total, tfring.join()

    first, total, second = twice()
    assert first.dtype == tf.int32
    assert 0 <= first < size
    assert total == size
    assert 0 <= second < size
