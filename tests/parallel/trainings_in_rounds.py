"""Trainings in rounds, and what they give in one process."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from helpers import assert_each_close

import tfring

LOSS = keras.losses.MeanSquaredError()


def batches_of(rank, count, rows=8):
    rng = np.random.default_rng([7, rank])
    x = rng.normal(size=(count, rows, 3)).astype(np.float32)
    return x, np.sin(x.sum(2, keepdims=True))


def rows_of(batches):
    """The rows of batches, as `fit` takes them."""
    return [each.reshape(-1, each.shape[-1]) for each in batches]


def built_model():
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.Dense(1),
        ]
    )


def fitted(optimizer, rank, count, epochs=1, **options):
    """Trains on the first `count` batches of a rank."""
    model = built_model()
    model.compile(optimizer, LOSS, **options)
    model.fit(
        *rows_of(batches_of(rank, count)),
        batch_size=8,
        epochs=epochs,
        shuffle=False,
        verbose=0,
    )
    return model


def kernels_of(model):
    """Each rank's first kernel."""
    return tfring.allgather_object(model.layers[0].kernel.numpy().tobytes())


def kernels_after(model, rank, updates):
    """Trains without the end of a fit."""
    for x, y in zip(*batches_of(rank, updates), strict=True):
        model.train_on_batch(x, y)
    return kernels_of(model)


def inner():
    return keras.optimizers.SGD(0.05, momentum=0.5)


def model_in_rounds(sync, **options):
    model = built_model()
    optimizer = tfring.DistributedOptimizer(inner(), sync=sync, **options)
    model.compile(optimizer, LOSS)
    return model


def in_one_process(size, rounds, every, outer):
    """The weights after rounds of `size` ranks, by Keras and NumPy alone.

    Args:
        size: The number of ranks.
        rounds: The number of rounds.
        every: The steps of a round.
        outer: A function of the weights and the mean change.
    """
    base = [np.asarray(v) for v in built_model().trainable_variables]
    optimizers = [inner() for _ in range(size)]
    models = [built_model() for _ in range(size)]
    for number in range(rounds):
        changes = []
        for rank in range(size):
            x, y = batches_of(rank, rounds * every)
            variables = models[rank].trainable_variables
            for variable, value in zip(variables, base, strict=True):
                variable.assign(value)
            for i in range(number * every, (number + 1) * every):
                with tf.GradientTape() as tape:
                    loss = LOSS(y[i], models[rank](x[i]))
                optimizers[rank].apply(
                    tape.gradient(loss, variables), variables
                )
            ends = [np.asarray(v) for v in variables]
            changes.append([b - e for b, e in zip(base, ends, strict=True)])
        means = [np.mean(each, 0) for each in zip(*changes, strict=True)]
        base = [outer(i, b, means[i]) for i, b in enumerate(base)]
    return base


def plain(i, weights, change):
    return weights - change


def nesterov():
    velocity = {}

    def update(i, weights, change):
        velocity[i] = 0.7 * velocity.get(i, 0) - 0.9 * change
        return weights + 0.7 * velocity[i] - 0.9 * change

    return update


def assert_close(model, expected, rtol=1e-4):
    assert_each_close(model.trainable_variables, expected, rtol=rtol, atol=1e-6)
