"""One rank saves and loads one whole value at a time."""

from __future__ import annotations

import contextlib
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_each_equal
from keras.src.saving import saving_lib

import tfring
from tfring._state.shards import Shard, shards_of
from tfring._state.spool import Spooled
from tfring._state.state_shares import WholeStates
from tfring._state.whole_states import states_of, whole_values


def scope():
    return tfring.shard_parameters(min_elements=16)


def make_model():
    """A model of sharded parameters, and an optimizer with states."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    with scope():
        model = keras.Sequential(
            [keras.Input((5,)), *(keras.layers.Dense(7) for _ in range(3))]
        )
    optimizer = tfring.DistributedOptimizer("adam", shard_states=True)
    model.compile(optimizer, "mse", jit_compile=False)
    optimizer.build(model.trainable_variables)
    rng = np.random.default_rng(tfring.rank())
    for variable in optimizer.variables[2:]:
        variable.assign(rng.uniform(size=variable.shape))
    return model


def fit(model, callbacks=(), epochs=1):
    x = np.random.default_rng(tfring.rank()).normal(size=(4, 5))
    y = np.zeros((4, 7))
    model.fit(x, y, epochs=epochs, verbose=0, callbacks=list(callbacks))
    return model


@pytest.fixture
def gathers(monkeypatch):
    """For each gather, how many gathered values were in memory before it."""
    gather, counts, known = Shard.gather, [], []

    def counted(shard, *args, **kwargs):
        counts.append(sum(ref() is not None for ref in known))
        value = gather(shard, *args, **kwargs)
        if value is not None:
            known.append(weakref.ref(value))
        return value

    monkeypatch.setattr(Shard, "gather", counted)
    return counts


class Reduces(keras.callbacks.Callback):
    """A user's callback with a collective of its own."""

    def __init__(self, name):
        super().__init__()
        self.name, self.sums = name, []

    def on_epoch_end(self, epoch, logs=None):
        own = tf.constant(tfring.rank() + epoch)
        total = tfring.allreduce(own, op=tfring.Sum, name=self.name)
        self.sums.append(int(total))


def whole(model):
    with tfring.whole_states(model):
        return model.get_weights(), whole_values(model.optimizer)


def assert_has(model, expected):
    for got, wanted in zip(whole(model), expected, strict=True):
        assert_each_equal(got, wanted)


def test_other_ranks_go_on_while_one_saves_in_fit(
    several_ranks, size, shared_path
):
    path = f"{shared_path}/model.keras"
    around = [Reduces("before"), Reduces("after")]
    saver = keras.callbacks.ModelCheckpoint(path)
    model = fit(make_model(), [around[0], saver, around[1]], epochs=2)
    total = size * (size - 1) // 2
    assert [each.sums for each in around] == [[total, total + size]] * 2
    plain = keras.models.load_model(path)
    weights, states = whole(model)
    assert_each_equal(plain.get_weights(), weights)
    assert_each_equal(states_of(plain.optimizer), states)


@pytest.mark.parametrize("name", ["model.keras", "model.weights.h5"])
def test_a_save_holds_one_value(
    name, several_ranks, rank, size, gathers, shared_path
):
    root = size - 1
    model = make_model()
    with tfring.whole_states(model, root_rank=root):
        if rank == root:
            assert not gathers
            save = model.save if name == "model.keras" else model.save_weights
            save(f"{shared_path}/{name}")
    sharded = [each for each in shards_of(model) if each.size > 1]
    assert gathers == [0] * len(sharded)
    expected = whole(model)
    other = make_model()
    other.load_weights(f"{shared_path}/{name}")
    assert_has(other, expected)


def test_a_value_that_is_read_twice_is_gathered_once(
    several_ranks, rank, gathers
):
    model = make_model()
    with tfring.whole_states(model, root_rank=0):
        if rank == 0:
            kernel = model.layers[0].kernel
            np.testing.assert_array_equal(kernel.numpy(), kernel.value)
    assert len(gathers) == 1


def test_there_is_no_such_root(several_ranks, size):
    with (
        pytest.raises(ValueError, match="whole_states: root_rank must be in"),
        tfring.whole_states(make_model(), root_rank=size),
    ):
        pass


def test_contexts_in_each_other(several_ranks, rank, size):
    model = make_model()
    kernel = model.layers[0].kernel
    with tfring.whole_states(model):
        expected = kernel.numpy()
    last = size - 1
    with tfring.whole_states(model, 0), tfring.whole_states(model, last):
        if rank in (0, last):
            np.testing.assert_array_equal(kernel.numpy(), expected)
        tfring.barrier()  # the other ranks may call what the root calls


@pytest.mark.parametrize("failing", [0, 1])
def test_an_exception_while_one_rank_saves(failing, several_ranks, rank):
    """The program gets the exception at once, and the other ranks go on."""
    model = make_model()
    expected = whole(model)
    kernel = model.layers[0].kernel
    with (
        contextlib.suppress(OSError),
        tfring.whole_states(model, root_rank=0),
    ):
        if rank == 0:
            kernel.numpy()
        if rank == failing:
            raise OSError("The disk is full.")
        if rank == 0:
            kernel.numpy()
            model.layers[1].kernel.numpy()
    tfring.barrier()
    assert_has(model, expected)
    with tfring.whole_states(model, root_rank=0):
        if rank == 0:
            kernel.numpy()


def test_a_fit_that_fails_after_a_save(several_ranks, rank, shared_path):
    def fail(epoch, logs):
        raise OSError("The disk is full.")

    callbacks = [
        keras.callbacks.ModelCheckpoint(f"{shared_path}/model.keras"),
        keras.callbacks.LambdaCallback(on_epoch_end=fail),
    ]
    model = make_model()
    with pytest.raises(OSError, match="full"):
        fit(model, callbacks)
    with pytest.raises(RuntimeError, match="have not put it together"):
        model.layers[0].kernel.numpy()
    fit(model)


def test_what_changes_in_the_context_is_not_saved(several_ranks, rank):
    model = fit(make_model())
    with tfring.whole_states(model, root_rank=0):
        fit(model)
        if rank == 0:
            with pytest.raises(RuntimeError, match="has changed since"):
                model.layers[0].kernel.numpy()


def test_what_another_rank_changes_is_not_saved(several_ranks, rank):
    model = make_model()
    kernel, other = model.layers[0].kernel, model.layers[1].kernel
    with tfring.whole_states(model, root_rank=0):
        if rank == 1:
            kernel.assign(np.zeros(kernel.shape))
        tfring.barrier()
        if rank == 0:
            with pytest.raises(
                RuntimeError, match=r"changed on the ranks \[1\]"
            ):
                kernel.numpy()
            other.numpy()


class Store:
    """A file's values, of which it counts those in memory."""

    def __init__(self, values):
        self.values, self.known, self.counts = values, [], []

    def keys(self):
        return [str(i) for i in range(len(self.values))]

    def __getitem__(self, key):
        self.counts.append(sum(ref() is not None for ref in self.known))
        value = np.array(self.values[int(key)])
        self.known.append(weakref.ref(value))
        return value


def test_a_load_holds_one_state(several_ranks, rank):
    model = make_model()
    expected = whole(model)
    store = Store(expected[1])
    again = make_model()
    optimizer = again.optimizer
    optimizer.load_own_variables(store)
    assert store.counts == [0] * len(expected[1])
    again.set_weights(expected[0])
    assert_has(again, expected)
    # Rank 0 keeps values for a broadcast, in a file.
    kept = [shard._loaded for shard in shards_of(optimizer)]
    assert any(isinstance(each, Spooled) for each in kept) == (rank == 0)
    fit(again)
    assert not any(shard.keeps_loaded for shard in shards_of(optimizer))


def test_load_model_makes_no_whole_states(
    several_ranks, rank, shared_path, monkeypatch
):
    model = make_model()
    expected = whole(model)
    path = f"{shared_path}/model.keras"
    with tfring.whole_states(model, root_rank=0):
        if rank == 0:
            model.save(path)
    tfring.barrier()

    def fail(*args):
        raise AssertionError("The optimizer had whole states before.")

    monkeypatch.setattr(WholeStates, "_cut_anew", fail)
    with scope():
        again = tfring.load_model(path, shard_states=True)
    assert_has(again, expected)
    fit(again)
    assert_has(again, whole(fit(model)))


def test_keras_writes_by_a_file(several_ranks):
    plain = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    assert saving_lib.is_memory_sufficient(plain)
    assert not saving_lib.is_memory_sufficient(make_model())
