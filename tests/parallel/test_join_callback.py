"""`fit` on ranks with different numbers of batches."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_same_on_all_ranks, compiled, thorough

import tfring

BATCH_SIZE = 4
EPOCHS = 2
RATE = 0.1


def data_of(rank, batches):
    rng = np.random.default_rng(rank)
    x = rng.normal(size=(batches * BATCH_SIZE, 3)).astype("float32")
    return x, rng.normal(size=(len(x), 1)).astype("float32")


def trained_alone(kernel, size):
    """By steps on the mean gradient of the ranks that still have a batch."""
    data = [data_of(rank, rank + 1) for rank in range(size)]
    for _ in range(EPOCHS):
        for batch in range(size):
            gradients = []
            for x, y in data[batch:]:  # rank r has batches 0 to r
                rows = slice(batch * BATCH_SIZE, (batch + 1) * BATCH_SIZE)
                error = x[rows] @ kernel - y[rows]
                gradients.append(2 * x[rows].T @ error / BATCH_SIZE)
            kernel = kernel - RATE * np.mean(gradients, axis=0)
    return kernel


@pytest.mark.parametrize(
    ("jit_compile", "predivide"),
    [(False, 2.0), thorough(True, 1.0)],
)
def test_averages_are_of_the_ranks_that_have_batches(
    rank, size, jit_compile, predivide
):
    keras.utils.set_random_seed(rank)
    model = compiled(
        tfring.DistributedOptimizer(
            keras.optimizers.SGD(RATE), gradient_predivide_factor=predivide
        ),
        keras.Input((3,)),
        keras.layers.Dense(1, use_bias=False),
        jit_compile=jit_compile,
    )
    start = tfring.broadcast(model.get_weights()[0], 0).numpy()
    history = model.fit(
        *data_of(rank, rank + 1),
        batch_size=BATCH_SIZE,
        epochs=EPOCHS,
        shuffle=False,
        validation_data=data_of(100, 1),
        callbacks=[
            tfring.callbacks.JoinCallback(),
            tfring.callbacks.BroadcastGlobalVariablesCallback(0),
            tfring.callbacks.MetricAverageCallback(),
        ],
        verbose=0,
    ).history
    assert_same_on_all_ranks(model.weights + model.optimizer.variables)
    np.testing.assert_allclose(
        model.get_weights()[0], trained_alone(start, size), rtol=1e-4
    )
    assert int(model.optimizer.iterations) == EPOCHS * size
    # Validation uses the weights that all ranks have in the end.
    x, y = data_of(100, 1)
    assert history["val_loss"][-1] == pytest.approx(
        np.mean((model.predict(x, verbose=0) - y) ** 2), rel=1e-5
    )


def words(rank, batches):
    """Batches for an embedding, from a generator: their number is unknown."""

    def generate():
        rng = np.random.default_rng(rank)
        for _ in range(batches):
            yield rng.integers(0, 20, [BATCH_SIZE, 5]), np.ones([BATCH_SIZE, 1])

    return tf.data.Dataset.from_generator(
        generate,
        output_signature=(
            tf.TensorSpec([None, 5], tf.int64),
            tf.TensorSpec([None, 1], tf.float32),
        ),
    )


def test_sparse_gradients_a_schedule_and_a_rank_without_batches(rank, size):
    keras.utils.set_random_seed(0)
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    model = compiled(
        tfring.DistributedOptimizer(keras.optimizers.Adam(schedule)),
        keras.Input((5,)),
        keras.layers.Embedding(20, 4),
        keras.layers.Flatten(),
        keras.layers.Dense(1),
        keras.layers.BatchNormalization(),
        jit_compile=False,
    )
    batches = 2 * (size - 1 - rank) if size > 1 else 2
    model.fit(
        words(rank, batches),
        epochs=EPOCHS,
        callbacks=[tfring.callbacks.JoinCallback()],
        verbose=0,
    )
    # The statistics of BatchNormalization are equal too; each rank had its own.
    assert_same_on_all_ranks(model.weights + model.optimizer.variables)
    # If the length of a dataset is unknown, Keras counts its end as a step.
    assert int(model.optimizer.iterations) >= EPOCHS * 2 * max(size - 1, 1)
