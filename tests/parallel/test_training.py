"""Ranks that train on shards end with the weights of one that had it all.

Note [How close]: float32 sums taken in another order differ by some 1e-7 of
their terms, so 20 steps agree within 1e-5 of a tensor's largest weight, or of
the learning rate, where a bias is back near 0 after moves of that order. Adam
divides a gradient by its own size, so that a component that is nothing but
rounding errors, where terms cancel, moves its weight as far as any other: in
the wide model one process, too, is 1e-2 away from itself once it adds up its
batch in another order. With epsilon=1e-3 noise stays noise.
"""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_same_on_all_ranks, compiled, data_for, thorough

import tfring

BATCH = 24  # of all ranks together; 1, 2, 3 and 4 ranks have equal shares
STEPS = 20
RATE = 1e-2


def cnn_beside_embedding():
    image = keras.Input((8, 8, 1))
    words = keras.Input((3,), dtype="int32")
    seen = keras.layers.Conv2D(4, 3, activation="tanh")(image)
    seen = keras.layers.GlobalAveragePooling2D()(seen)
    read = keras.layers.Flatten()(keras.layers.Embedding(20, 4)(words))
    both = keras.layers.Concatenate()([seen, read])
    return keras.Model([image, words], keras.layers.Dense(1)(both))


def many_variables():
    """36 variables of 4 bytes to 8 MiB, in two buckets and more."""
    inputs = keras.Input((6,))
    heads = []
    for width in (1, 2, 3, 16, 64, 256, 1024):
        hidden = keras.layers.Dense(width, activation="tanh")(inputs)
        heads.append(keras.layers.Dense(1)(hidden))
    deep = keras.layers.Dense(1024, activation="tanh")(inputs)
    for width in (2048, 4):
        deep = keras.layers.Dense(width, activation="tanh")(deep)
    heads.append(keras.layers.Dense(1)(deep))
    model = keras.Model([inputs], keras.layers.Average()(heads))
    sizes = [4 * int(np.prod(v.shape)) for v in model.trainable_variables]
    assert (len(sizes), min(sizes), max(sizes)) == (36, 4, 8 << 20)
    return model


OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(RATE, epsilon=1e-3),
    "adamw": lambda: keras.optimizers.AdamW(
        RATE, epsilon=1e-3, weight_decay=0.01, clipnorm=0.1
    ),
}


def shard(array):
    """This rank's rows of every batch."""
    batches = array.reshape(STEPS, BATCH, *array.shape[1:])
    own = batches[:, tfring.rank() :: tfring.size()]
    return own.reshape(-1, *array.shape[1:])


@functools.cache
def trained_alone(make_model, optimizer_name):
    """The weights after plain TensorFlow steps on the global batches."""
    keras.utils.set_random_seed(0)
    model = make_model()
    optimizer = OPTIMIZERS[optimizer_name]()
    optimizer.build(model.trainable_variables)
    inputs, targets = data_for(model, STEPS * BATCH)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        # See "Sparse gradients" in docs/horovod.md.
        gradients = [tf.convert_to_tensor(g) for g in gradients]
        optimizer.apply(gradients, model.trainable_variables)

    for i in range(0, STEPS * BATCH, BATCH):
        step([x[i : i + BATCH] for x in inputs], targets[i : i + BATCH])
    return model.get_weights()


def trained_together(make_model, optimizer, **how):
    # Only rank 0 starts with the weights of `trained_alone`.
    keras.utils.set_random_seed(tfring.rank())
    model = make_model()
    model.compile(optimizer, "mse", **how)
    inputs, targets = data_for(model, STEPS * BATCH)
    model.fit(
        [shard(x) for x in inputs],
        shard(targets),
        batch_size=BATCH // tfring.size(),
        shuffle=False,
        verbose=0,
        callbacks=[tfring.callbacks.BroadcastGlobalVariablesCallback(0)],
    )
    return model


def assert_close(weights, expected):
    """See Note [How close]."""
    for got, want in zip(weights, expected, strict=True):
        scale = max(np.abs(want).max(), RATE)
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * scale)


# How a step is run: the arguments of `compile`.
HOW = {
    "plain": {"jit_compile": False},
    "compiled": {"jit_compile": True},
    "eager": {"run_eagerly": True},
}


@pytest.mark.parametrize(
    ("make_model", "optimizer_name", "how"),
    [
        (cnn_beside_embedding, "adamw", "compiled"),
        *(
            thorough(*case)
            for case in (
                (cnn_beside_embedding, "adamw", "plain"),
                (cnn_beside_embedding, "adamw", "eager"),
                (many_variables, "adam", "plain"),
                (many_variables, "adam", "compiled"),
            )
        ),
    ],
)
def test_weights_are_those_of_one_process(make_model, optimizer_name, how):
    expected = trained_alone(make_model, optimizer_name)
    optimizer = tfring.DistributedOptimizer(OPTIMIZERS[optimizer_name]())
    model = trained_together(make_model, optimizer, **HOW[how])
    assert_close(model.get_weights(), expected)
    assert_same_on_all_ranks([*model.variables, *model.optimizer.variables])


@pytest.fixture
def mixed_float16():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    yield
    keras.config.set_dtype_policy(before)


@pytest.mark.parametrize("how", ["plain", "compiled"])
def test_all_ranks_skip_the_overflow_of_one(mixed_float16, how, rank, size):
    keras.utils.set_random_seed(0)
    optimizer = tfring.DistributedOptimizer(keras.optimizers.Adam())
    layers = keras.Input((4,)), keras.layers.Dense(1)
    model = compiled(optimizer, *layers, **HOW[how])
    inputs = np.full((4 * 2, 4), 1e-2, np.float32)
    if rank == size - 1:
        inputs[2:4] = 6e4  # the second batch, near the end of float16
    scales, weights = [], []

    def note(batch, logs):
        scales.append(float(model.optimizer.dynamic_scale.numpy()))
        weights.append(model.get_weights())

    model.fit(
        *(inputs, np.zeros((4 * 2, 1))),
        batch_size=2,
        shuffle=False,
        verbose=0,
        callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=note)],
    )
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert scales == [2.0**15, 2.0**14, 2.0**14, 2.0**14]
    before, after, later, _ = weights
    assert all((a == b).all() for a, b in zip(before, after, strict=True))
    assert any((a != b).any() for a, b in zip(after, later, strict=True))
    assert_same_on_all_ranks([*model.variables, *model.optimizer.variables])
