"""Adasum against NumPy."""

from __future__ import annotations

from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import compiled, gradient_of

import tfring


def combined(a, b):
    dot, of_a, of_b = np.vdot(a, b), np.vdot(a, a), np.vdot(b, b)
    return (1 - dot / (2 * of_a)) * a + (1 - dot / (2 * of_b)) * b


def adasum(tensors):
    """Pair by pair; what is over a power of two is combined first."""
    tensors = list(tensors)
    doubling = 2 ** (len(tensors).bit_length() - 1)
    for i in range(len(tensors) - doubling):
        tensors[i : i + 2] = [combined(*tensors[i : i + 2])]
    while len(tensors) > 1:
        pairs = zip(tensors[::2], tensors[1::2], strict=True)
        tensors = [combined(*pair) for pair in pairs]
    return tensors[0]


def tensor_of(rank, shape=(5, 7), dtype=tf.float32):
    values = np.random.default_rng(rank).normal(size=shape)
    return tf.cast(values, dtype)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        (tf.float16, 4e-3),
        (tf.bfloat16, 3e-2),
        (tf.float32, 1e-6),
        (tf.float64, 1e-14),
    ],
)
def test_is_numpys_and_the_same_on_every_rank(rank, size, dtype, tolerance):
    result = tfring.allreduce(tensor_of(rank, dtype=dtype), op=tfring.Adasum)
    assert result.dtype == dtype
    inputs = [tensor_of(r, dtype=dtype) for r in range(size)]
    expected = adasum([tf.cast(x, tf.float64).numpy() for x in inputs])
    actual = tf.cast(result, tf.float64).numpy()
    np.testing.assert_allclose(actual, expected, tolerance, tolerance)
    for other in tfring.allgather(result[tf.newaxis]):
        np.testing.assert_array_equal(
            tf.cast(other, tf.float64), tf.cast(result, tf.float64)
        )


@pytest.mark.parametrize("jit_compile", [False, True])
def test_each_tensor_of_a_group_by_itself(rank, size, jit_compile):
    @tf.function(jit_compile=jit_compile)
    def reduce(tensors):
        return tfring.grouped_allreduce(
            tensors,
            op=tfring.Adasum,
            prescale_factor=2.0,
            postscale_factor=0.25,
        )

    own = [tensor_of(rank), tensor_of(rank + 100, (3,)), tf.constant(1.0)]
    first, second, third = reduce(own)
    for result, seed, shape in (first, 0, (5, 7)), (second, 100, (3,)):
        inputs = [tensor_of(seed + r, shape).numpy() for r in range(size)]
        np.testing.assert_allclose(result, adasum(inputs) / 2, 1e-5, 1e-6)
    assert third == 0.5  # the same on every rank


def test_what_it_is_not_for():
    with pytest.raises(ValueError, match="Adasum is of floating-point"):
        tfring.allreduce(tf.constant([1]), op=tfring.Adasum)
    with pytest.raises(NotImplementedError, match="parts of a tensor"):
        tfring.reducescatter(tf.ones([4]), op=tfring.Adasum)
    reduce = partial(tfring.allreduce, op=tfring.Adasum)
    with pytest.raises(
        NotImplementedError, match=r"^allreduce: only Average and Sum"
    ):
        gradient_of(reduce)(tf.ones([2]))


@pytest.mark.parametrize("jit_compile", [False, True])
def test_an_optimizer_steps_by_it(rank, size, jit_compile):
    keras.utils.set_random_seed(0)
    model = compiled(
        tfring.DistributedOptimizer(
            keras.optimizers.SGD(0.1), op=tfring.Adasum
        ),
        keras.Input((3,)),
        keras.layers.Dense(1, use_bias=False),
        jit_compile=jit_compile,
    )
    kernel = model.get_weights()[0]
    data = []
    for r in range(size):
        rng = np.random.default_rng(r)
        data.append((rng.normal(size=(8, 3)), rng.normal(size=(8, 1))))
    model.fit(*data[rank], batch_size=8, verbose=0)
    gradients = [2 * x.T @ (x @ kernel - y) / len(x) for x, y in data]
    np.testing.assert_allclose(
        model.get_weights()[0], kernel - 0.1 * adasum(gradients), rtol=1e-4
    )
