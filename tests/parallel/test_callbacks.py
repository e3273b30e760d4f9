"""Callbacks in `fit`: one state to start from, one set of metrics to read."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from helpers import assert_alike, assert_same_on_all_ranks, bits_of, fit_noise

import tfring


class Unbuilt(keras.Model):
    """Has no variables before it has seen a batch."""

    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(4)
        self.dropout = keras.layers.Dropout(0.5)
        self.head = keras.layers.Dense(1)

    def call(self, inputs, training=False):
        hidden = self.hidden(inputs)
        return self.head(self.dropout(hidden, training=training))


def built():
    return keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(4),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(1),
        ]
    )


@pytest.mark.parametrize("make_model", [built, Unbuilt])
def test_training_starts_from_the_root(make_model, rank, size):
    keras.utils.set_random_seed(rank)
    model = make_model()
    rate = 0.1 * (rank + 1)
    model.compile(
        tfring.DistributedOptimizer(keras.optimizers.Adam(rate)), "mse"
    )
    states = []

    def look(batch, logs):
        # This leaves out seeds, because each rank has its own.
        states.append(bits_of(model.weights + model.optimizer.variables))

    looks = keras.callbacks.LambdaCallback(on_train_batch_begin=look)
    broadcast = tfring.callbacks.BroadcastGlobalVariablesCallback(size - 1)
    fit_noise(model, rank, callbacks=[broadcast, looks])
    if make_model is built:
        assert_alike(states[0])
    # BatchNormalization's statistics are of each rank's own batches.
    assert_same_on_all_ranks(model.trainable_variables)
    assert_same_on_all_ranks(model.optimizer.variables)
    assert float(model.optimizer.learning_rate) == pytest.approx(0.1 * size)


def test_local_variables_are_not_broadcast(rank):
    keras.utils.set_random_seed(rank)
    model = built()
    own = model.layers[0].kernel
    before = own.numpy()
    model.compile("sgd", "mse")
    broadcast = tfring.callbacks.BroadcastGlobalVariablesCallback(
        0, "", local_variables=[own]
    )
    broadcast.set_model(model)
    broadcast.on_train_batch_begin(0)
    np.testing.assert_array_equal(own, before)
    assert_same_on_all_ranks(model.layers[-1].variables)


def test_every_fit_starts_from_the_root(rank):
    keras.utils.set_random_seed(0)
    model = built()
    model.compile(tfring.DistributedOptimizer(keras.optimizers.SGD()), "mse")
    broadcast = tfring.callbacks.BroadcastGlobalVariablesCallback()
    fit_noise(model, rank, callbacks=[broadcast])
    if rank == 0:  # as from a checkpoint
        model.set_weights([w + 1 for w in model.get_weights()])
    fit_noise(model, rank, callbacks=[broadcast])
    assert_same_on_all_ranks(model.trainable_variables)


def test_metrics_of_one_rank_alone_are_an_error_on_all(rank, several_ranks):
    logs = {"loss": 1.0}
    if rank == 0:
        logs["val_loss"] = 2.0
    with pytest.raises(ValueError, match="Rank 0 has 'loss', 'val_loss';"):
        tfring.callbacks.MetricAverageCallback().on_epoch_end(0, logs)
