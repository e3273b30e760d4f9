"""Gradients of the collectives, of the first and of the second order."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from helpers import gradient_of, without_xla

import tfring


def test_grouped_allreduce_with_an_unused_result(mode, rank, size):
    def gradients(x, y, count):
        with tf.GradientTape() as tape:
            tape.watch([x, y])
            a, _, _ = tfring.grouped_allreduce([x, y, count], op=tfring.Sum)
            loss = tf.reduce_sum(a) * (rank + 1.0)
        return tape.gradient(loss, [x, y])

    dx, dy = mode(gradients)(tf.ones([2]), tf.ones([3]), tf.constant(1))
    np.testing.assert_allclose(dx, [size * (size + 1) / 2] * 2)
    np.testing.assert_allclose(dy, [0, 0, 0])


def test_gradients_that_come_in_another_dtype(mode, rank, size):
    def gradients(x, y):
        with tf.GradientTape() as tape:
            tape.watch([x, y])
            results = tfring.grouped_allreduce([x, y], op=tfring.Sum)
        upstream = [tf.fill([2], rank + 1.0), tf.constant([1.0], tf.float64)]
        return tape.gradient(results, [x, y], output_gradients=upstream)

    x, y = tf.ones([2], tf.float64), tf.ones([1], tf.float64)
    dx, dy = mode(gradients)(x, y)
    assert dx.dtype == dy.dtype == tf.float64
    np.testing.assert_array_equal(dx, [size * (size + 1) / 2] * 2)
    np.testing.assert_array_equal(dy, [size])


@without_xla
def test_allgather_of_different_lengths(mode, rank, size):
    lengths = [2 * r + 1 for r in range(size)]
    weights = np.arange(sum(lengths) * 3, dtype=np.float32).reshape(-1, 3)
    gradient = mode(
        gradient_of(lambda x: tfring.allgather(x) * weights * (rank + 1.0))
    )
    begin = sum(lengths[:rank])
    # The average of the ranks' gradients, as in Horovod.
    expected = weights[begin : begin + lengths[rank]] * (size + 1) / 2
    result = gradient(tf.ones([lengths[rank], 3]))
    np.testing.assert_allclose(result, expected)


@without_xla
def test_gradient_of_a_lookup_in_a_result(mode, rank, size):
    # The gradient of the result is a tf.IndexedSlices.
    def look_up(x):
        return tf.gather(tfring.allreduce(x, op=tfring.Sum), [rank, rank])

    result = mode(gradient_of(look_up))(tf.ones([size + 1, 2]))
    expected = np.full([size + 1, 2], 2.0)
    expected[size] = 0
    np.testing.assert_allclose(result, expected)


def test_second_order(mode, rank, size):
    # L_r = (sum_s x_s^3)^2 / 2 * (r + 1), and every loss counts.
    def gradients(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                total = tfring.allreduce(x**3, op=tfring.Sum)
                loss = tf.reduce_sum(total**2) / 2 * (rank + 1.0)
            first = inner.gradient(loss, x)
        return first, outer.gradient(first, x)

    x = np.array([1.0, 2.0]) + rank
    first, second = mode(gradients)(tf.constant(x))
    of_ranks = [np.array([1.0, 2.0]) + r for r in range(size)]
    total = sum(x**3 for x in of_ranks)
    losses = size * (size + 1) / 2
    # first_r = 3 x_r^2 * losses * total; second_r = d(sum_s first_s) / d x_r.
    squares = sum(3 * x**2 for x in of_ranks)
    np.testing.assert_allclose(first, 3 * x**2 * losses * total)
    np.testing.assert_allclose(
        second, 6 * x * losses * total + squares * losses * 3 * x**2
    )


@pytest.mark.parametrize("collective", ["allreduce", "reducescatter"])
@pytest.mark.parametrize("op", [tfring.Min, tfring.Max, tfring.Product])
@without_xla
def test_other_reductions_have_none(collective, op, mode, size):
    def reduce(x):
        return getattr(tfring, collective)(x, op=op, name="extreme")

    with pytest.raises(NotImplementedError, match=f"'extreme'.*{op.name}"):
        mode(gradient_of(reduce))(tf.ones([size]))
