"""Chains of collectives under jit_compile=True, again and again."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

import tfring
from tfring._ops import chains

pytestmark = pytest.mark.xla


@pytest.mark.thorough
def test_stress(rank, size):
    """24 gradients of 4 bytes to 4 MiB, 200 steps: every sum is exact."""
    counts = [3**i for i in range(12)] + [1000 * i + 1 for i in range(11)]
    counts.append(1 << 20)
    bucket_length = 3

    @functools.partial(tf.function, jit_compile=True)
    def step(matrix, number):
        # Each becomes ready at another time, after some work of its own.
        gradients = []
        for i, count in enumerate(counts):
            work = matrix
            for _ in range(i % 5):
                work = tf.linalg.matmul(work, matrix)
            exact = number * (i + 1.0) * (rank + 1.0)
            # work is finite, so this adds nothing, which XLA cannot know.
            gradients.append(
                tf.fill(
                    [count],
                    exact + tf.minimum(0.0, tf.reduce_max(tf.abs(work))),
                )
            )
        started = None
        in_flight = []
        for begin in range(0, len(counts), bucket_length):
            end = begin + bucket_length
            started = chains.start_allreduce(
                gradients[begin:end],
                request_name=f"stress/{begin}",
                tensor_names=[f"stress/{i}" for i in range(begin, end)],
                previous=started,
                op=tfring.Sum,
                last=end == len(counts),
            )
            in_flight.append(started)
        sums = [x for started in in_flight for x in chains.finish(started)]
        wrong = [
            tf.math.count_nonzero(
                x != number * (i + 1.0) * size * (size + 1) / 2
            )
            for i, x in enumerate(sums)
        ]
        return tf.stack(wrong)

    generator = np.random.default_rng(rank)
    matrix = tf.constant(generator.normal(size=(96, 96)) / 10, tf.float32)
    wrong = np.zeros(len(counts), np.int64)
    for number in range(200):
        wrong += step(matrix, tf.constant(float(number))).numpy()
    np.testing.assert_array_equal(wrong, np.zeros(len(counts)))
