"""elastic: states, callbacks, and a new start of ranks that are all alive.

tests/jobs/test_elastic.py has the jobs in which a rank is killed.
"""

import re
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring
from tfring import elastic


def sum_of(value):
    return float(tfring.allreduce(float(value), op=tfring.Sum))


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
            variable.assign_add(sum_of(1))
            state.seen.append(state.step)
            state.step += 1
            if state.step == 2:
                state.commit()
            # One rank alone: the others hear of it.
            if state.step == 3 and len(starts) == 1 and rank == size - 1:
                raise fail
        return rank

    assert train(state, 5, fail=elastic.HorovodInternalError("x")) == rank
    assert starts == [(0, [], 0.0), (2, [0, 1], 2.0 * size)]
    assert resets == [size, "b"]
    assert variable == 5.0 * size
    assert state.seen == [0, 1, 2, 3, 4]
    assert train.__name__ == "train"


def test_no_rank_is_gone_when_a_late_one_starts_again(rank, size):
    calls = []

    @elastic.run
    def train(state):
        calls.append(tfring.size())
        if rank == size - 1 and len(calls) == 1:
            time.sleep(0.3)
            raise elastic.HorovodInternalError("late")
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

    # Not taken back; all have rank 0's again, unless none can be new.
    second = 1 if kind == "added" else 1 + rank
    assert train(state) == second
    assert starts == [0, second]


def small_model():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam(0.1)
    model.compile(tfring.DistributedOptimizer(optimizer), "mse")
    return model


def state_of(model):
    variables = [*model.variables, *model.optimizer.variables]
    return [tf.convert_to_tensor(v).numpy() for v in variables]


def test_a_model_and_its_optimizer(rank, size, monkeypatch):
    monkeypatch.setattr(elastic.variables, "were_added", lambda: False)
    model = small_model()
    state = elastic.TensorFlowKerasState(model, batch=0, epoch=0)
    state.sync()
    gathered = tfring.allgather(model.get_weights()[0][None]).numpy()
    assert (gathered == gathered[0]).all()
    x, y = np.ones((4, 2)), np.ones((4, 1))
    model.fit(x, y, batch_size=2, verbose=0)
    state.save()
    saved = state_of(model)
    model.fit(x, y, batch_size=1, verbose=0)
    assert model.optimizer.iterations == 6
    traced = model.train_function
    state.restore()
    state.on_reset()
    for now, then in zip(state_of(model), saved, strict=True):
        np.testing.assert_array_equal(now, then)
    # What is traced for this rank of so many holds.
    assert model.train_function is traced
    monkeypatch.setattr(elastic.variables, "_place", lambda: (rank, size + 1))
    state.on_reset()
    assert model.train_function is None
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


def test_a_session(rank):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("v", initializer=float(rank + 1))
        session.run(variable.initializer)
        state = elastic.TensorFlowState(session=session, step=rank)
        session.run(variable.assign(7.0 + rank))
        state.restore()
        assert session.run(variable) == rank + 1
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


ROWS_LEFT, BATCH, FIT_BATCHES, FIT_EPOCHS = 1, 3, 4, 3


class FailsOnce(keras.callbacks.Callback):
    """Before the batch of an epoch, on all ranks."""

    def __init__(self, epoch, step):
        super().__init__()
        self.when = epoch, step
        self.epoch = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if (self.epoch, batch) == self.when:
            self.when = None
            raise elastic.HorovodInternalError("a rank is lost")


def rows_to_fit(size):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(FIT_BATCHES * BATCH * size + ROWS_LEFT, 2))
    return x, x @ np.array([[1.0], [-2.0]])


def fitted_by_hand(size, *, shuffle):
    """The weights of a linear model after gradient descent."""
    x, y = rows_to_fit(size)
    weights, rows = np.ones((2, 1)), np.arange(len(x))
    for epoch in range(FIT_EPOCHS):
        if shuffle:
            rows = np.random.default_rng([7, epoch]).permutation(len(x))
        for step in range(FIT_BATCHES):
            own = rows[step * BATCH * size : (step + 1) * BATCH * size]
            error = x[own] @ weights - y[own]
            weights -= 0.1 * 2 * x[own].T @ error / len(own)
    return weights


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    "fails_at", [None, (0, 0), (1, 0), (1, 2), (1, 3), (2, 3)]
)
def test_fit_goes_on_where_it_was(rank, size, capsys, fails_at, shuffle):
    model = keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(1, use_bias=False)]
    )
    model.compile(tfring.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    model.set_weights([np.full((2, 1), 1.0 if rank == 0 else 5.0)])
    x, y = rows_to_fit(size)
    history = elastic.fit(
        model,
        x,
        y,
        batch_size=BATCH,
        epochs=FIT_EPOCHS,
        shuffle=shuffle,
        seed=7,
        callbacks=[FailsOnce(*fails_at)] if fails_at else None,
        verbose=1,
    )
    np.testing.assert_allclose(
        model.get_weights()[0],
        fitted_by_hand(size, shuffle=shuffle),
        rtol=1e-5,
    )
    assert len(history["loss"]) == FIT_EPOCHS
    shown = capsys.readouterr().out
    if rank != 0:
        assert "Epoch" not in shown
        return
    epoch = fails_at[0] if fails_at else 0
    again = shown.rpartition(f"Epoch {epoch + 1}/{FIT_EPOCHS}")[2]
    step = fails_at[1] if fails_at else 0
    # Not from the first batch on, and to the last.
    first = re.search(rf"(\d+)/{FIT_BATCHES}", again)
    assert int(first[1]) == step + 1
    assert f"{FIT_BATCHES}/{FIT_BATCHES}" in again
    assert "Epoch 3/3" in shown


def test_a_fit_that_stops_early(size):
    model = small_model()
    x, y = np.ones((4 * size, 2)), np.ones((4 * size, 1))

    class Stops(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = epoch == 1

    history = elastic.fit(
        model,
        x,
        y,
        batch_size=2,
        epochs=9,
        callbacks=[Stops()],
        verbose=0,
    )
    assert len(history["loss"]) == 2


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"batch_size": 0}, ValueError),
        ({"epochs": 0}, ValueError),
        ({"batches_per_commit": 0}, ValueError),
        ({"initial_epoch": 1}, TypeError),
        ({"batch_size": 1000}, ValueError),
        ({"y": np.ones((5, 1))}, ValueError),
    ],
)
def test_arguments_of_fit(options, error):
    arguments = {"x": np.ones((8, 2)), "y": np.ones((8, 1)), **options}
    with pytest.raises(error, match=r"^tfring\.elastic\.fit: "):
        elastic.fit(small_model(), **arguments)
