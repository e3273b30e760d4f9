"""A model that is saved, loaded and wrapped again resumes its training."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import (
    assert_each_equal,
    assert_same_on_all_ranks,
    compiled,
    fit_noise,
    thorough,
    warnings_of,
)

import tfring
from tfring._state.whole_states import whole_values


class OwnAdam(keras.optimizers.Adam):
    """Not registered with Keras."""


def one_layer(optimizer, **how):
    return compiled(optimizer, keras.Input((3,)), keras.layers.Dense(1), **how)


def test_training_goes_on(rank, size, tmp_path):
    options = {"backward_passes_per_step": 2}
    keras.utils.set_random_seed(0)
    model = one_layer(tfring.DistributedOptimizer(OwnAdam(0.01), **options))
    fit_noise(model, rank)
    path = tmp_path / "model.keras"
    model.save(path)
    loaded = tfring.load_model(path, [OwnAdam], **options)
    assert isinstance(loaded.optimizer, OwnAdam)
    assert_each_equal(loaded.optimizer.variables, model.optimizer.variables)
    fit_noise(model, rank)
    fit_noise(loaded, rank)
    assert_each_equal(loaded.weights, model.weights)
    assert_same_on_all_ranks(loaded.weights)


@pytest.mark.parametrize("shard_states", [False, True])
def test_accumulation_begins_with_a_loaded_state(shard_states, rank, tmp_path):
    keras.utils.set_random_seed(0)
    model = one_layer(adam(), jit_compile=False)
    fit_noise(model, rank)
    model.save(tmp_path / "model.keras")
    loaded = tfring.load_model(
        tmp_path / "model.keras",
        backward_passes_per_step=2,
        shard_states=shard_states,
    )
    with tfring.whole_states(loaded):
        states = whole_values(loaded.optimizer)
    accumulators = len(loaded.trainable_variables)
    assert_each_equal(
        states[:2] + states[2 + accumulators :], model.optimizer.variables
    )


def test_compression_of_a_loaded_model(rank, size, tmp_path):
    model = compiled(
        keras.optimizers.SGD(1.0), keras.Input((1,)), keras.layers.Dense(1)
    )
    model.save(tmp_path / "model.keras")
    loaded = tfring.load_model(
        tmp_path / "model.keras", compression=tfring.Compression.bf16
    )
    kernel = loaded.weights[0]
    kernel.assign([[0.0]])
    loaded.optimizer.apply([tf.constant([[1.001]])], [kernel])
    assert kernel.numpy()[0, 0] == np.float32(-1.001 if size == 1 else -1)


def test_a_model_without_an_optimizer(tmp_path):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.save(tmp_path / "model.keras")
    loaded = tfring.load_model(tmp_path / "model.keras")
    assert not hasattr(loaded, "optimizer")


@pytest.mark.parametrize("has_optimizer", [False, True])
def test_unknown_options_are_refused(has_optimizer, tmp_path):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    if has_optimizer:
        model.compile("sgd", "mse")
    model.save(tmp_path / "model.keras")
    unknown = r"no argument 'comression'.* DistributedOptimizer: name, "
    with pytest.raises(TypeError, match=unknown):
        tfring.load_model(
            tmp_path / "model.keras", comression=tfring.Compression.fp16
        )
    with pytest.raises(TypeError, match="no argument 'optimizer'"):
        tfring.load_model(tmp_path / "model.keras", optimizer="sgd")
    tfring.load_model(tmp_path / "model.keras", groups=2)


def adam(**options):
    return tfring.DistributedOptimizer(keras.optimizers.Adam(0.1), **options)


ROUNDS = {
    "none": {},
    "LocalSGD": {"sync": tfring.LocalSGD(every=2)},
    "DiLoCo": {"sync": tfring.DiLoCo(every=2)},
    "Gossip": {"sync": tfring.Gossip()},
}


@pytest.mark.parametrize(
    ("saved_with", "loaded_with"),
    [
        ("none", "DiLoCo"),
        ("DiLoCo", "LocalSGD"),
        ("DiLoCo", "DiLoCo"),
        thorough("none", "LocalSGD"),
        thorough("LocalSGD", "DiLoCo"),
        thorough("Gossip", "DiLoCo"),
        thorough("DiLoCo", "Gossip"),
        thorough("DiLoCo", "none"),
    ],
)
def test_rounds_begin_from_any_file(saved_with, loaded_with, rank, shared_path):
    """All that both optimizers have is loaded, and one sentence names more."""
    model = one_layer(adam(**ROUNDS[saved_with]), jit_compile=False)
    callbacks = [tfring.callbacks.BroadcastGlobalVariablesCallback(0)]
    x = np.ones([8, 3])
    model.fit(x, x[:, 0] * rank, verbose=0, callbacks=callbacks)
    if rank == 0:
        model.save(shared_path / "model.keras")
    expected = tfring.broadcast_object([*map(np.array, states_of(model))])

    made = []
    texts = warnings_of(
        UserWarning,
        lambda: made.append(
            tfring.load_model(
                shared_path / "model.keras", **ROUNDS[loaded_with]
            )
        ),
    )
    [loaded] = made
    found = states_of(loaded)
    assert_each_equal(found[:8], expected[:8])
    has_outer = min(len(found), len(expected)) > 8
    if has_outer and saved_with != loaded_with:
        [text] = texts
        assert "the file has the state of another outer optimizer" in text
    else:
        assert texts == []
    if has_outer and saved_with == loaded_with:
        assert_each_equal(found, expected)
    fit_noise(loaded, rank)


def states_of(model):
    """Two weights and six states of Adam, and those of an outer optimizer."""
    outer = getattr(model.optimizer, "outer_optimizer", None)
    return [
        *(*model.variables, *model.optimizer.variables),
        *(() if outer is None else outer.variables),
    ]


def test_older_optimizers_are_refused():
    with pytest.raises(ValueError, match="legacy_opts must be False"):
        tfring.load_model("none.keras", legacy_opts=True)


def test_custom_optimizers_are_classes():
    with pytest.raises(TypeError, match="must be subclasses"):
        tfring.load_model("model.keras", ["OwnAdam"])
