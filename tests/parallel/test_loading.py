"""A model that is saved, loaded and wrapped again resumes its training."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_each_equal, assert_same_on_all_ranks

import tfring


class OwnAdam(keras.optimizers.Adam):
    """Not registered with Keras."""


def fit(model, rank):
    rng = np.random.default_rng(rank)
    x, y = rng.normal(size=(16, 3)), rng.normal(size=(16, 1))
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0)


def test_training_goes_on(rank, size, tmp_path):
    options = {"backward_passes_per_step": 2}
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(
        tfring.DistributedOptimizer(OwnAdam(0.01), **options), loss="mse"
    )
    fit(model, rank)
    path = tmp_path / "model.keras"
    model.save(path)
    loaded = tfring.load_model(path, [OwnAdam], **options)
    assert isinstance(loaded.optimizer, OwnAdam)
    assert_each_equal(loaded.optimizer.variables, model.optimizer.variables)
    fit(model, rank)
    fit(loaded, rank)
    assert_each_equal(loaded.weights, model.weights)
    assert_same_on_all_ranks(loaded.weights)


def test_compression_of_a_loaded_model(rank, size, tmp_path):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1.0), loss="mse")
    model.save(tmp_path / "model.keras")
    loaded = tfring.load_model(
        tmp_path / "model.keras", compression=tfring.Compression.bf16
    )
    kernel = loaded.weights[0]
    kernel.assign([[0.0]])
    loaded.optimizer.apply([tf.constant([[1.001]])], [kernel])
    assert kernel.numpy()[0, 0] == np.float32(-1.001 if size == 1 else -1)


def test_a_model_without_an_optimizer(tmp_path):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.save(tmp_path / "model.keras")
    loaded = tfring.load_model(tmp_path / "model.keras")
    assert not hasattr(loaded, "optimizer")


def test_older_optimizers_are_refused():
    with pytest.raises(ValueError, match="legacy_opts must be False"):
        tfring.load_model("none.keras", legacy_opts=True)


def test_custom_optimizers_are_classes():
    with pytest.raises(TypeError, match="must be subclasses"):
        tfring.load_model("model.keras", ["OwnAdam"])
