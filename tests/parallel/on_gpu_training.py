"""Models trained on a GPU; see on_gpu.py."""

from __future__ import annotations

from pathlib import Path

import fake_driver
import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import compiled
from mpi4py import MPI

import tfring
from tfring.timeline import summary


def data_of(rank):
    rng = np.random.default_rng(rank)
    x = rng.normal(size=(64, 6)).astype(np.float32)
    return x, np.sum(x, axis=1, keepdims=True)


def dense_model():
    keras.utils.set_random_seed(3)
    return keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, "relu"),
            keras.layers.Dense(1),
        ]
    )


def weights_of_one_process(size):
    """On the CPU, from the batches of all ranks."""
    with tf.device("CPU:0"):
        model = dense_model()
        model.compile(keras.optimizers.SGD(0.05), "mse", jit_compile=False)
        batches = [
            np.split(np.stack([data_of(r)[i] for r in range(size)]), 4, axis=1)
            for i in range(2)
        ]
        for x, y in zip(*batches, strict=True):
            model.train_on_batch(x.reshape(-1, 6), y.reshape(-1, 1))
        return model.get_weights()


@pytest.mark.parametrize("jit_compile", ["auto", False, True])
def test_fit_is_that_of_one_process(slow_streams, jit_compile, rank, size):
    expected = weights_of_one_process(size)
    model = dense_model()
    model.compile(
        tfring.DistributedOptimizer(keras.optimizers.SGD(0.05)),
        "mse",
        jit_compile=jit_compile,
    )
    x, y = data_of(rank)
    model.fit(x, y, batch_size=16, shuffle=False, verbose=0)
    for variable, weights in zip(model.variables, expected, strict=False):
        assert "GPU:0" in variable.value.device
        np.testing.assert_allclose(
            variable.numpy(), weights, rtol=2e-4, atol=2e-5
        )


def test_gradients_are_reduced_on_the_gpu(rank, size):
    model = dense_model()
    x, y = data_of(rank)
    with tfring.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = tf.reduce_mean(tf.square(model(x) - y))
    for gradient in tape.gradient(loss, model.trainable_variables):
        assert "GPU:0" in gradient.device


def test_timeline_of_a_fit(shared_path: Path, record_property, rank, size):
    """How much overlaps is for the eye, and for a benchmark."""
    path = shared_path / "timeline.json"
    width = 2048 if fake_driver.options() is None else 16
    model = compiled(
        tfring.DistributedOptimizer(keras.optimizers.SGD(1e-6), groups=4),
        keras.Input((width,)),
        *(keras.layers.Dense(width) for _ in range(8)),
    )
    x = np.ones((32, width), np.float32)
    model.train_on_batch(x, x)  # traced, and compiled
    tfring.start_timeline(str(path))
    for _ in range(5):
        model.train_on_batch(x, x)
    tfring.stop_timeline()
    MPI.COMM_WORLD.Barrier()
    ranks = summary.summarize(summary.read(path)).ranks
    overlap = [f"{ranks[r].overlap:.0%}" for r in range(size)]
    record_property("overlap of each rank", " ".join(overlap))
    if size == 1:
        return  # there is nothing to do
    for of_rank in ranks.values():
        assert of_rank.requests >= 5 * 4
        assert of_rank.count_bytes >= 5 * 8 * 4 * width * width
