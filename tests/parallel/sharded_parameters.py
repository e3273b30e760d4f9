"""Models of `shard_parameters`, and their data."""

from __future__ import annotations

import contextlib

import keras
import numpy as np

import tfring

layers, optimizers = keras.layers, keras.optimizers
WORDS, WIDTH, LENGTH, BATCH, STEPS = 60, 16, 4, 4, 3
# The groups are the embedding, each of the blocks, and the head.
SCOPE = {"min_elements": 200, "group_bytes": 6200}


def scope(sharded=True, **how):
    if sharded:
        return tfring.shard_parameters(**SCOPE, **how)
    return contextlib.nullcontext()


class Block(layers.Layer):
    def __init__(self, remat=False, **how):
        super().__init__(**how)
        self.remat = remat

    def build(self, shape):
        self.wide = layers.Dense(3 * WIDTH, activation="tanh")
        self.narrow = layers.Dense(WIDTH)
        self.norm = layers.LayerNormalization()
        self.wide.build(shape)
        self.narrow.build((*shape[:-1], 3 * WIDTH))
        self.norm.build(shape)
        self.built = True

    def call(self, x):
        def of(y):
            return self.narrow(self.wide(y))

        return self.norm(x + (keras.remat(of) if self.remat else of)(x))


def stacked(blocks=2, *, remat=False, tied=False, lstm=False, regularizer=None):
    words = keras.Input((LENGTH,), dtype="int32")
    embed = layers.ReversibleEmbedding(WORDS, WIDTH)
    x = embed(words)
    if lstm:
        x = layers.LSTM(WIDTH, return_sequences=True, use_cudnn=False)(x)
        x = layers.BatchNormalization()(x)
    for _ in range(blocks):
        x = Block(remat)(x)
    head = layers.Dense(WORDS, kernel_regularizer=regularizer)
    x = embed(x, reverse=True) if tied else head(x)
    return keras.Model(words, layers.Activation("linear", dtype="float32")(x))


def built(sharded=True, make=stacked, **how):
    keras.utils.clear_session()
    keras.utils.set_random_seed(3)
    with scope(sharded, **how):
        return make()


def data(steps=STEPS):
    rng = np.random.default_rng(tfring.rank())
    words = rng.integers(0, WORDS, (steps * BATCH, LENGTH))
    return words, np.roll(words, 1, axis=1)


def adam(**how):
    return optimizers.Adam(0.01, **how)


def compiled(model, optimizer=None, **how):
    model.compile(
        optimizer or tfring.DistributedOptimizer(adam(), shard_states=True),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        **{"jit_compile": False, **how},
    )
    return model


def make_model():
    return compiled(built(make=lambda: stacked(1)))


def fit(model, callbacks=(), epochs=1, **how):
    model.fit(
        *data(),
        batch_size=BATCH,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=list(callbacks),
        **how,
    )
    return model


def whole_weights(model):
    with tfring.whole_states(model):
        return model.get_weights()
