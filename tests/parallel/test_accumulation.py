"""Accumulated gradients stay when ranks receive the state of one rank.

Each rank keeps the gradients of its own batches. An epoch has three batches,
and an update follows two batches, so that each epoch begins or ends in the
middle of an update.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
from helpers import assert_each_close, compiled, thorough

import tfring
from tfring.callbacks import BroadcastGlobalVariablesCallback, JoinCallback

ROWS, BATCH, PASSES = 72, 24, 2


def make_model(optimizer):
    keras.utils.set_random_seed(5)
    return compiled(
        optimizer,
        keras.Input((10,)),
        keras.layers.Dense(16, "tanh"),
        keras.layers.Dense(3),
        jit_compile=False,
    )


def plain():
    return keras.optimizers.SGD(
        0.1, momentum=0.9, gradient_accumulation_steps=PASSES
    )


def distributed(shard_states):
    return tfring.DistributedOptimizer(plain(), shard_states=shard_states)


def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 10)).astype("float32")
    return x, (x @ rng.normal(size=(10, 3))).astype("float32")


def fit(model, rank, size, callbacks=(), epochs=1):
    x, y = data()
    model.fit(
        *(x[rank::size], y[rank::size]),
        batch_size=BATCH // size,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=list(callbacks),
    )
    return model


def second_fit(shard_states, rank, size, path):
    model = make_model(distributed(shard_states))
    for _ in range(2):
        callback = BroadcastGlobalVariablesCallback(0)
        fit(model, rank, size, [callback])
    return model


def joined(shard_states, rank, size, path):
    model = make_model(distributed(shard_states))
    return fit(model, rank, size, [JoinCallback()], epochs=2)


def backup(shard_states, rank, size, path):
    for epochs in (1, 2):
        model = make_model(distributed(shard_states))
        saves = keras.callbacks.BackupAndRestore(path, delete_checkpoint=False)
        fit(model, rank, size, [saves], epochs=epochs)
    return model


def saved(shard_states, rank, size, path):
    """Rank 0 saves by itself, after `fit`, and is the only one to load."""
    model = fit(make_model(distributed(shard_states)), rank, size)
    with tfring.whole_states(model, root_rank=0):
        if rank == 0:
            model.save_weights(f"{path}/saved.weights.h5")
    model = make_model(distributed(shard_states))
    model.optimizer.build(model.trainable_variables)
    if rank == 0:
        model.load_weights(f"{path}/saved.weights.h5")
    return fit(model, rank, size, [BroadcastGlobalVariablesCallback(0)])


def by_batches(model, rank, size, batches):
    """Trains without `fit`."""
    x, y = data()
    for batch in batches:
        rows = slice(batch * BATCH + rank, (batch + 1) * BATCH, size)
        model.train_on_batch(x[rows], y[rows])


def committed(shard_states, rank, size, path):
    """A rank loses its gradients, and receives the commit of rank 0."""
    model = make_model(distributed(shard_states))
    by_batches(model, rank, size, range(3))
    state = tfring.elastic.TensorFlowKerasState(model)
    state.commit()
    if rank > 0:
        for variable in model.optimizer._accumulated_gradients:
            variable.assign(variable + 100)
        model.optimizer._iterations.assign(0)
    state.sync()
    by_batches(model, rank, size, range(3))
    return model


def broadcast(shard_states, rank, size, path):
    model = make_model(distributed(shard_states))
    by_batches(model, rank, size, range(3))
    tfring.broadcast_variables(model.optimizer.variables, root_rank=0)
    by_batches(model, rank, size, range(3))
    return model


@pytest.mark.parametrize("shard_states", [False, thorough(True)])
@pytest.mark.parametrize(
    "how", [second_fit, joined, backup, saved, committed, broadcast]
)
def test_trains_as_one_process(how, shard_states, rank, size, shared_path):
    if how is joined and shard_states:
        pytest.skip("JoinCallback does not go with shards.")
    model = how(shard_states, rank, size, str(shared_path))
    alone = fit(make_model(plain()), 0, 1, epochs=2)
    assert_each_close(
        *(model.trainable_variables, alone.trainable_variables),
        rtol=1e-4,
        atol=1e-5,
    )
