"""When an elastic state has its model's functions traced again."""

import dataclasses
import types

import keras
import pytest

import tfring
from tfring._core import runtime
from tfring._core.job import Topology

pytestmark = pytest.mark.usefixtures("initialized")
PLACE = Topology(0, 3, 0, 1, 0, 3, is_homogeneous=True)
FEWER = {"size": 2, "cross_size": 2}


@pytest.fixture
def restart(monkeypatch):
    """Returns a function that begins a new job with a changed topology."""
    job = types.SimpleNamespace(comm=None, topology=PLACE, leave=lambda: None)
    monkeypatch.setattr(runtime, "_job", job)

    def begin(state, **changed):
        job.topology = dataclasses.replace(job.topology, **changed)
        state.reset()

    return begin


@pytest.fixture
def model():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(), "mse")
    return model


def traced_state(model, **options):
    state = tfring.elastic.KerasState(model, **options)
    model.make_train_function()
    return state


def test_the_same_place_keeps_what_is_traced(restart, model):
    state = traced_state(model)
    restart(state)
    assert model.train_function is not None
    # The rank and the size are the same here.
    restart(state, local_size=2, cross_size=2)
    assert model.train_function is None
    model.make_train_function()
    restart(state)
    assert model.train_function is not None
    restart(state, **FEWER)
    assert model.train_function is None


def test_a_user_may_keep_traces_in_jobs_of_any_size(restart, model):
    state = traced_state(model, keep_traces=True)
    restart(state, **FEWER)
    restart(state, rank=1)
    assert model.train_function is not None


def test_shares_of_states_keep_no_traces(model):
    optimizer = tfring.DistributedOptimizer(
        keras.optimizers.Adam(), shard_states=True
    )
    model.compile(optimizer, "mse")
    traced_state(model, keep_traces=True).reset()
    assert model.train_function is None
