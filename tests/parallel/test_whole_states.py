"""Sharded optimizer states in `fit`: saving, loading and committing."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import (
    Pair,
    assert_each_close,
    assert_same_on_all_ranks,
    bits_of,
    state_bits,
    thorough,
)
from sharded_states import adam, fit, make_model

import tfring
from tfring import elastic


@pytest.mark.parametrize("jit_compile", [thorough(False), True])
def test_fit(jit_compile):
    without = adam(shard_states=False)
    expected = fit(make_model(without, jit_compile))
    got = fit(make_model(adam(), jit_compile))
    assert_same_on_all_ranks(got.trainable_variables)
    assert_each_close(got.variables, expected.variables, rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_offload():
    """Feature maps that leave meanwhile change no bit."""
    expected = fit(make_model())
    offload = tfring.Offload(min_bytes=0)
    got = fit(make_model(adam(offload=offload)))
    assert offload.statistics().moved > 0
    assert bits_of(got.variables) == bits_of(expected.variables)


def test_a_file_is_that_of_the_plain_optimizer(rank, shared_path):
    path = f"{shared_path}/model.keras"
    without = fit(make_model(adam(shard_states=False)))
    model = fit(make_model())
    with tfring.whole_states(model, root_rank=0):
        if rank == 0:
            model.save(path)
    tfring.barrier()
    plain = keras.models.load_model(path)
    assert type(plain.optimizer) is keras.optimizers.Adam
    assert_each_close(
        *(plain.optimizer.variables, without.optimizer.variables),
        rtol=1e-5,
        atol=1e-7,
    )
    again = tfring.load_model(path, shard_states=True)
    for each in (again, model):
        fit(each)
    assert state_bits(again) == state_bits(model)


def own_variables(optimizer):
    """By their numbers, as a file has them."""
    store = {}
    optimizer.save_own_variables(store)
    return {key: np.asarray(value) for key, value in store.items()}


def whole(optimizer):
    with tfring.whole_states(optimizer):
        return own_variables(optimizer)


def by_number(variables):
    return {str(i): np.asarray(each) for i, each in enumerate(variables)}


def test_a_checkpoint_is_that_of_the_plain_optimizer(rank, size, tmp_path):
    model = fit(make_model())
    optimizer = model.optimizer
    checkpoint = tf.train.Checkpoint(optimizer=optimizer)
    if size > 1:
        with pytest.raises(RuntimeError, match=r"tfring\.whole_states"):
            checkpoint.save(f"{tmp_path}/not")
    with tfring.whole_states(optimizer):
        path = checkpoint.save(f"{tmp_path}/own")
        expected = own_variables(optimizer)
    plain = keras.optimizers.Adam()
    plain.build(make_model().trainable_variables)
    status = tf.train.Checkpoint(optimizer=plain).restore(path)
    status.assert_consumed()
    np.testing.assert_equal(by_number(plain.variables), expected)
    other = make_model().optimizer
    restored = tf.train.Checkpoint(optimizer=other)
    with pytest.raises(RuntimeError, match="must be built"):
        restored.restore(path)
    other.build(make_model().trainable_variables)
    tf.train.Checkpoint(optimizer=other).restore(path).assert_consumed()
    assert bits_of(other.variables) == bits_of(optimizer.variables)


@pytest.mark.thorough
def test_checkpoints_between_batches_of_two_fits(shared_path):
    """The callback continues the count of the previous fit."""
    path = f"{shared_path}/last.weights.h5"
    model = make_model()
    saves = keras.callbacks.ModelCheckpoint(
        path, save_weights_only=True, save_freq=3
    )
    for _ in range(3):
        fit(model, callbacks=[saves])  # 4 batches
    again = make_model()
    again.optimizer.build(again.trainable_variables)
    again.load_weights(path)
    assert again.optimizer.iterations == model.optimizer.iterations == 12


def test_a_callback_may_put_states_together_for_itself(rank, shared_path):
    model = make_model()

    def save(epoch, logs):
        with tfring.whole_states(model, root_rank=0):
            if rank == 0:
                model.save(f"{shared_path}/own.keras")

    fit(
        model,
        callbacks=[
            keras.callbacks.LambdaCallback(on_epoch_end=save),
            keras.callbacks.ModelCheckpoint(f"{shared_path}/last.keras"),
        ],
    )
    own = keras.models.load_model(f"{shared_path}/own.keras").optimizer
    last = keras.models.load_model(f"{shared_path}/last.keras").optimizer
    assert bits_of(own.variables) == bits_of(last.variables)


def test_optimizers_that_are_attributes(rank, shared_path):
    path = f"{shared_path}/pair.weights.h5"
    keras.utils.set_random_seed(0)
    model = Pair(7, shard_states=True)
    model.compile(jit_compile=False)
    x = np.random.default_rng(rank).normal(size=(8, 7))
    saves = keras.callbacks.ModelCheckpoint(path, save_weights_only=True)
    model.fit(x, x, verbose=0, callbacks=[saves])
    again = Pair(7, shard_states=True)
    for layer, optimizer in again.parts():
        optimizer.build(layer.trainable_variables)
    again.load_weights(path)
    for (_, got), (_, expected) in zip(
        again.parts(), model.parts(), strict=True
    ):
        assert bits_of(got.variables) == bits_of(expected.variables)


def test_the_older_format_keeps_no_part(several_ranks, tmp_path):
    path = tmp_path / "a.h5"
    model = fit(make_model())
    with tfring.whole_states(model):
        with pytest.raises(RuntimeError, match=r"older format .*No file"):
            model.save(path)
        assert not path.exists()
        model.save(path, include_optimizer=False)
    assert path.exists()


def test_elastic_commits_restore_each_shard(rank):
    model = fit(make_model())
    with pytest.raises(ValueError, match="TensorFlowKerasState"):
        elastic.TensorFlowState(model.optimizer.variables)
    state = elastic.TensorFlowKerasState(model, epoch=0)
    for save in (state.sync, state.commit, lambda: interrupted(state)):
        fit(model)
        save()
        before = state_bits(model)
        fit(model)
        state.restore()
        assert state_bits(model) == before


def interrupted(state):
    """Hosts come, between two commits."""
    if tfring.rank() == 0:
        state.on_hosts_updated(1.0, elastic.HostUpdateResult.added)
    with pytest.raises(elastic.HostsUpdatedInterrupt):
        state.check_host_updates()


class TreeSaver(keras.callbacks.Callback):
    """Saves like another package's callback, from the tree of the states."""

    def __init__(self, save_freq="epoch"):
        super().__init__()
        self.save_freq = save_freq
        self.tree = None

    def on_epoch_end(self, epoch, logs=None):
        self.tree = self.model.get_state_tree(value_format="numpy_array")


def leaves_of(tree):
    """By path, without the numbers that Keras gives optimizers' names."""
    return {
        (path[0], *path[2:]): leaf
        for path, leaf in keras.tree.flatten_with_path(tree)
    }


@pytest.mark.parametrize("ranks", ["all", "the last"])
def test_a_tree_of_the_states_is_that_of_the_plain_optimizer(ranks, rank, size):
    saver = TreeSaver()
    model = make_model()
    fit(model, callbacks=[saver] if ranks == "all" or rank == size - 1 else [])
    plain = make_model(adam(shard_states=False))
    fit(plain)
    if saver.tree is not None:
        expected = leaves_of(plain.get_state_tree(value_format="numpy_array"))
        got = leaves_of(saver.tree)
        assert got.keys() == expected.keys()
        for key in (each for each in got if each[0] != "metrics_variables"):
            np.testing.assert_allclose(got[key], expected[key], atol=1e-6)
    if ranks == "all":
        again = make_model()
        again.optimizer.build(again.trainable_variables)
        again.set_state_tree(saver.tree)
        assert state_bits(again) == state_bits(model)


def test_a_tree_of_one_rank_s_part_is_refused(several_ranks, rank):
    model = fit(make_model())
    with pytest.raises(RuntimeError, match="cannot save them alone"):
        model.get_state_tree()
    with pytest.raises(NotImplementedError, match="TreeSaver saves between"):
        fit(model, callbacks=[TreeSaver(save_freq=3)])


@pytest.mark.skipif(
    not hasattr(keras.callbacks, "OrbaxCheckpoint"),
    reason="This version of Keras has no OrbaxCheckpoint.",
)
def test_orbax_saves_on_one_rank(rank, shared_path):
    """Without the package, whose own part is the writing."""

    class Saver(keras.callbacks.OrbaxCheckpoint):
        def __init__(self, directory, save_freq):
            super(keras.callbacks.OrbaxCheckpoint, self).__init__("loss")
            self.directory, self.save_freq = directory, save_freq
            self.save_best_only = False
            self._batches_seen_since_last_saving = 0
            self._last_batch_seen = None
            self._total_batches_seen = 0
            self.saved = []

        def _save_checkpoint(self, step, logs=None):
            self.saved.append(self.model.get_state_tree("numpy_array"))

        def on_train_end(self, logs=None):
            pass

    model = make_model()
    savers = [Saver(f"{shared_path}/{freq}", freq) for freq in ("epoch", 3)]
    fit(model, 2, savers)
    counts = [len(each.saved) for each in savers]
    assert counts == ([2, 2] if rank == 0 else [0, 0])
