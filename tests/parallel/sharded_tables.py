"""A model with a `ShardedEmbedding`, and its data."""

from __future__ import annotations

import keras
import numpy as np
from helpers import compiled

import tfring
from tfring.layers import ShardedEmbedding

ROWS, WIDTH, BATCH, STEPS = 23, 3, 4, 5
OPTIMIZERS = {
    "SGD": lambda **how: keras.optimizers.SGD(0.1, momentum=0.9, **how),
    "Adagrad": lambda **how: keras.optimizers.Adagrad(0.1, **how),
    "Adam": lambda **how: keras.optimizers.Adam(0.1, **how),
}
TABLE = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype("float32")


def batches_of(rank):
    """Ids that repeat in a batch and between ranks, and targets."""
    rng = np.random.default_rng([1, rank])
    ids = ROWS * rng.power(0.4, (STEPS * BATCH, 2))
    return ids.astype(int) % ROWS, rng.normal(size=(STEPS * BATCH, 1))


def with_table(**how):
    embedding = ShardedEmbedding(ROWS, WIDTH, **how)
    embedding.set_table(TABLE)
    return embedding


def model_with(optimizer, embedding=None, **how):
    embedding = with_table() if embedding is None else embedding
    keras.utils.set_random_seed(3)
    return compiled(
        optimizer,
        keras.Input((2,), dtype="int32"),
        embedding,
        keras.layers.Flatten(),
        keras.layers.Dense(1),
        **how,
    )


def make_model(optimizer=None, **how):
    optimizer = optimizer or OPTIMIZERS["Adam"]()
    return model_with(tfring.DistributedOptimizer(optimizer, **how))


def fit(model, **how):
    ids, y = batches_of(tfring.rank())
    model.fit(ids, y, batch_size=BATCH, shuffle=False, verbose=0, **how)
    return model
