"""elastic: states, callbacks, and a new start of ranks that are all alive.

tests/jobs/test_elastic.py has the jobs in which a rank is killed.
"""

import itertools
import time
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl import logging
from helpers import assert_each_equal, assert_same_on_all_ranks, small_model
from mpi4py import MPI

import tfring
from tfring import elastic
from tfring.elastic import variables


def test_a_job_that_is_not_elastic_says_so(rank, size, monkeypatch):
    said = []
    monkeypatch.setattr(
        logging, "log_first_n", lambda level, text, n: said.append(text)
    )
    state = elastic.ObjectState(tfring.broadcast_object)
    elastic.run(lambda state: None)(state)
    assert len(said) == (rank == 0 and size > 1)
    assert all("tfringrun --elastic" in text for text in said)


def test_who_fails_takes_all_back_to_the_commit(rank, size):
    variable = tf.Variable(float(rank))
    state = elastic.TensorFlowState([variable], step=0, seen=[])
    starts, resets = [], []
    state.register_reset_callbacks(
        [
            lambda: resets.append(tfring.size()),
            lambda: resets.append("b"),
        ]
    )

    @elastic.run
    def train(state, last, *, fail):
        starts.append((state.step, list(state.seen), variable.numpy()))
        while state.step < last:
            variable.assign_add(tfring.allreduce(1.0, op=tfring.Sum))
            state.seen.append(state.step)
            state.step += 1
            if state.step == 2:
                state.commit()
            # Only one rank fails; all ranks learn of it.
            if state.step == 3 and len(starts) == 1 and rank == size - 1:
                raise fail
        return rank

    assert train(state, 5, fail=elastic.HorovodInternalError("x")) == rank
    assert starts == [(0, [], 0.0), (2, [0, 1], 2.0 * size)]
    assert resets == [size, "b"]
    assert variable == 5.0 * size
    assert state.seen == [0, 1, 2, 3, 4]
    assert train.__name__ == "train"


def test_no_rank_is_gone_when_a_late_one_starts_again(rank, size, tmp_path):
    calls = []
    ended = [
        Path(folder, "ended")
        for folder in MPI.COMM_WORLD.allgather(str(tmp_path))
    ]

    @elastic.run
    def train(state):
        calls.append(tfring.size())
        if rank == size - 1 and len(calls) == 1:
            while not all(each.exists() for each in ended[:-1]):
                time.sleep(0.01)
            raise elastic.HorovodInternalError("late")
        ended[rank].touch()
        return len(calls)

    assert train(elastic.ObjectState(tfring.broadcast_object)) == 2
    assert calls == [size, size]


def test_other_errors_are_those_of_the_function():
    state = elastic.ObjectState(tfring.broadcast_object, tfring.rank, step=1)

    @elastic.run
    def train(state):
        raise tf.errors.UnavailableError(None, None, "not the job")

    with pytest.raises(tf.errors.UnavailableError, match="not the job"):
        train(state)


@pytest.mark.parametrize("kind", ["added", "removed"])
def test_hosts_that_come_or_go(rank, kind):
    state = elastic.ObjectState(
        tfring.broadcast_object, tfring.rank, step=10 * rank
    )
    starts = []

    @elastic.run
    def train(state):
        starts.append(state.step)
        if len(starts) == 1:
            state.step += 1 + rank
            if rank == 0:
                state.on_hosts_updated(1, elastic.HostUpdateResult[kind])
                state.on_hosts_updated(1, elastic.HostUpdateResult.mixed)
            state.commit()
        state.commit()  # told once
        return state.step

    # The step is not taken back. If ranks may have joined, all get rank 0's
    # state.
    second = 1 if kind == "added" else 1 + rank
    assert train(state) == second
    assert starts == [0, second]


def state_of(model):
    variables = [*model.variables, *model.optimizer.variables]
    return [tf.convert_to_tensor(v).numpy() for v in variables]


def test_a_model_and_its_optimizer():
    model = small_model()
    state = elastic.TensorFlowKerasState(model, batch=0, epoch=0)
    state.sync()
    assert_same_on_all_ranks(model.get_weights())
    x, y = np.ones((4, 2)), np.ones((4, 1))
    model.fit(x, y, batch_size=2, verbose=0)
    state.save()
    saved = state_of(model)
    model.fit(x, y, batch_size=1, verbose=0)
    assert model.optimizer.iterations == 6
    state.restore()
    assert_each_equal(state_of(model), saved)
    model.fit(x, y, batch_size=2, verbose=0)
    assert model.optimizer.iterations == 4


def test_a_commit_that_fails_saves_nothing():
    def lose_a_rank(value):
        raise elastic.HorovodInternalError("a rank is lost")

    state = elastic.ObjectState(lose_a_rank, step=1)
    state.step = 2  # of values that may mean nothing
    with pytest.raises(elastic.HorovodInternalError):
        state.commit()
    state.restore()
    assert state.step == 1


def plain_state(variable, **kwargs):
    return elastic.TensorFlowState([variable], **kwargs)


def keras_state(variable, **kwargs):
    layer = keras.layers.Dense(1, use_bias=False)
    model = keras.Sequential([keras.Input((1,)), layer])
    optimizer = tfring.DistributedOptimizer("adam")
    return elastic.TensorFlowKerasState(model, optimizer, **kwargs)


@pytest.mark.parametrize("make", [plain_state, keras_state])
@pytest.mark.parametrize("lost_at", range(2))
def test_a_rank_that_is_lost_in_a_sync_changes_no_commit(
    make, lost_at, monkeypatch
):
    """After the loss, values and variables are from the same commit."""
    variable = tf.Variable(0.0)
    state = make(variable, step=0)
    if make is keras_state:
        variable = state.model.trainable_variables[0]
    variable.assign(tf.fill(variable.shape, 3.0))
    state.step = 3
    state.commit()
    variable.assign(tf.fill(variable.shape, 4.0))
    state.step = 4
    calls = itertools.count()

    def may_be_lost(collective):
        def call(*args, **kwargs):
            result = collective(*args, **kwargs)
            if next(calls) == lost_at:
                raise elastic.HorovodInternalError("a rank is lost")
            return result

        return call

    broadcast = may_be_lost(tfring.broadcast_variables)
    monkeypatch.setattr(variables, "broadcast_variables", broadcast)
    state._bcast_object = may_be_lost(state._bcast_object)
    with pytest.raises(elastic.HorovodInternalError):
        state.sync()
    state.restore()
    assert (state.step, np.max(variable)) == (3, 3.0)


def test_callbacks_count_and_commit():
    keras.utils.set_random_seed(0)  # the same weights on all ranks
    model = small_model()
    state = elastic.KerasState(model, batch=2, epoch=1)
    commits = []
    state.save = lambda: commits.append((state.epoch, state.batch))
    x, y = np.ones((3, 2)), np.ones((3, 1))
    callbacks = [
        elastic.UpdateEpochStateCallback(state),
        elastic.UpdateBatchStateCallback(state),
        elastic.CommitStateCallback(state, batches_per_commit=2),
    ]
    # The rest of the second epoch, and then the third.
    model.fit(x, y, 1, epochs=2, verbose=0, callbacks=callbacks)
    assert commits == [(1, 4), (2, 0), (2, 1), (2, 3), (3, 0)]
    model.fit(x, y, 1, 5, initial_epoch=3, verbose=0, callbacks=callbacks)
    assert (state.epoch, state.batch) == (5, 0)


def test_a_session(session, rank):
    initial = tf.constant(float(rank + 1))
    variable, other = tf.Variable(initial), tf.Variable(initial)
    session.run(tf.compat.v1.global_variables_initializer())
    session.run(other.assign(5.0))
    state = elastic.TensorFlowState(session=session, step=rank)
    session.run(variable.assign(7.0 + rank))
    state.restore()
    assert session.run([variable, other]) == [rank + 1, 5]
    state.sync()
    assert session.run(variable) == 1
    assert state.step == 0
    state.commit()


def test_errors():
    model = keras.Sequential([keras.layers.Dense(1)])
    with pytest.raises(ValueError, match="must be built first"):
        elastic.KerasState(model)
    model.build((None, 2))
    with pytest.raises(ValueError, match="no optimizer"):
        elastic.KerasState(model)
    with pytest.raises(ValueError, match="no variables"):
        elastic.TensorFlowState([])
    with pytest.raises(ValueError, match="must be positive"):
        elastic.CommitStateCallback(None, 0)
    with pytest.raises(NotImplementedError):
        elastic.State(tfring.broadcast_object).commit()
