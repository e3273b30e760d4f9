"""Shared by many tests: ways to run a step, values, comparisons."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring
from tfring._ops.reductions import SUPPORTED_DTYPES

# How a step is run; the fixture `mode` has each of them.
MODES = {
    "eager": lambda function: function,
    "graph": tf.function,
    "xla": lambda function: tf.function(function, jit_compile=True),
}
# For a test of collectives that XLA cannot compile.
without_xla = pytest.mark.parametrize("mode", ["eager", "graph"], indirect=True)
DTYPES = sorted(SUPPORTED_DTYPES, key=lambda dtype: dtype.name)


def values_of(rank, shape, dtype=tf.float32, seed=0):
    """A rank's contribution: small whole numbers, exact in any dtype."""
    generator = np.random.default_rng([seed, rank])
    if dtype == tf.bool:
        return generator.integers(0, 2, shape).astype(bool)
    lowest = 1 if dtype.is_unsigned else -3
    return generator.integers(lowest, 4, shape).astype(dtype.as_numpy_dtype)


def bits_of(variables):
    return [np.asarray(v).tobytes() for v in variables]


def assert_alike(value):
    """All ranks have the same value."""
    of_ranks = tfring.allgather_object(value)
    assert of_ranks == [of_ranks[0]] * len(of_ranks)


def assert_same_on_all_ranks(variables):
    """To the bit."""
    assert_alike(bits_of(variables))


def warnings_of(category, function):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function()
    return [
        str(warning.message)
        for warning in caught
        if warning.category is category
    ]


def small_model():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam(0.1)
    model.compile(tfring.DistributedOptimizer(optimizer), "mse")
    return model


class Largest(keras.metrics.Metric):
    """Nothing that could be added up."""

    def __init__(self, name="largest"):
        super().__init__(name=name)
        self.largest = self.add_variable((), "zeros", name="largest")

    def update_state(self, y_true, y_pred, sample_weight=None):
        largest = tf.reduce_max(tf.cast(y_true, tf.float32))
        self.largest.assign(tf.maximum(self.largest, largest))

    def result(self):
        return self.largest + 0.0


class Pair(keras.Model):
    """Two layers with an optimizer each, and none of `compile`."""

    def __init__(self, width, **options):
        super().__init__()
        self.one, self.two = (keras.layers.Dense(width) for _ in range(2))
        for layer in (self.one, self.two):
            layer.build((None, width))
        self.built = True
        self.of_one = tfring.DistributedOptimizer("adam", **options)
        self.others = [tfring.DistributedOptimizer("adam", **options)]

    def parts(self):
        return (self.one, self.of_one), (self.two, self.others[0])

    def train_step(self, data):
        x, _ = data
        for layer, optimizer in self.parts():
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((layer(x) - x) ** 2)
            variables = layer.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}
