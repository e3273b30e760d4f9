"""SyncBatchNormalization is BatchNormalization of the global batch."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import (
    assert_each_close,
    assert_same_on_all_ranks,
    compiled,
    jit_compile_is_thorough,
)

import tfring


def batches(size, shape, mean=3.0, dtype=np.float32):
    """A batch for each rank; the later have one sample more."""
    return [
        np.random.default_rng(rank)
        .normal(mean + rank, 1.0 + rank, (2 + rank, *shape))
        .astype(dtype)
        for rank in range(size)
    ]


def forward_and_backward(layer, traced, x, mask=None):
    """Output, gradients by inputs, gamma and beta, moving statistics."""

    @traced
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True, mask=mask)
            # The gradient of this loss differs in every element; that of a mean
            # does not.
            loss = tf.reduce_sum(tf.sin(tf.cast(y, tf.float32)) + y * y / 3)
        return y, tape.gradient(loss, [x, layer.gamma, layer.beta])

    y, [of_x, *of_weights] = step(tf.constant(x))
    return y, of_x, of_weights, [layer.moving_mean, layer.moving_variance]


def assert_as_one_rank(
    arrays, rank, traced, *, masks=None, rtol=2e-5, atol=2e-5, **arguments
):
    sync = tfring.SyncBatchNormalization(**arguments)
    reference = keras.layers.BatchNormalization(**arguments)
    ends = np.cumsum([len(array) for array in arrays])
    own = slice(ends[rank] - len(arrays[rank]), ends[rank])
    together = np.concatenate(arrays)
    for layer in (sync, reference):
        layer.build(together.shape)
        layer.gamma.assign(np.linspace(0.5, 2, layer.gamma.shape[0]))

    mask = None if masks is None else tf.constant(masks[rank])
    y, of_x, of_weights, moving = forward_and_backward(
        sync, traced, arrays[rank], mask
    )
    mask = None if masks is None else tf.constant(np.concatenate(masks))
    expected = forward_and_backward(reference, traced, together, mask)

    def close(a, b):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)

    close(y, expected[0][own])
    close(of_x, expected[1][own])
    for a, b in zip(of_weights, expected[2], strict=True):
        # Each rank has its part of the sum, as with every other weight.
        close(tfring.allreduce(a, op=tfring.Sum), b)
    for a, b in zip(moving, expected[3], strict=True):
        close(a, b)
    assert_same_on_all_ranks(moving)


def test_dense(rank, size, mode):
    assert_as_one_rank(batches(size, (5,)), rank, mode)


def test_images_of_either_layout(rank, size):
    arrays = batches(size, (4, 3, 2))
    assert_as_one_rank(arrays, rank, tf.function, atol=1e-4)
    assert_as_one_rank(arrays, rank, tf.function, atol=1e-4, axis=1)


def test_mask(rank, size):
    arrays = batches(size, (6, 3))
    masks = [np.random.default_rng(9).random(a.shape[:2]) < 0.6 for a in arrays]
    assert_as_one_rank(arrays, rank, tf.function, masks=masks, atol=1e-4)


def test_a_mean_far_from_zero(rank, size):
    # In float32 the squares, 1e6, would leave the variance, 1, two digits.
    arrays = [
        np.random.default_rng(r).normal(1e3, 1, (8, 4)).astype(np.float32)
        for r in range(size)
    ]
    layer = tfring.SyncBatchNormalization(momentum=0.0)
    layer(arrays[rank], training=True)
    exact = np.concatenate(arrays).astype(np.float64).var(axis=0)
    np.testing.assert_allclose(layer.moving_variance, exact, rtol=1e-4)


def test_a_rank_without_samples(rank, several_ranks, size):
    [array] = batches(1, (3,))
    arrays = [array] + [array[:0]] * (size - 1)
    assert_as_one_rank(arrays, rank, lambda step: step)


def test_float16(rank, size):
    arrays = batches(size, (3,), dtype=np.float16)
    layer = tfring.SyncBatchNormalization(dtype="mixed_float16")
    y = layer(arrays[rank], training=True)
    assert y.dtype == tf.float16
    together = np.concatenate(arrays).astype(np.float64)
    deviation = np.sqrt(together.var(axis=0) + layer.epsilon)
    expected = (arrays[rank] - together.mean(axis=0)) / deviation
    np.testing.assert_allclose(y, expected, atol=2e-2)


def test_inference_is_each_ranks_own(rank):
    layer = tfring.SyncBatchNormalization()
    layer.build((None, 3))
    if rank == 0:  # no collective: it does not wait for the others
        y = layer(np.ones((2, 3), np.float32), training=False)
        np.testing.assert_allclose(y, np.ones((2, 3)), rtol=1e-3)
    layer.trainable = False
    if rank == 0:
        layer(np.ones((2, 3), np.float32), training=True)


def test_a_fused_one_is_refused():
    with pytest.raises(ValueError, match="fused must be False"):
        tfring.SyncBatchNormalization(fused=True)


def trained(batch_normalization, optimizer, x, y, **arguments):
    keras.utils.set_random_seed(0)
    model = compiled(
        optimizer,
        keras.Input((3, 3, 1)),
        batch_normalization(),
        keras.layers.Flatten(),
        keras.layers.Dense(4),
        batch_normalization(),
        keras.layers.Dense(2),
        **arguments,
    )
    model.fit(x, y, batch_size=len(x) // 4, shuffle=False, verbose=0)
    return model


@jit_compile_is_thorough
def test_fit_is_that_of_one_rank(rank, size, jit_compile, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4 * size * 4, 3, 3, 1)).astype(np.float32)
    y = rng.normal(size=(len(x), 2)).astype(np.float32)
    model = trained(
        tfring.SyncBatchNormalization,
        tfring.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9)),
        x[rank::size],
        y[rank::size],
        jit_compile=jit_compile,
    )
    alone = trained(
        keras.layers.BatchNormalization,
        keras.optimizers.SGD(0.05, momentum=0.9),
        *(x, y),
        jit_compile=False,
    )
    assert_each_close(model.weights, alone.weights, rtol=1e-3, atol=1e-4)
    assert_same_on_all_ranks(model.weights)

    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert isinstance(loaded.layers[0], tfring.SyncBatchNormalization)
    np.testing.assert_array_equal(loaded(x), model(x))
