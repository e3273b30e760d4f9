"""A model whose optimizer's states lie in shares."""

from __future__ import annotations

import keras
import numpy as np
from helpers import compiled

import tfring


def adam(shard_states=True, **options):
    return tfring.DistributedOptimizer(
        keras.optimizers.Adam(0.01), shard_states=shard_states, **options
    )


def make_model(optimizer=None, jit_compile=False):
    keras.utils.clear_session()
    keras.utils.set_random_seed(3)
    return compiled(
        optimizer or adam(),
        keras.Input((12,)),
        keras.layers.Dense(33, activation="relu"),
        keras.layers.Dense(8, trainable=False),
        keras.layers.Dense(1, kernel_constraint="non_neg"),
        jit_compile=jit_compile,
    )


def fit(model, epochs=1, callbacks=()):
    rng = np.random.default_rng(tfring.rank())
    x = rng.normal(size=(16, 12)).astype("float32")
    y = rng.normal(size=(16, 1)).astype("float32")
    model.fit(
        *(x, y, 4, epochs),
        callbacks=list(callbacks),
        shuffle=False,
        verbose=0,
    )
    return model
