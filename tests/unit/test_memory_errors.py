"""The error of a rank that has too little memory for a whole model."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfring._keras import memory_errors


def no_memory(*args, **kwargs):
    raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating")


class Greedy(keras.layers.Layer):
    def call(self, inputs):
        return no_memory()

    def compute_output_shape(self, shape):
        return shape


@pytest.fixture
def ranks(initialized, monkeypatch):
    """Returns a function that sets the number of ranks for the message."""

    def set_size(size):
        runtime = types.SimpleNamespace(
            is_initialized=lambda: True, rank=lambda: 0, size=lambda: size
        )
        monkeypatch.setattr(memory_errors, "runtime", runtime)

    return set_size


def build():
    keras.layers.Dense(4, kernel_initializer=no_memory).build((None, 4))


def fit():
    model = keras.Sequential([keras.Input((4,)), Greedy()])
    model.compile("sgd", "mse", run_eagerly=True)
    x = np.zeros((4, 4), np.float32)
    model.fit(x, x, verbose=0)


@pytest.mark.parametrize("use", [build, fit])
def test_several_ranks_can_share_the_model_out(ranks, use):
    ranks(3)
    with pytest.raises(tf.errors.ResourceExhaustedError) as caught:
        use()
    assert "OOM when allocating" in caught.value.message
    assert "Rank 0 of 3" in caught.value.message
    assert "tfring.shard_parameters()" in caught.value.message


def test_one_rank_cannot(ranks):
    ranks(1)
    with pytest.raises(tf.errors.ResourceExhaustedError) as caught:
        build()
    assert caught.value.message == "OOM when allocating"


def test_a_model_that_is_sharded_gets_the_error_alone(ranks, monkeypatch):
    ranks(3)
    monkeypatch.setattr(memory_errors, "parameters_of", lambda found: found)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)])
    with (
        pytest.raises(tf.errors.ResourceExhaustedError, match=r"allocating$"),
        memory_errors.with_remedy(model),
    ):
        no_memory()
