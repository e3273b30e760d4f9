"""Shared by many tests: ways to run a step, values, comparisons."""

from __future__ import annotations

import contextlib
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring
from tfring._ops.reductions import SUPPORTED_DTYPES


def thorough(*values):
    """A parameter of a test that only the thorough suite runs."""
    return pytest.param(*values, marks=pytest.mark.thorough)


def all_thorough_but(in_gate, values):
    """The parameters `values`; the gate runs only those in `in_gate`."""
    return [each if each in in_gate else thorough(each) for each in values]


# How a step is run; the fixture `mode` has each of them.
MODES = {
    "eager": lambda function: function,
    "graph": tf.function,
    "xla": lambda function: tf.function(function, jit_compile=True),
}
# For a test of collectives that XLA cannot compile.
without_xla = pytest.mark.parametrize("mode", ["eager", "graph"], indirect=True)
# XLA in the thorough suite alone.
xla_is_thorough = pytest.mark.parametrize(
    "mode",
    ["eager", "graph", thorough("xla")],
    indirect=True,
)
jit_compile_is_thorough = pytest.mark.parametrize(
    "jit_compile", [False, thorough(True)]
)
NUMPY_REDUCTIONS = {
    tfring.Average: np.mean,
    tfring.Sum: np.sum,
    tfring.Min: np.min,
    tfring.Max: np.max,
    tfring.Product: np.prod,
}
DTYPES = sorted(SUPPORTED_DTYPES, key=lambda dtype: dtype.name)


def values_of(rank, shape, dtype=tf.float32, seed=0):
    """A rank's contribution: small whole numbers, exact in any dtype."""
    generator = np.random.default_rng([seed, rank])
    if dtype == tf.bool:
        return generator.integers(0, 2, shape).astype(bool)
    lowest = 1 if dtype.is_unsigned else -3
    return generator.integers(lowest, 4, shape).astype(dtype.as_numpy_dtype)


def gradient_of(function):
    """The gradient of all elements of a result, by the argument."""

    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            result = function(x)
        return tape.gradient(result, x)

    return gradient


def ancestors(operation):
    """The names of all operations of a graph that run before."""
    found, rest = set(), [operation]
    while rest:
        each = rest.pop()
        for other in [t.op for t in each.inputs] + each.control_inputs:
            if other.name not in found:
                found.add(other.name)
                rest.append(other)
    return found


def bits_of(variables):
    return [np.asarray(v).tobytes() for v in variables]


def state_bits(model):
    """The bits of a model's variables and of its optimizer's."""
    return bits_of([*model.variables, *model.optimizer.variables])


def assert_each_equal(values, expected):
    for value, wanted in zip(values, expected, strict=True):
        np.testing.assert_array_equal(value, wanted)


def assert_each_close(values, expected, **tolerances):
    for value, wanted in zip(values, expected, strict=True):
        name = getattr(value, "path", "")
        np.testing.assert_allclose(value, wanted, err_msg=name, **tolerances)


def assert_alike(value):
    """All ranks have the same value."""
    of_ranks = tfring.allgather_object(value)
    assert of_ranks == [of_ranks[0]] * len(of_ranks)


def assert_same_on_all_ranks(variables):
    """All ranks have the same bits of each variable."""
    assert_alike(bits_of(variables))


def assert_all_differ(variables):
    """No two ranks have the same bits of any of them."""
    of_ranks = tfring.allgather_object(bits_of(variables))
    for of_variable in zip(*of_ranks, strict=True):
        assert len(set(of_variable)) == len(of_ranks)


@contextlib.contextmanager
def job_with(**settings):
    """The same ranks begin a job with settings of this rank, and end it."""
    with pytest.MonkeyPatch.context() as environment:
        tfring.shutdown()
        for name, value in settings.items():
            environment.setenv(name, value)
        tfring.init()
        yield
        tfring.shutdown()
    tfring.init()


def warnings_of(category, function):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function()
    return [
        str(warning.message)
        for warning in caught
        if warning.category is category
    ]


def data_for(model, rows, seed=0):
    """Inputs, some of them words below 20, and targets."""
    rng = np.random.default_rng(seed)
    inputs = [
        rng.integers(0, 20, (rows, *x.shape[1:]))
        if x.dtype == "int32"
        else rng.normal(size=(rows, *x.shape[1:])).astype("float32")
        for x in model.inputs
    ]
    return inputs, rng.normal(size=(rows, 1)).astype("float32")


def compiled(optimizer, *layers, loss="mse", **how):
    """A model of these layers, one behind the other."""
    model = keras.Sequential([*layers])
    model.compile(optimizer, loss, **how)
    return model


def fit_noise(model, rank, **arguments):
    """Trains on four batches, which differ between the ranks."""
    rng = np.random.default_rng(rank)
    x, y = rng.normal(size=(16, 3)), rng.normal(size=(16, 1))
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0, **arguments)


def small_model():
    optimizer = tfring.DistributedOptimizer(keras.optimizers.Adam(0.1))
    return compiled(optimizer, keras.Input((2,)), keras.layers.Dense(1))


def with_loss_scale(optimizer, *, inside, **options):
    """The optimizer is distributed inside of a loss scale, or around it."""
    scaled = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=4.0)
    tfring.DistributedOptimizer(optimizer if inside else scaled, **options)
    return scaled


class CutOffError(Exception):
    """Stands for the end of a job."""


class CutOffAt(keras.callbacks.Callback):
    """Ends a training after `count` batches, on all ranks."""

    def __init__(self, count):
        super().__init__()
        self.left = count

    def on_train_batch_begin(self, batch, logs=None):
        self.left -= 1
        if self.left < 0:
            raise CutOffError


class FailsOnce(keras.callbacks.Callback):
    """Raises an error before the batch of an epoch, once on all ranks."""

    def __init__(self, epoch, step, error=tfring.elastic.HorovodInternalError):
        super().__init__()
        self.when = epoch, step
        self.error = error
        self.epoch = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if (self.epoch, batch) == self.when:
            self.when = None
            raise self.error("a rank is lost")


class Largest(keras.metrics.Metric):
    """A metric whose state is no sum."""

    def __init__(self, name="largest"):
        super().__init__(name=name)
        self.largest = self.add_variable((), "zeros", name="largest")

    def update_state(self, y_true, y_pred, sample_weight=None):
        largest = tf.reduce_max(tf.cast(y_true, tf.float32))
        self.largest.assign(tf.maximum(self.largest, largest))

    def result(self):
        return self.largest + 0.0


class Pair(keras.Model):
    """Two layers, each with an optimizer, and no optimizer from `compile`."""

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
