"""When an elastic state has its model's functions traced again."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from places import Place

import tfring
from tfring._core import answers, runtime
from tfring._core.job import Topology
from tfring.elastic import fitting

PLACE = Topology(0, 3, 0, 1, 0, 3, is_homogeneous=True)
FEWER = {"size": 2, "cross_size": 2}


@pytest.fixture
def restart(monkeypatch):
    """A function: a new job, in which the topology may be another."""
    tfring.init()
    monkeypatch.setattr(runtime, "_job", Place(PLACE))
    monkeypatch.setattr(answers, "_noted", set())

    def begin(state, **changed):
        topology = dataclasses.replace(runtime.job().topology, **changed)
        monkeypatch.setattr(runtime, "_job", Place(topology))
        answers.compare()
        state.reset()

    return begin


@pytest.fixture
def model():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(), "mse")
    return model


def traced_state(model, ask=lambda: None):
    state = tfring.elastic.KerasState(model)
    model.make_train_function()
    tf.function(ask).get_concrete_function()
    return state


def test_code_of_ones_own_may_ask_for_what_has_changed(restart, model):
    state = traced_state(model)
    restart(state)
    assert model.train_function is not None
    # Of the same rank and size.
    restart(state, local_size=2, cross_size=2)
    assert model.train_function is None


def test_a_trace_that_has_not_asked_is_kept(restart, model):
    state = traced_state(model, tfring.rank)
    state.no_own_code()
    restart(state, **FEWER)
    assert model.train_function is not None
    restart(state, rank=1)
    assert model.train_function is None


def test_what_is_traced_anew_is_kept_then(restart, model):
    state = traced_state(model, tfring.size)
    state.no_own_code()
    restart(state, **FEWER)
    assert model.train_function is None
    model.make_train_function()
    tf.function(tfring.size).get_concrete_function()
    restart(state)
    assert model.train_function is not None
    restart(state, size=3)
    assert model.train_function is None


class Silent(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        pass


class Begins(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.model.ranks = tfring.size()


class Fits(keras.Sequential):
    def fit(self, *args, **kwargs):
        self.ranks = tfring.size()
        return super().fit(*args, **kwargs)


def begin(logs):
    pass


CALLS_BEGIN = keras.callbacks.LambdaCallback(on_train_begin=begin)


# Code of the user's may ask for the rank or the size and leave the answer where
# functions find it while they are traced.
@pytest.mark.parametrize(
    ("options", "is_kept"),
    [
        ({}, True),
        ({"callbacks": [Silent()]}, True),
        ({"callbacks": [keras.callbacks.EarlyStopping()]}, True),
        ({"callbacks": [tfring.callbacks.MetricAverageCallback()]}, True),
        ({"callbacks": [tfring.callbacks.LearningRateWarmupCallback(1)]}, True),
        ({"validation_data": (np.ones([2, 2]), np.ones([2, 1]))}, True),
        ({"callbacks": [Silent(), Begins()]}, False),
        (
            {
                "callbacks": [
                    keras.callbacks.LambdaCallback(on_train_begin=begin)
                ]
            },
            False,
        ),
        ({"reset_callbacks": [lambda: None]}, False),
    ],
    ids=range(9),
)
@pytest.mark.parametrize("is_beside", [False, True])
def test_who_builds_beside_the_others_traces_a_step_that_is_kept(
    model, monkeypatch, options, is_kept, is_beside
):
    assert steps_of_a_joiner(model, monkeypatch, is_beside, **options) == (
        is_kept and is_beside
    )


def test_a_fit_of_the_models_own_may_change_what_is_traced(monkeypatch):
    model = Fits([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(), "mse")
    assert steps_of_a_joiner(model, monkeypatch, is_beside=True) == 0


def steps_of_a_joiner(model, monkeypatch, is_beside, **options):
    """How many steps it does before it joins the others."""
    tfring.init()
    monkeypatch.setattr(runtime, "is_beside", lambda: is_beside)
    monkeypatch.setattr(fitting, "run", lambda train: lambda state: None)
    fitting.fit(
        model, np.ones([9, 2]), np.ones([9, 1]), batch_size=2, **options
    )
    return int(model.optimizer.iterations)


def test_shares_of_states_keep_no_traces(model):
    tfring.init()
    optimizer = tfring.DistributedOptimizer(
        keras.optimizers.Adam(), shard_states=True
    )
    model.compile(optimizer, "mse")
    state = tfring.elastic.KerasState(model)
    state.no_own_code()
    assert not state.keeps_traces()
