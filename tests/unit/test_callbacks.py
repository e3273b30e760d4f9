"""The learning rate callbacks' arithmetic, as if there were four ranks."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfring import callbacks
from tfring._core import runtime

STEPS = 5  # batches in an epoch


@pytest.fixture(autouse=True)
def four_ranks(monkeypatch):
    monkeypatch.setattr(runtime, "size", lambda: 4)
    monkeypatch.setattr(runtime, "rank", lambda: 0)


def train(callback, optimizer=None, *, epochs=3, **arguments):
    """Returns the learning rate of every batch, and the history."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(optimizer or keras.optimizers.SGD(0.4), "mse")
    rates = []

    def note(batch, logs):
        rates.append(float(model.optimizer.learning_rate))

    notes = keras.callbacks.LambdaCallback(on_train_batch_end=note)
    history = model.fit(
        **({"x": np.ones((STEPS, 1)), "y": np.ones((STEPS, 1))} | arguments),
        batch_size=None if "x" in arguments else 1,
        epochs=epochs,
        callbacks=[callback, notes],
        verbose=0,
    )
    return rates, history.history


def test_warmup_grows_with_every_batch_to_the_initial_rate():
    rates, history = train(callbacks.LearningRateWarmupCallback(0.4, 2))
    warmup = 0.1 + 0.3 * np.arange(1, 2 * STEPS + 1) / (2 * STEPS)
    np.testing.assert_allclose(rates, [*warmup, *[0.4] * STEPS], rtol=1e-6)
    np.testing.assert_allclose(history["learning_rate"], [0.25, 0.4, 0.4])


@pytest.mark.parametrize("rank", [0, 1])
def test_warmup_says_so_on_rank_0(rank, monkeypatch, capsys):
    monkeypatch.setattr(runtime, "rank", lambda: rank)
    train(callbacks.LearningRateWarmupCallback(0.4, 2, verbose=1))
    said = "Epoch 2: learning rate warmed up to 0.4." in capsys.readouterr().out
    assert said == (rank == 0)


def test_schedule_by_function_in_stairs():
    rates, _ = train(
        callbacks.LearningRateScheduleCallback(
            1.0, lambda epoch: epoch + 1, end_epoch=2
        )
    )
    assert rates == [1.0] * STEPS + [2.0] * 2 * STEPS


def test_schedule_by_function_of_fractional_epochs():
    rates, _ = train(
        callbacks.LearningRateScheduleCallback(
            1.0, lambda epoch: 1 + epoch, staircase=False
        )
    )
    np.testing.assert_allclose(rates, 1 + np.arange(3 * STEPS) / STEPS)


def test_schedule_by_number_decays_from_its_first_epoch():
    rates, _ = train(
        callbacks.LearningRateScheduleCallback(0.8, 0.5, start_epoch=1)
    )
    np.testing.assert_allclose(
        rates, [0.4] * STEPS + [0.8] * STEPS + [0.4] * STEPS, rtol=1e-6
    )


@pytest.mark.parametrize(
    "optimizer",
    [
        keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 9)),
        keras.optimizers.MultiOptimizer(
            keras.optimizers.OptimizerMap(keras.optimizers.SGD())
        ),
    ],
    ids=["schedule", "MultiOptimizer"],
)
def test_learning_rate_that_cannot_be_set(optimizer):
    with pytest.raises(ValueError, match="LearningRateSchedule, or there are"):
        train(callbacks.LearningRateWarmupCallback(0.4), optimizer)


def test_dataset_of_unknown_length_needs_steps_per_epoch():
    def dataset():
        each = tf.data.Dataset.from_tensors((np.ones((1, 1)), np.ones((1, 1))))
        return each.repeat(STEPS).filter(lambda x, y: True)

    with pytest.raises(ValueError, match="steps_per_epoch"):
        train(callbacks.LearningRateWarmupCallback(0.4, 2), x=dataset(), y=None)
    rates, _ = train(
        callbacks.LearningRateWarmupCallback(0.4, 2, steps_per_epoch=STEPS),
        x=dataset(),
        y=None,
    )
    assert rates[2 * STEPS - 1] == pytest.approx(0.4)


@pytest.mark.parametrize("correct", [True, False])
@pytest.mark.parametrize("scaled_loss", [True, False])
def test_momentum_correction(correct, scaled_loss):
    # In the paper's terms: v = momentum * (new / old rate) * v - rate * g in
    # the step of the change.
    sgd = keras.optimizers.SGD(0.1, momentum=0.5)
    outer = keras.optimizers.LossScaleOptimizer(sgd) if scaled_loss else sgd
    variable = keras.Variable([0.0])
    outer.build([variable])
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(outer, "mse")
    callback = callbacks.LearningRateScheduleCallback(
        0.1, 0.1, momentum_correction=correct
    )
    callback.set_model(model)
    velocity = 0.0
    callback.on_train_begin()
    for epoch in range(3):
        callback.on_epoch_begin(epoch)
        for batch in range(2):
            callback.on_train_batch_begin(batch)
            rate = 0.1 * 0.1**epoch
            change = 0.1 if correct and epoch > 0 and batch == 0 else 1.0
            velocity = 0.5 * change * velocity - rate * 1.0
            sgd.apply([tf.constant([1.0])])
            assert sgd.momentums[0].numpy()[0] == pytest.approx(velocity)


def test_rmsprop_velocities_are_corrected():
    rmsprop = keras.optimizers.RMSprop(0.1, momentum=0.5)
    rmsprop.build([keras.Variable([0.0])])
    callback = callbacks.LearningRateScheduleCallback(0.1, 0.5)
    assert len(callback._velocities(rmsprop)) == 1
    assert callback._velocities(keras.optimizers.Adam()) == []
