"""Collectives under jit_compile=True, in addition to test_collectives.py."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfring

pytestmark = pytest.mark.xla


def compiled(function):
    return tf.function(function, jit_compile=True)


def test_results_feed_further_collectives(rank, size):
    @compiled
    def compute(x):
        mean = tfring.allreduce(x)
        variance = tfring.allreduce((x - mean) ** 2)
        return mean, variance, tfring.broadcast(x - mean, 0)

    mean, variance, first = compute(tf.fill([20], float(rank)))
    ranks = np.arange(size)
    np.testing.assert_allclose(mean, np.full(20, ranks.mean()))
    np.testing.assert_allclose(variance, np.full(20, ranks.var()), rtol=1e-6)
    np.testing.assert_allclose(first, np.full(20, -ranks.mean()))


def test_in_a_loop_and_in_a_branch(rank, size):
    @compiled
    def compute(x, times):
        for _ in tf.range(times):
            x = tfring.allreduce(x, op=tfring.Sum, name="loop")
        if times > 2:
            x = tfring.allreduce(x, op=tfring.Max, name="branch")
        return x

    result = compute(tf.fill([3], rank + 1.0), tf.constant(3))
    expected = size * (size + 1) / 2 * size**2
    np.testing.assert_array_equal(result, np.full(3, expected))


def test_a_tensor_in_two_collectives_and_an_empty_one(rank, size):
    @compiled
    def compute(x):
        first, empty = tfring.grouped_allreduce(
            [x, tf.zeros([2, 0])], op=tfring.Sum
        )
        return first, tfring.allreduce(x, op=tfring.Sum), empty

    first, second, empty = compute(tf.fill([5], rank + 1.0))
    np.testing.assert_array_equal(first, np.full(5, size * (size + 1) / 2))
    np.testing.assert_array_equal(second, first)
    assert empty.shape == [2, 0]


def test_elements_keep_their_order(rank, size):
    """XLA may choose the layout of a transposed matrix, here on odd ranks."""

    @compiled
    def compute(given):
        x = tf.transpose(given) if rank % 2 else given
        return tfring.allreduce(2.0 * x, op=tfring.Sum)

    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    result = compute(tf.constant(x.T if rank % 2 else x))
    np.testing.assert_array_equal(result, size * 2 * x)


def test_a_tensor_is_pinned_where_xla_has_pins(several_ranks):
    @compiled
    def compute(x):
        return tfring.grouped_allreduce([x * 2.0, x * 3.0, tf.zeros([0])])

    text = compute.experimental_get_compiler_ir(tf.ones([4]))(
        stage="optimized_hlo"
    )
    release = tuple(map(int, tf.__version__.split(".")[:2]))
    pinned = 2 if release >= (2, 22) else 0
    assert text.count('custom_call_target="Pin"') == pinned
    assert text.count('custom_call_target="Unpin"') == pinned


ODD_NAME = 'quo"te back\\slash new\nline \u00e9 %s {} #'


def test_any_name_reaches_the_engine(rank, size):
    @compiled
    def reduce(x):
        return tfring.allreduce(x, op=tfring.Sum, name=ODD_NAME)

    assert reduce(tf.constant(1)).numpy() == size
    if size == 1:
        return
    with pytest.raises(tf.errors.FailedPreconditionError) as error:
        reduce(tf.ones([2 + rank]))
    assert ODD_NAME in error.value.message
