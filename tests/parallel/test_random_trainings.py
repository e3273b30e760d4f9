"""Random trainings match one process on the global batch."""

from __future__ import annotations

import contextlib
import dataclasses
import random

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import all_thorough_but

import tfring
from tfring import callbacks

IN_GATE, ALL = 1, 200
WORDS, ROWS = 30, 120

OPTIMIZERS = {
    "sgd": lambda **how: keras.optimizers.SGD(0.1, momentum=0.9, **how),
    "nesterov": lambda **how: keras.optimizers.SGD(
        0.1, momentum=0.5, nesterov=True, weight_decay=1e-2, **how
    ),
    "adam": lambda **how: keras.optimizers.Adam(0.01, epsilon=1e-3, **how),
    "adamw": lambda **how: keras.optimizers.AdamW(
        0.01, epsilon=1e-3, amsgrad=True, **how
    ),
    "rmsprop": lambda **how: keras.optimizers.RMSprop(
        0.01, epsilon=1e-3, momentum=0.5, centered=True, **how
    ),
    "adagrad": lambda **how: keras.optimizers.Adagrad(0.1, **how),
    "nadam": lambda **how: keras.optimizers.Nadam(
        0.01, epsilon=1e-3, use_ema=True, ema_overwrite_frequency=3, **how
    ),
}
CLIPPING = (
    {},
    {"clipnorm": 0.05},
    {"global_clipnorm": 0.1},
    {"clipvalue": 0.01},
)
CALLBACKS = {
    "none": list,
    "early stopping": lambda: [
        keras.callbacks.EarlyStopping(
            "val_f1", mode="max", restore_best_weights=True
        )
    ],
    "plateau": lambda: [
        keras.callbacks.ReduceLROnPlateau(
            "loss", factor=0.1, patience=0, min_delta=10.0
        )
    ],
    "metrics": lambda: [callbacks.MetricAverageCallback()],
    "join": lambda: [callbacks.JoinCallback()],
}


@dataclasses.dataclass(frozen=True)
class Training:
    optimizer: str
    passes: int
    mean_of_passes: bool
    clipping: dict
    shards: bool
    jit_compile: bool
    embedding: str
    precision: str
    callbacks: str
    fits: int
    parameters: bool  # sharded, too
    halves: bool  # each half of the ranks has whole parameters


def drawn(seed):
    draw = random.Random(seed)
    training = Training(
        optimizer=draw.choice(sorted(OPTIMIZERS)),
        passes=draw.choice([1, 1, 2, 3]),
        mean_of_passes=draw.random() < 0.5,
        clipping=draw.choice([{}, *CLIPPING]),
        shards=draw.random() < 0.5,
        jit_compile=draw.random() < 0.3,
        embedding=draw.choice(["none", "sparse", "sparse_as_dense"]),
        precision=draw.choice(
            ["float32", "float32", "mixed_bfloat16", "mixed_float16"]
        ),
        callbacks=draw.choice(sorted(CALLBACKS)),
        fits=draw.choice([1, 2]),
        parameters=draw.random() < 0.5,
        halves=draw.random() < 0.5,
    )
    if training.shards and training.callbacks == "join":
        training = dataclasses.replace(training, callbacks="none")
    is_refused = training.precision == "mixed_float16" and training.passes > 1
    if not training.shards or is_refused:
        training = dataclasses.replace(training, parameters=False)
    return training


class OneHot(keras.layers.Layer):
    """An embedding as a product, with a dense gradient."""

    def build(self, shape):
        self.embeddings = self.add_weight(shape=(WORDS, 6), name="embeddings")

    def call(self, words):
        return tf.one_hot(words, WORDS, dtype=self.compute_dtype) @ (
            tf.cast(self.embeddings, self.compute_dtype)
        )


def make_model(training, optimizer, *, plain):
    keras.utils.set_random_seed(5)
    words = keras.Input((4,), dtype="int32")
    if training.embedding == "none" or plain:
        rows = OneHot()(words)
    else:
        rows = keras.layers.Embedding(WORDS, 6)(words)
    hidden = keras.layers.Dense(
        9, "tanh", kernel_initializer=keras.initializers.RandomNormal(seed=1)
    )(keras.layers.Flatten()(rows))
    output = keras.layers.Dense(
        1,
        "sigmoid",
        dtype="float32",
        kernel_initializer=keras.initializers.RandomNormal(seed=2),
    )(hidden)
    model = keras.Model(words, output)
    start = np.random.default_rng(3).normal(size=(WORDS, 6), scale=0.5)
    model.layers[1].set_weights([start.astype("float32")])
    model.compile(
        optimizer,
        "mse",
        # Keras takes the mean of passes; their sum is that of a larger loss.
        loss_weights=(
            float(training.passes)
            if plain and not training.mean_of_passes
            else None
        ),
        metrics=[keras.metrics.F1Score(threshold=0.5, name="f1")],
        jit_compile=training.jit_compile and not plain,
    )
    return model


@pytest.fixture
def half(sets, size):
    """The half of the ranks that this one is in; None if they have none."""
    if size % 2:
        return None
    halves = sets(range(size // 2), range(size // 2, size))
    return next(each for each in halves if each.included())


def trained(training, rank, size, *, plain, half=None):
    """The model, and the histories of its fits."""
    keras.config.set_dtype_policy(training.precision)
    try:
        how = dict(training.clipping)
        if plain and training.passes > 1:
            how["gradient_accumulation_steps"] = training.passes
        optimizer = OPTIMIZERS[training.optimizer](**how)
        if not plain:
            optimizer = tfring.DistributedOptimizer(
                optimizer,
                backward_passes_per_step=training.passes,
                average_aggregated_gradients=training.mean_of_passes,
                shard_states=training.shards,
                sparse_as_dense=training.embedding == "sparse_as_dense",
            )
        with (
            tfring.shard_parameters(
                min_elements=64,
                group_bytes=1000,
                within=half if training.halves else None,
            )
            if training.parameters and not plain
            else contextlib.nullcontext()
        ):
            model = make_model(training, optimizer, plain=plain)
    finally:
        keras.config.set_dtype_policy("float32")
    rng = np.random.default_rng(0)
    x = rng.integers(0, WORDS, size=(ROWS, 4)) ** 2 % WORDS  # some often
    y = (x.sum(1, keepdims=True) % 3 == 0).astype("float32")
    mine = slice(None) if plain else slice(rank, None, size)
    batch = 24 if plain else 24 // size
    logs = []
    for _ in range(training.fits):
        given = CALLBACKS[training.callbacks]()
        if plain:
            given = [c for c in given if "tfring" not in type(c).__module__]
        elif training.callbacks != "join":
            given.append(callbacks.BroadcastGlobalVariablesCallback(0))
        history = model.fit(
            *(x[mine], y[mine]),
            batch_size=batch,
            epochs=3 - training.fits // 2,
            validation_data=(x[mine], y[mine]),
            callbacks=given,
            shuffle=False,
            verbose=0,
        )
        logs.append(history.history)
    return model, logs


@pytest.mark.filterwarnings("ignore::tfring.NotDistributedWarning")
@pytest.mark.parametrize("seed", all_thorough_but(range(IN_GATE), range(ALL)))
def test_as_one_process(seed, rank, size, half):
    training = drawn(seed)
    model, logs = trained(training, rank, size, plain=False, half=half)
    expected, expected_logs = trained(training, rank, size, plain=True)
    start, _ = trained(
        dataclasses.replace(training, fits=0), rank, size, plain=True
    )
    with tfring.whole_states(model):
        got, want, before = (
            np.concatenate([np.ravel(v) for v in each.trainable_variables])
            for each in (model, expected, start)
        )
    of_ranks = tfring.allgather(got[np.newaxis]).numpy()
    assert (of_ranks == of_ranks[0]).all(), training
    limit = 1e-4 if training.precision == "float32" else 0.1
    update = np.linalg.norm(want - before)
    assert np.linalg.norm(got - want) < limit * update, training
    for own, other in zip(logs, expected_logs, strict=True):
        assert len(own["loss"]) == len(other["loss"]), training
