"""Offloaded training ends with the same bits as training that is not.

Every model is trained twice on the same data and seeds, one time with feature
maps moved away and back. All sizes here are small, so `min_bytes` is 0.
"""

from __future__ import annotations

import functools

import fake_driver
import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_each_equal, data_for, thorough

import tfring

_ON_GPU = bool(tf.config.list_physical_devices("GPU"))
pytestmark = pytest.mark.skipif(
    _ON_GPU and fake_driver.options() is None,
    reason="a GPU adds up in another order each time",
)

ROWS = 8
STEPS = 4


def branches_and_skips():
    inputs = keras.Input((8, 8, 3))
    hidden = keras.layers.Conv2D(8, 3, padding="same")(inputs)
    for _ in range(2):
        left = keras.layers.Conv2D(8, 3, padding="same", activation="relu")(
            hidden
        )
        right = keras.layers.Conv2D(8, 1, use_bias=False)(hidden)
        right = keras.layers.BatchNormalization()(right)
        right = keras.layers.Activation("relu")(right)
        hidden = keras.layers.Add()([left, right, hidden])
    # The inputs are used early, and here again.
    hidden = keras.layers.Concatenate()([hidden, inputs])
    hidden = keras.layers.MaxPooling2D()(hidden)
    hidden = keras.layers.DepthwiseConv2D(3, padding="same")(hidden)
    hidden = keras.layers.LayerNormalization()(hidden)
    hidden = keras.layers.Flatten()(hidden)
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


def shared_layers():
    one, other = keras.Input((12,)), keras.Input((12,))
    shared = keras.layers.Dense(12, activation="gelu")
    seen = [shared(shared(x)) for x in (one, other)]
    both = keras.layers.Multiply()(seen)
    return keras.Model([one, other], keras.layers.Dense(1)(shared(both)))


def dropout():
    inputs = keras.Input((12,))
    hidden = inputs
    for seed in range(3):
        hidden = keras.layers.Dense(16, activation="relu")(hidden)
        hidden = keras.layers.Dropout(0.4, seed=seed)(hidden)
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


def synchronized_batch_normalization():
    inputs = keras.Input((8, 8, 3))
    hidden = inputs
    for _ in range(3):
        hidden = keras.layers.Conv2D(4, 3, padding="same")(hidden)
        hidden = tfring.SyncBatchNormalization()(hidden)
        hidden = keras.layers.Activation("relu")(hidden)
    hidden = keras.layers.GlobalAveragePooling2D()(hidden)
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


def attention():
    inputs = keras.Input((6,), dtype="int32")
    hidden = keras.layers.Embedding(20, 8)(inputs)
    for _ in range(2):
        normal = keras.layers.LayerNormalization()(hidden)
        hidden += keras.layers.MultiHeadAttention(2, 4)(
            normal, normal, use_causal_mask=True
        )
        wide = keras.layers.Dense(16, activation="gelu")(hidden)
        hidden += keras.layers.Dense(8)(wide)
    hidden = keras.layers.GlobalAveragePooling1D()(hidden)
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


def recurrent():
    inputs = keras.Input((5, 6))
    hidden = keras.layers.Dense(8, activation="relu")(inputs)
    hidden = keras.layers.GRU(8, reset_after=False)(hidden)
    hidden = keras.layers.Dense(8, activation="relu")(hidden)
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


def fitted(make_model, offload, *, accumulated=None, rest=0, **how):
    """The model's variables and losses after two epochs.

    Each has whole batches, and a smaller one, of `rest` rows, at the end.
    """
    # Layers are numbered from the start again. TensorFlow sums in the order of
    # names, where conv2d_10 is before conv2d_9.
    keras.utils.clear_session()
    keras.utils.set_random_seed(7)
    model = make_model()
    optimizer = tfring.DistributedOptimizer(
        keras.optimizers.SGD(
            0.005, momentum=0.9, gradient_accumulation_steps=accumulated
        ),
        offload=offload,
    )
    model.compile(optimizer, "mse", jit_compile=False, **how)
    inputs, targets = data_for(model, STEPS * ROWS + rest, tfring.rank())
    history = model.fit(
        inputs if len(inputs) > 1 else inputs[0],
        targets,
        batch_size=ROWS,
        epochs=2,
        shuffle=False,
        verbose=0,
    )
    weights = [np.asarray(v) for v in model.variables + optimizer.variables]
    return [*weights, np.array(history.history["loss"])]


@functools.cache
def fitted_plainly(make_model, policy_of_dtypes, **how):
    del policy_of_dtypes  # what Keras's global setting is
    return fitted(make_model, None, **how)


def check_same_bits(offload, make_model, **how):
    dtypes = keras.config.dtype_policy().name
    plain = fitted_plainly(make_model, dtypes, **how)
    moved = fitted(make_model, offload, **how)
    assert_each_equal(moved, plain)
    statistics = offload.statistics()
    assert statistics.tier_bytes == 0
    return statistics


# A smaller batch at the end is a step that is traced once more.
@pytest.mark.parametrize(
    ("make_model", "rest"),
    [
        (branches_and_skips, 3),
        *(
            thorough(model, 0)
            for model in (
                synchronized_batch_normalization,
                shared_layers,
                dropout,
                attention,
                recurrent,
            )
        ),
    ],
)
def test_bits(make_model, rest):
    offload = tfring.Offload(min_bytes=0)
    statistics = check_same_bits(offload, make_model, rest=rest)
    assert statistics.moved > 3


OTHERWISE = {
    "near": ({"ahead": 1}, {}),
    "far": ({"ahead": 5}, {}),
    "conv": ({"policy": "conv"}, {}),
    "function": ({"policy": lambda found: found.op_type == "Relu"}, {}),
    "accumulated": ({}, {"accumulated": 2}),
    "several steps": ({}, {"rest": 3, "steps_per_execution": 3}),
    "mixed_float16": ({}, {}),  # with loss scaling
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", OTHERWISE)
def test_bits_otherwise(name):
    options, how = OTHERWISE[name]
    before = keras.config.dtype_policy()
    if name == "mixed_float16":
        keras.config.set_dtype_policy(name)
    try:
        offload = tfring.Offload(min_bytes=0, **options)
        statistics = check_same_bits(offload, branches_and_skips, **how)
    finally:
        keras.config.set_dtype_policy(before)
    # At most 23 tensors can be moved; a policy chooses fewer.
    if "policy" in options:
        assert 0 < statistics.moved < 15
    else:
        assert statistics.moved > 3


def test_bits_of_a_tape():
    def trained(offload):
        keras.utils.clear_session()
        keras.utils.set_random_seed(3)
        model = branches_and_skips()
        (images,), targets = data_for(model, STEPS * ROWS, tfring.rank())

        @tf.function
        def step(x, y):
            with tfring.DistributedGradientTape(
                tf.GradientTape(), offload=offload
            ) as tape:
                loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
            gradients = tape.gradient(loss, model.trainable_variables)
            for v, g in zip(model.trainable_variables, gradients, strict=True):
                v.assign_sub(0.05 * g)
            return gradients

        for _ in range(STEPS):
            gradients = step(images, targets)
        return [*map(np.asarray, gradients), *model.get_weights()]

    offload = tfring.Offload(min_bytes=0)
    assert_each_equal(trained(offload), trained(None))
    assert offload.statistics().moved > 3
