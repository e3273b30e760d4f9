"""The description of its state that a worker sends before it joins."""

import pickle
import types

import keras
import pytest
import tensorflow as tf

import tfring
from tfring._core import runtime, tcp_job
from tfring.elastic import progress

pytestmark = pytest.mark.usefixtures("initialized")


def make_model(make_optimizer, units=1):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(units)])
    model.compile(make_optimizer(model), "mse")
    return model


def parts_of(model):
    state = tfring.elastic.KerasState(model, epoch=0, batch=0)
    return [part for part, _ in state._describe()]


def test_attributes_variables_and_those_of_the_optimizer():
    parts = parts_of(make_model(lambda _: keras.optimizers.SGD(momentum=0.9)))
    weights = ["float32 (2, 1)", "float32 (1,)"]
    assert parts[:4] == ["attribute 'batch'", "attribute 'epoch'", *weights]
    # Iterations and the learning rate, then momenta.
    assert parts[4:] == ["int64 ()", "float32 ()", *weights]


def test_layers_that_a_process_has_numbered_otherwise_are_alike():
    models = [make_model(lambda _: keras.optimizers.Adam()) for _ in range(2)]
    assert parts_of(models[0]) == parts_of(models[1])


def test_each_ranks_own_variables_may_differ():
    def local(model):
        return tfring.PartialDistributedOptimizer(
            keras.optimizers.Adam(), local_layers=model.layers[-1]
        )

    parts = [parts_of(make_model(local, units)) for units in (1, 3)]
    assert parts[0] == parts[1]


@pytest.mark.parametrize("options", [{}, {"shard_states": True}])
def test_it_restores_its_first_values_before_any_commit(options):
    model = make_model(lambda _: tfring.DistributedOptimizer("adam", **options))
    state = tfring.elastic.KerasState(model, epoch=1)
    variables = [*model.variables, *model.optimizer.variables]
    before = [tf.convert_to_tensor(each).numpy() for each in variables]
    state.epoch = 2
    for each in variables:
        each.assign(each + tf.ones_like(each))
    state.restore()
    assert state.epoch == 1
    for each, value in zip(variables, before, strict=True):
        assert (tf.convert_to_tensor(each) == value).numpy().all()


def test_a_list_of_variables():
    variables = [tf.Variable([1, 2]), keras.Variable([1.0])]
    state = tfring.elastic.TensorFlowState(variables)
    assert [part for part, _ in state._describe()] == [
        "int32 (2,)",
        "float32 (1,)",
    ]


def test_it_is_told_once_after_each_start(monkeypatch):
    told = []
    monkeypatch.setattr(
        runtime, "tell_of_state", lambda get: told.append(get())
    )
    state = tfring.elastic.ObjectState(tfring.broadcast_object, step=0)
    for starts in (1, 2):
        state.share()
        for _ in range(3):
            state.commit()
        assert told == starts * [[("attribute 'step'", "")]]


class Uncopied(float):
    """A value that a commit must not copy."""

    def __deepcopy__(self, memo):
        raise AssertionError


def test_a_commit_copies_no_logs_of_ended_epochs():
    state = tfring.elastic.ObjectState(
        tfring.broadcast_object, history=progress.History()
    )
    state.history.append({"loss": Uncopied(3), "val_loss": Uncopied(4)})
    state.commit()
    for lost in (2.5, 2):
        state.history.append({"loss": Uncopied(lost)})
        state.restore()
    assert state.history.by_name() == {"loss": [3], "val_loss": [4]}
    state.history.append({"loss": Uncopied(1)})
    state.commit()
    state.history.append({"loss": Uncopied(0)})
    sent = pickle.loads(pickle.dumps(state.history))
    state.restore()
    assert state.history.by_name() == {"loss": [3, 1], "val_loss": [4]}
    assert sent.by_name() == {"loss": [3, 1, 0], "val_loss": [4]}


def test_a_message_has_no_more_parts_than_fit(monkeypatch):
    said = []
    launcher = types.SimpleNamespace(say=lambda *_, **more: said.append(more))
    job = object.__new__(tcp_job.TcpJob)
    job.topology = runtime.job().topology
    job.launcher = launcher
    monkeypatch.setattr(runtime, "_job", job)
    monkeypatch.setattr(runtime, "_MOST_PARTS", 1)
    runtime.tell_of_state(lambda: [("int64 ()", "a"), ("int64 ()", "b")])
    assert said == [{"parts": [("int64 ()", "a")]}]
