"""The warning of training that reduces nothing."""

from __future__ import annotations

import warnings
from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import thorough, warnings_of

import tfring
from tfring._gradients import reducer
from tfring._optim import undistributed

DISTRIBUTED = tfring.DistributedOptimizer
LOSS_SCALE = keras.optimizers.LossScaleOptimizer
warned = partial(warnings_of, tfring.NotDistributedWarning)
BATCH = np.ones([2, 3], np.float32), np.ones([2, 1], np.float32)


class OwnStep(keras.Sequential):
    def train_step(self, data):
        x, y = data[:2]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((y - self(x, training=True)) ** 2)
        gradients = self.gradients_of(tape, loss)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {}

    def gradients_of(self, tape, loss):
        return tape.gradient(loss, self.trainable_variables)


class WithATape(OwnStep):
    process_set = tfring.global_process_set

    def gradients_of(self, tape, loss):
        tape = tfring.DistributedGradientTape(
            tape, process_set=self.process_set
        )
        return super().gradients_of(tape, loss)


class WithAllreduce(OwnStep):
    def gradients_of(self, tape, loss):
        gradients = super().gradients_of(tape, loss)
        return tfring.grouped_allreduce(gradients, name="by hand")


def train(kind, optimizer, *, batches=1, **arguments):
    model = kind([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse", jit_compile=False, **arguments)
    for _ in range(batches):
        model.train_on_batch(*BATCH)
    return model


@pytest.fixture(autouse=True)
def _not_warned(monkeypatch):
    monkeypatch.setattr(undistributed, "_warned", False)


def sgd():
    return keras.optimizers.SGD()


@pytest.mark.parametrize("eagerly", [False, thorough(True)])
@pytest.mark.parametrize(
    ("kind", "wrap", "warns"),
    [
        (keras.Sequential, lambda o: o, True),
        (keras.Sequential, LOSS_SCALE, True),
        (keras.Sequential, DISTRIBUTED, False),
        (keras.Sequential, lambda o: LOSS_SCALE(DISTRIBUTED(o)), False),
        (keras.Sequential, lambda o: DISTRIBUTED(LOSS_SCALE(o)), False),
        (
            keras.Sequential,
            lambda o: DISTRIBUTED(o, backward_passes_per_step=2),
            False,
        ),
        (OwnStep, lambda o: o, True),
        (OwnStep, DISTRIBUTED, False),
        (WithATape, lambda o: o, False),
        (WithAllreduce, lambda o: o, False),
    ],
)
def test_who_is_warned(kind, wrap, warns, eagerly, rank, size):
    texts = warned(
        lambda: train(kind, wrap(sgd()), batches=2, run_eagerly=eagerly)
    )
    assert len(texts) == (warns and size > 1 and rank == 0)
    assert all("is not distributed" in text for text in texts)


def test_a_model_that_keras_loads(rank, size, tmp_path):
    keras.utils.set_random_seed(0)
    train(keras.Sequential, DISTRIBUTED(sgd())).save(tmp_path / "model.keras")

    def fit(load):
        load(tmp_path / "model.keras").fit(*BATCH, verbose=0)

    assert warned(lambda: fit(tfring.load_model)) == []
    texts = warned(lambda: fit(keras.models.load_model))
    assert len(texts) == (size > 1 and rank == 0)
    assert warned(lambda: fit(keras.models.load_model)) == []  # once is enough


@pytest.mark.parametrize("kind", [keras.Sequential, WithATape])
def test_a_rank_may_train_alone_if_it_says_so(kind, sets_of_one, rank):
    class InASet(kind):
        process_set = sets_of_one[rank]

    def wrap(optimizer):
        if kind is WithATape:
            return optimizer
        return DISTRIBUTED(optimizer, process_set=sets_of_one[rank])

    assert warned(lambda: train(InASet, wrap(sgd()))) == []


@pytest.mark.parametrize("kind", [keras.Sequential, OwnStep])
def test_as_an_error_it_is_one_on_every_rank(kind, several_ranks, size):
    with warnings.catch_warnings():
        warnings.simplefilter("error", tfring.NotDistributedWarning)
        with pytest.raises(tfring.NotDistributedWarning, match=f"{size} ranks"):
            train(kind, sgd())


@pytest.mark.parametrize(
    ("how", "warns"), [("alone", True), ("by a tape", False), ("itself", False)]
)
def test_an_optimizer_that_averages_where_it_computes(
    how, warns, rank, several_ranks, monkeypatch
):
    """In TensorFlow 1 and Keras 2, `apply_gradients` does not average."""
    monkeypatch.setattr(reducer, "_calls", 0)
    variable = tf.Variable([1.0])
    passes = 2 if how == "itself" else 1  # reduces nothing in the first
    optimizer = DISTRIBUTED(
        tf.compat.v1.train.GradientDescentOptimizer(1.0),
        backward_passes_per_step=passes,
    )

    def step():
        if how == "itself":
            optimizer.minimize(lambda: variable * 2.0, var_list=[variable])
            return
        with tf.GradientTape() as tape:
            loss = variable * 2.0
        if how == "by a tape":
            tape = tfring.DistributedGradientTape(tape)
        gradient = tape.gradient(loss, variable)
        optimizer.apply_gradients([(gradient, variable)])

    assert len(warned(step)) == (warns and rank == 0)


def test_it_can_be_ignored(rank, size):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore", tfring.NotDistributedWarning)
        train(keras.Sequential, sgd())
    assert caught == []
