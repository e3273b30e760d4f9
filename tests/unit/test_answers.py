"""What is asked while a function is traced, and when a trace is outdated."""

import dataclasses

import keras
import pytest
import tensorflow as tf
from places import Place

import tfring
from tfring._core import answers, native, runtime
from tfring._core.job import Topology
from tfring._training.weights import mark_compared

# Rank 1 of 3, of which it is the first on the second machine.
PLACE = Topology(1, 3, 0, 2, 1, 2, is_homogeneous=False)
ROWS = tf.ones([6, 2])


@pytest.fixture(autouse=True)
def job(monkeypatch):
    tfring.init()
    monkeypatch.setattr(runtime, "_job", Place(PLACE))
    monkeypatch.setattr(answers, "_noted", set())
    return runtime._job


def is_outdated_with(monkeypatch, **changed):
    """Tells if a new job, where some has changed, outdates what is traced."""
    before = answers.times_outdated()
    topology = dataclasses.replace(PLACE, **changed)
    with monkeypatch.context() as patch:
        patch.setattr(runtime, "_job", Place(topology))
        patch.setattr(answers, "_noted", set(answers._noted))
        answers.compare()
    return answers.times_outdated() > before


def trace(ask):
    @tf.function
    def function():
        ask()

    function.get_concrete_function()


def in_init_scope(ask):
    with tf.init_scope():
        ask()


def in_a_graph(ask):
    with tf.Graph().as_default():
        ask()


def in_a_branch(ask):
    tf.cond(tf.random.uniform([]) > 0, lambda: (ask(), 1)[1], lambda: 2)


OTHER = {
    "rank": 0,
    "size": 4,
    "local_rank": 1,
    "local_size": 1,
    "cross_rank": 0,
    "cross_size": 1,
    "is_homogeneous": True,
}


@pytest.mark.parametrize(
    "where", [lambda ask: ask(), in_init_scope, in_a_graph, in_a_branch]
)
@pytest.mark.parametrize("name", OTHER)
def test_a_trace_depends_on_what_it_has_asked(monkeypatch, name, where):
    trace(lambda: where(getattr(tfring, name)))
    assert is_outdated_with(monkeypatch, **{name: OTHER[name]})
    others = {each: OTHER[each] for each in OTHER if each != name}
    assert not is_outdated_with(monkeypatch, **others)


def scattered_integers():
    tfring.reducescatter(tf.ones([6, 2], tf.int32), op=tfring.Average)


def gradient_of(collective):
    def gradient():
        with tf.GradientTape() as tape:
            tape.watch(ROWS)
            result = collective(ROWS)
        tape.gradient(result, ROWS)

    return gradient


@pytest.mark.parametrize(
    ("ask", "changed"),
    [
        (lambda: tfring.global_process_set.size(), "size"),
        (lambda: tfring.global_process_set.ranks, "size"),
        (lambda: tfring.global_process_set.rank(), "rank"),
        (lambda: tfring.reducescatter(ROWS), "size"),
        (scattered_integers, "size"),
        (lambda: tfring.alltoall(ROWS), "size"),
        (lambda: tfring.broadcast(ROWS, 2), "size"),
        (gradient_of(lambda x: tfring.broadcast(x, 0)), "rank"),
        (gradient_of(tfring.allgather), "rank"),
        (gradient_of(tfring.reducescatter), "size"),
    ],
)
def test_what_a_trace_asks_by_the_way(monkeypatch, ask, changed):
    trace(ask)
    assert is_outdated_with(monkeypatch, **{changed: OTHER[changed]})


def test_a_topology_op_under_xla_is_a_constant(monkeypatch):
    tf.function(tfring.size_op, jit_compile=True).get_concrete_function()
    assert is_outdated_with(monkeypatch, size=4)


def test_a_topology_op_is_asked_when_the_graph_runs(monkeypatch):
    trace(tfring.size_op)
    trace(tfring.rank_op)
    assert not is_outdated_with(monkeypatch, **OTHER)


def test_a_local_gradient_that_is_scaled(monkeypatch):
    variable = tf.Variable(1.0)
    mark_compared([variable], tfring.global_process_set)

    def step():
        with tf.GradientTape() as tape:
            loss = variable * 2.0
        tape = tfring.DistributedGradientTape(tape, scale_local_gradients=True)
        tape.register_local_source(variable)
        tape.gradient(loss, variable)

    trace(step)
    assert is_outdated_with(monkeypatch, size=4)


def test_a_collective_in_the_middle_of_a_trace(monkeypatch):
    # Its result may be the size, and the constant of a graph.
    trace(lambda: in_init_scope(lambda: tfring.allreduce(1.0, op=tfring.Sum)))
    assert is_outdated_with(monkeypatch)


class Settings:
    """The engine, with other answers to some questions."""

    def __init__(self, **changed):
        self._capi = native.capi()
        self.__dict__.update({n: lambda v=v: v for n, v in changed.items()})

    def __getattr__(self, name):
        return getattr(self._capi, name)


def is_outdated_by(monkeypatch, **settings):
    """Tells if a new job outdates what is traced, by rank 0's settings."""
    engine = Settings(**settings)
    with monkeypatch.context() as patch:
        patch.setattr(native, "capi", lambda: engine)
        return is_outdated_with(monkeypatch)


def trace_gradients():
    variable = tf.Variable([1.0, 2.0])
    mark_compared([variable], tfring.global_process_set)

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * variable)
        tfring.DistributedGradientTape(tape).gradient(loss, variable)

    trace(step)


def test_gradients_depend_on_the_size_of_a_bucket(monkeypatch):
    trace_gradients()
    assert not is_outdated_by(monkeypatch)
    other = runtime.fusion_threshold_bytes() + 1
    assert is_outdated_by(monkeypatch, tfring_fusion_threshold_bytes=other)


def test_gradients_depend_on_what_backpropagation_waits_for(monkeypatch):
    trace_gradients()
    other = int(not runtime.overlap())
    assert is_outdated_by(monkeypatch, tfring_overlap=other)


def test_a_trace_may_ask_whether_the_size_changes(monkeypatch):
    monkeypatch.setattr(runtime, "_first_size", PLACE.size)
    trace(runtime.changes_size)
    assert not is_outdated_with(monkeypatch, size=PLACE.size + 1)
    assert is_outdated_with(monkeypatch, size=PLACE.size - 1)


def trace_training(jit_compile):
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(3),
            tfring.SyncBatchNormalization(),
            keras.layers.Dense(1),
        ]
    )
    optimizer = tfring.DistributedOptimizer(
        keras.optimizers.Adam(), compression=tfring.Compression.fp16
    )
    model.compile(optimizer, "mse", jit_compile=jit_compile)
    optimizer.build(model.trainable_variables)
    mark_compared(model.trainable_variables, tfring.global_process_set)
    step = tf.function(model.train_step, jit_compile=jit_compile)
    step.get_concrete_function((tf.ones([4, 4]), tf.ones([4, 1])))


@pytest.mark.parametrize("jit_compile", [False, True])
def test_training_depends_on_others_being_there(monkeypatch, jit_compile):
    trace_training(jit_compile)
    assert not is_outdated_with(monkeypatch, **OTHER)
    assert is_outdated_with(monkeypatch, size=1)


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("size", [1, 3])
def test_where_others_may_join_training_is_that_of_any_size(
    monkeypatch, jit_compile, size
):
    monkeypatch.setattr(runtime, "may_grow", lambda: True)
    place = dataclasses.replace(PLACE, rank=0, size=size)
    monkeypatch.setattr(runtime, "_job", Place(place))
    trace_training(jit_compile)
    assert not is_outdated_with(monkeypatch, size=4)
    assert not is_outdated_with(monkeypatch, size=1)


def test_what_is_asked_outside_of_a_trace_is_not_noted(monkeypatch):
    for name in OTHER:
        getattr(tfring, name)()
    tfring.allreduce(1.0, op=tfring.Sum)
    dataset = tfring.data.shard(tf.data.Dataset.range(9), seed=0)
    assert next(iter(dataset)) is not None
    assert not is_outdated_with(monkeypatch, **OTHER)
