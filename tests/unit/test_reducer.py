"""The reducer's order, buckets and names. Collectives are fakes here."""

import keras
import pytest
import tensorflow as tf
from places import first_of
from reductions import gradients_of_chain, reduce_gradients, variables_of_chain

from tfring._core import runtime
from tfring._core.process_sets import ProcessSet
from tfring._gradients import reducer
from tfring._gradients.local_variables import LocalVariables
from tfring._ops import chains
from tfring._ops.reductions import ReduceOp


def is_sparse(gradient):
    return isinstance(gradient, tf.IndexedSlices)


def reduced_names(recorder):
    return [name for start in recorder.starts for name in start["tensor_names"]]


@pytest.mark.parametrize("traced", [True, False])
def test_last_layer_is_reduced_first(recorder, traced):
    variables = variables_of_chain(5)

    def step():
        return reduce_gradients(gradients_of_chain(variables), variables)

    result = (tf.function(step) if traced else step)()
    assert len(recorder.starts) == 3
    names = [f"layer_{i}:0" for i in reversed(range(5))]
    assert reduced_names(recorder) == names
    for got, expected in zip(
        result, gradients_of_chain(variables), strict=True
    ):
        tf.debugging.assert_equal(got, expected)


def test_order_follows_the_graph_and_not_the_list(recorder):
    variables = variables_of_chain(4)

    @tf.function
    def step():
        gradients = gradients_of_chain(variables)
        shuffled = [2, 0, 3, 1]
        reduce_gradients(
            [gradients[i] for i in shuffled], [variables[i] for i in shuffled]
        )

    step()
    assert reduced_names(recorder) == [
        f"layer_{i}:0" for i in reversed(range(4))
    ]


def test_all_starts_come_before_the_first_done_in_one_chain(recorder):
    variables = variables_of_chain(6)
    reduce_gradients(gradients_of_chain(variables), variables)
    assert recorder.events == ["start"] * 3 + ["done"] * 3
    previous = [start["previous"] for start in recorder.starts]
    started = [start["started"] for start in recorder.starts]
    assert previous == [None, *started[:-1]]
    assert [start["last"] for start in recorder.starts] == [False, False, True]


def test_first_bucket_is_small(recorder, monkeypatch):
    monkeypatch.setattr(runtime, "fusion_threshold_bytes", lambda: 1 << 30)
    variables = [tf.Variable(tf.zeros([1 << 18])) for _ in range(4)]
    gradients = [tf.zeros([1 << 18]) for _ in range(4)]
    reduce_gradients(gradients, variables)
    assert [len(start["tensors"]) for start in recorder.starts] == [1, 3]


def test_groups_are_not_cut(recorder):
    variables = variables_of_chain(5)
    gradients = [tf.ones([8])] * 5  # 32 bytes each, and buckets of 64
    keras_variable = keras.Variable(tf.ones([8]))
    groups = [[variables[0], variables[4], variables[2]], [keras_variable]]
    reduce_gradients(
        [*gradients, gradients[0]],
        [*variables, keras_variable.value],
        groups=groups,
    )
    names = [start["tensor_names"] for start in recorder.starts]
    assert [len(name) for name in names] == [1, 1, 1, 3]
    assert names[1:] == [
        ["layer_3:0"],
        ["layer_1:0"],
        ["layer_4:0", "layer_2:0", "layer_0:0"],
    ]


@pytest.mark.parametrize(
    ("groups", "sizes"), [(1, [5]), (2, [3, 2]), (9, [1] * 5)]
)
def test_number_of_groups(recorder, groups, sizes):
    variables = variables_of_chain(5)
    gradients = [tf.ones([8])] * 5
    reduce_gradients(gradients, variables, groups=groups)
    assert [len(start["tensors"]) for start in recorder.starts] == sizes
    assert reduced_names(recorder)[0] == "layer_4:0"


def test_none_stays_none(recorder):
    variables = variables_of_chain(3)
    gradients = [None, tf.ones([8]), None]
    result = reduce_gradients(gradients, variables)
    assert result[0] is None
    assert result[2] is None
    assert reduced_names(recorder) == ["layer_1:0"]


def test_nothing_to_reduce(recorder):
    assert reduce_gradients([None], variables_of_chain(1)) == [None]
    assert recorder.events == []


def test_one_rank_is_an_identity(recorder, monkeypatch):
    monkeypatch.setattr(runtime, "_job", first_of(1))
    gradients = [tf.ones([2]), None]
    result = reduce_gradients(gradients, variables_of_chain(2))
    assert result[0] is gradients[0]
    assert result[1] is None
    assert recorder.events == []


def embedding_step(recorder, **arguments):
    """Returns whether the table's gradient left the reducer sparse."""
    table = tf.Variable(tf.ones([4, 2]))
    weight = tf.Variable([1.0, 2.0])
    left_sparse = []

    def step():
        with tf.GradientTape() as tape:
            rows = tf.gather(table, [1, 3, 1])
            loss = tf.reduce_sum(rows * weight)
        gradients = reduce_gradients(
            tape.gradient(loss, [table, weight]), [table, weight], **arguments
        )
        left_sparse.append(is_sparse(gradients[0]))
        return tf.convert_to_tensor(gradients[0])

    return step, left_sparse


class _OfOthers(ProcessSet):
    """A set of two ranks, without this one."""

    ranks, process_set_id = [1, 2], 7

    def __init__(self):
        pass


@pytest.fixture(params=["alone", "not in the set", "local variable"])
def stays_here(request, monkeypatch, recorder):
    """Options by which a table's gradient does not travel."""
    if request.param == "alone":
        monkeypatch.setattr(runtime, "_job", first_of(1))
        return lambda table: {}
    if request.param == "not in the set":
        return lambda table: {"process_set": _OfOthers()}
    local_variables = LocalVariables()

    def options(table):
        local_variables.add(table)
        return {
            "local_variables": local_variables,
            "scale_local_gradients": False,
        }

    return options


@pytest.mark.parametrize("how", ["sparse", "sparse_as_dense", "XLA"])
def test_gradients_that_stay_here_have_the_form_of_others(stays_here, how):
    table = tf.Variable(tf.zeros([4, 1]))
    sparse = []

    @tf.function(jit_compile=how == "XLA")
    def squares():
        slices = tf.IndexedSlices([[1.0], [2.0], [3.0]], [3, 0, 3], [4, 1])
        [gradient] = reduce_gradients(
            [slices],
            [table],
            sparse_as_dense=how == "sparse_as_dense",
            **stays_here(table),
        )
        sparse.append(is_sparse(gradient))
        return tf.convert_to_tensor(keras.ops.square(gradient))

    assert squares().numpy().tolist() == [[4.0], [0.0], [0.0], [16.0]]
    assert set(sparse) == {how == "sparse"}


@pytest.mark.parametrize(
    ("gradient", "op", "error", "message"),
    [
        (
            tf.IndexedSlices([[1.0]], [0], [2, 1]),
            ReduceOp.Adasum,
            NotImplementedError,
            "with Average or Sum",
        ),
        (tf.constant([1]), ReduceOp.Adasum, ValueError, "floating-point"),
        (tf.constant([True]), ReduceOp.Average, ValueError, "no average"),
        (tf.constant([1j]), ReduceOp.Sum, TypeError, "complex128"),
        (
            tf.ragged.constant([[1.0], []]),
            ReduceOp.Sum,
            TypeError,
            "RaggedTensor",
        ),
    ],
)
def test_one_rank_checks_as_several_do(
    gradient, op, error, message, recorder, monkeypatch
):
    for size in 1, 2:
        monkeypatch.setattr(runtime, "_job", first_of(size))
        with pytest.raises(error, match=message):
            reduce_gradients([gradient], [None], op=op)


def test_sparse_gradients_end_the_chain(recorder):
    step, left_sparse = embedding_step(recorder)
    step()
    assert left_sparse == [True]
    events = ["start", "start slices", "done", "done slices"]
    assert recorder.events == events
    dense, sparse = recorder.starts
    assert sparse["previous"] is dense["started"]
    assert [dense["last"], sparse["last"]] == [False, True]


def test_sparse_gradients_start_as_they_become_ready(recorder):
    weights = variables_of_chain(3)
    tables = [tf.Variable(tf.ones([4, 8]), name=f"table_{i}") for i in range(3)]

    def step():
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(tf.gather(tables[0], [1, 3, 1]), 0)
            value += tf.reduce_sum(tf.gather(tables[1], [2]), 0)
            for weight in weights:
                value = tf.tanh(value * weight)
            value *= tf.reduce_sum(tf.gather(tables[2], [3]), 0)
            loss = tf.reduce_sum(value)
        variables = [*weights, *tables]
        gradients = tape.gradient(loss, variables)
        results = reduce_gradients(gradients, variables)
        for result, gradient in zip(results, gradients, strict=True):
            tf.debugging.assert_equal(
                tf.convert_to_tensor(result), tf.convert_to_tensor(gradient)
            )
        return tf.constant(True)

    tf.function(step)()
    # Buckets of two weights, as `recorder` has it.
    assert [start["tensor_names"] for start in recorder.starts] == [
        ["table_2:0"],
        ["layer_2:0", "layer_1:0"],
        ["layer_0:0"],
        ["table_0:0", "table_1:0"],
    ]
    previous = [start["previous"] for start in recorder.starts]
    started = [start["started"] for start in recorder.starts]
    assert previous == [None, *started[:-1]]
    assert [start["last"] for start in recorder.starts] == [False] * 3 + [True]
    names = [s.get("request_name", s.get("name")) for s in recorder.starts]
    assert len(set(names)) == 4
    assert recorder.events[4:] == ["done"] * 2 + ["done slices"] * 2


@pytest.mark.parametrize("how", ["by choice", "under XLA"])
def test_sparse_gradients_made_dense(recorder, how):
    step, left_sparse = embedding_step(
        recorder, sparse_as_dense=how == "by choice"
    )
    step = tf.function(step, jit_compile=how == "under XLA")
    tf.debugging.assert_equal(
        step(), [[0.0, 0.0], [2.0, 4.0], [0.0, 0.0], [1.0, 2.0]]
    )
    assert not any(left_sparse)
    assert "start slices" not in recorder.events


def test_xla_is_noticed_in_nested_functions(recorder):
    step, left_sparse = embedding_step(recorder)
    inner = tf.function(step)
    tf.function(lambda: inner(), jit_compile=True)()
    assert not any(left_sparse)


def request_names(recorder):
    return [start["request_name"] for start in recorder.starts]


def test_request_names_are_the_same_in_every_trace(recorder):
    # A rank may have traced once more than another, or named its model apart.
    variables = variables_of_chain(3)

    @tf.function
    def step(scope):
        with tf.name_scope(scope):
            reduce_gradients(gradients_of_chain(variables), variables)

    step("adam")
    once = request_names(recorder)
    step("adam_1")
    assert request_names(recorder) == once + once


def test_request_names_are_unique_within_a_step(recorder):
    variables = variables_of_chain(3)

    def reduce():
        reduce_gradients(gradients_of_chain(variables), variables)
        return tf.constant(True)

    @tf.function
    def step(flag):
        reduce()
        tf.function(reduce)()
        tf.cond(flag, reduce, lambda: tf.constant(False))
        reduce()

    step(tf.constant(True))
    names = request_names(recorder)
    assert len(set(names)) == len(names) == 4 * 2


def test_shape_comes_from_the_variable_where_the_trace_does_not_know(recorder):
    variable = tf.Variable(tf.ones([3, 2]))

    @tf.function
    def step(gradient):
        reduce_gradients([gradient], [variable])

    step.get_concrete_function(tf.TensorSpec(None, tf.float32))
    assert recorder.starts[0]["tensors"][0].shape == (3, 2)


def test_gradient_of_wholly_unknown_shape(recorder):
    @tf.function
    def step(gradient):
        return reduce_gradients([gradient], [None])

    spec = tf.TensorSpec(None, tf.float32)
    step.get_concrete_function(spec)
    assert reduced_names(recorder) == ["gradient 0"]


def test_errors_speak_of_keras_variables_by_path(recorder):
    model = keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(1, name="head")], name="net"
    )
    kernel = model.trainable_variables[0]
    reduce_gradients([tf.ones([2, 1])], [kernel])
    assert reduced_names(recorder) == ["net/head/kernel"]


def test_ragged_gradient_is_refused(recorder):
    ragged = tf.ragged.constant([[1.0], [2.0, 3.0]])
    with pytest.raises(TypeError, match="'gradient 0' is a RaggedTensor"):
        reduce_gradients([ragged], [None])


def test_gradients_are_reduced_where_the_devices_say(recorder, monkeypatch):
    table = tf.Variable(tf.zeros([5, 2]))
    dense = tf.Variable([1.0])
    starts, sparse = [], []

    def start_allreduce(tensors, **arguments):
        # The device of an operation that only this scope places.
        starts.append(tf.identity(tensors[0]).op.device)
        return recorder.start_allreduce(tensors, **arguments)

    def start_slices(function, slices, **arguments):
        sparse.append(tf.identity(slices[0].values).op.device)
        return recorder.start_slices(function, slices, **arguments)

    monkeypatch.setattr(chains, "start_allreduce", start_allreduce)
    monkeypatch.setattr(reducer, "start_slices", start_slices)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [1])) * dense[0]
        reduce_gradients(
            tape.gradient(loss, [table, dense]),
            [table, dense],
            device_dense="/cpu:0",
            device_sparse="/cpu:1",
        )

    step.get_concrete_function()
    assert starts == ["/device:CPU:0"]
    assert sparse == ["/device:CPU:1"]
