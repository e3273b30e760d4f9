"""The order and buckets of reductions, and how backpropagation waits.

Graphs show it; all ranks have the same gradients, so that their averages are
these gradients again, which shows that nothing waits for itself.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import ancestors, assert_each_close

import tfring
from tfring._core import runtime
from tfring._gradients import local_gradients
from tfring._gradients.gradient_options import GradientOptions
from tfring._gradients.local_variables import LocalVariables
from tfring._ops.autograph import not_converted

pytestmark = pytest.mark.usefixtures("several_ranks")


@pytest.fixture(autouse=True)
def two_layers_in_a_bucket(monkeypatch):
    monkeypatch.setattr(runtime, "fusion_threshold_bytes", lambda: 64)


# As for the public functions that call it.
@not_converted
def reduce_gradients(gradients, variables, **options):
    return local_gradients.reduce_gradients(
        gradients, variables, GradientOptions(**options)
    )


def chain(count):
    return [tf.Variable([1.0] * 8, name=f"layer_{i}") for i in range(count)]


def gradients_of(variables, layer=tf.tanh):
    with tf.GradientTape() as tape:
        value = tf.ones([8])
        for variable in variables:
            value = layer(value * variable)
    return tape.gradient(value, variables)


def traced(function, *arguments, **how):
    """Returns the graph of a step, and the operations that start reductions."""
    step = tf.function(function, **how)
    graph = step.get_concrete_function(*arguments).graph
    kinds = "TfringAllreduceStart", "TfringAllgatherStart"
    return graph, [o for o in graph.get_operations() if o.type in kinds]


def names_of(start):
    return [name.decode() for name in start.get_attr("tensor_names")]


def check_one_chain(starts, graph):
    """Each start waits for the one before it, and for no done."""
    dones = {o.name for o in graph.get_operations() if o.type.endswith("Done")}
    assert dones
    for before, start in zip([None, *starts], starts, strict=False):
        assert before is None or start.inputs[-1].op is before
        assert not dones & ancestors(start)


def assert_equal(results, expected):
    results, expected = (
        map(tf.convert_to_tensor, each) for each in (results, expected)
    )
    assert_each_close(results, expected, rtol=1e-5)


def test_buckets_are_a_chain_from_the_last_layer_on():
    variables = chain(5)
    shuffled = [2, 0, 4, 3, 1]

    def step():
        gradients = gradients_of(variables)
        return reduce_gradients(
            [gradients[i] for i in shuffled], [variables[i] for i in shuffled]
        )

    graph, starts = traced(step)
    assert [names_of(start) for start in starts] == [
        ["layer_4:0", "layer_3:0"],
        ["layer_2:0", "layer_1:0"],
        ["layer_0:0"],
    ]
    check_one_chain(starts, graph)
    expected = [gradients_of(variables)[i] for i in shuffled]
    assert_equal(tf.function(step)(), expected)
    assert_equal(step(), expected)


@pytest.mark.parametrize(
    ("options", "sizes"),
    [({}, [1, 4]), *(({"groups": n}, s) for n, s in (
        (1, [5]), (2, [3, 2]), (9, [1] * 5)))],
)  # fmt: skip
def test_sizes_of_buckets(options, sizes, monkeypatch):
    """The first is small; a number of groups counts in the place of bytes."""
    monkeypatch.setattr(runtime, "fusion_threshold_bytes", lambda: 1 << 30)
    megabyte = [tf.zeros([1 << 18])] * 5
    variables = [tf.Variable(zeros) for zeros in megabyte]
    _, starts = traced(lambda: reduce_gradients(megabyte, variables, **options))
    assert [len(names_of(start)) for start in starts] == sizes


def test_groups_are_not_cut():
    variables = chain(5)
    other = keras.Variable(tf.ones([8]), name="other")
    groups = [[variables[0], variables[4], variables[2]], [other]]
    _, starts = traced(
        lambda: reduce_gradients(
            [tf.ones([8])] * 6, [*variables, other.value], groups=groups
        )
    )
    assert [names_of(start) for start in starts][1:] == [
        ["layer_3:0"],
        ["layer_1:0"],
        ["layer_4:0", "layer_2:0", "layer_0:0"],
    ]


def test_none_stays_none():
    results = reduce_gradients([None, tf.ones([8]), None], chain(3))
    assert [result is None for result in results] == [True, False, True]
    assert reduce_gradients([None], chain(1)) == [None]


@pytest.fixture(params=["alone", "not in the set", "local variable"])
def stays_here(request, sets_of_one, rank, size):
    """Options that keep a table's gradient on this rank."""
    if request.param == "local variable":
        local = LocalVariables()

        def options(table):
            local.add(table)
            return {"local_variables": local, "scale_local_gradients": False}

        return options
    of = rank if request.param == "alone" else (rank + 1) % size
    return lambda table: {"process_set": sets_of_one[of]}


@pytest.mark.parametrize(
    "how",
    ["sparse", "sparse_as_dense", pytest.param("XLA", marks=pytest.mark.xla)],
)
def test_gradients_that_stay_here_have_the_form_of_others(stays_here, how):
    table = tf.Variable(tf.zeros([4, 1]))

    @tf.function(jit_compile=how == "XLA")
    def squares():
        slices = tf.IndexedSlices([[1.0], [2.0], [3.0]], [3, 0, 3], [4, 1])
        [gradient] = reduce_gradients(
            [slices],
            [table],
            sparse_as_dense=how == "sparse_as_dense",
            **stays_here(table),
        )
        assert isinstance(gradient, tf.IndexedSlices) == (how == "sparse")
        return tf.convert_to_tensor(keras.ops.square(gradient))

    assert squares().numpy().tolist() == [[4.0], [0.0], [0.0], [16.0]]


@pytest.mark.parametrize(
    ("gradient", "op", "error", "message"),
    [
        (
            tf.IndexedSlices([[1.0]], [0], [2, 1]),
            tfring.Adasum,
            NotImplementedError,
            "with Average or Sum",
        ),
        (tf.constant([1]), tfring.Adasum, ValueError, "floating-point"),
        (tf.constant([True]), tfring.Average, ValueError, "no average"),
        (tf.constant([1j]), tfring.Sum, TypeError, "complex128"),
        (
            tf.ragged.constant([[1.0], []]),
            tfring.Sum,
            TypeError,
            "'gradient 0' is a RaggedTensor",
        ),
    ],
)
def test_one_rank_checks_as_several_do(
    gradient, op, error, message, sets_of_one, rank
):
    for process_set in (tfring.global_process_set, sets_of_one[rank]):
        with pytest.raises(error, match=message):
            reduce_gradients([gradient], [None], op=op, process_set=process_set)


def test_sparse_gradients_start_as_they_become_ready():
    weights = chain(3)
    tables = [tf.Variable(tf.ones([4, 8]), name=f"table_{i}") for i in range(3)]
    variables = [*weights, *tables]

    def gradients():
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(tf.gather(tables[0], [1, 3, 1]), 0)
            value += tf.reduce_sum(tf.gather(tables[1], [2]), 0)
            for weight in weights:
                value = tf.tanh(value * weight)
            value *= tf.reduce_sum(tf.gather(tables[2], [3]), 0)
            loss = tf.reduce_sum(value)
        return tape.gradient(loss, variables)

    def step():
        reduced = reduce_gradients(gradients(), variables)
        assert isinstance(reduced[-1], tf.IndexedSlices)
        return reduced

    graph, starts = traced(step)
    names = [name for start in starts for name in names_of(start)]
    tables_and_layers = [name for name in names if name.endswith(":0")]
    assert list(dict.fromkeys(tables_and_layers)) == [
        *("table_2:0", "layer_2:0", "layer_1:0", "layer_0:0"),
        *("table_0:0", "table_1:0"),
    ]
    check_one_chain(starts, graph)
    assert_equal(tf.function(step)(), gradients())


@pytest.mark.xla
def test_xla_is_noticed_in_nested_functions():
    """There slices are made dense, as they cannot be gathered."""
    table = tf.Variable(tf.ones([4, 2]))

    @tf.function
    def inner():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [1, 3, 1]))
        [gradient] = reduce_gradients(tape.gradient(loss, [table]), [table])
        assert isinstance(gradient, tf.Tensor)
        return gradient

    outer = tf.function(lambda: inner(), jit_compile=True)
    np.testing.assert_array_equal(outer()[:, 0], [0, 2, 0, 1])


def test_request_names(rank):
    """A rank may have traced once more than another, or named a scope apart."""
    variables = chain(3)

    def reduce():
        return reduce_gradients(gradients_of(variables), variables)[0]

    @tf.function
    def step(scope, flag):
        with tf.name_scope(scope):
            first = reduce()
        inside = tf.function(reduce)()
        sometimes = tf.cond(flag, reduce, lambda: tf.zeros([8]))
        return first + inside + sometimes + reduce()

    if rank == 0:
        step.get_concrete_function("another", tf.constant(True))
    total = step(f"adam_{rank}", tf.constant(True))
    np.testing.assert_allclose(total, 4 * gradients_of(variables)[0], rtol=1e-5)


def test_gradient_of_wholly_unknown_shape():
    @tf.function(input_signature=[tf.TensorSpec(None)])
    def step(gradient):
        return reduce_gradients([gradient], [None])[0]

    np.testing.assert_array_equal(step(tf.ones([2, 3])), np.ones([2, 3]))


def test_gradients_are_reduced_where_the_devices_say():
    table, dense = tf.Variable(tf.zeros([5, 2])), tf.Variable([1.0])

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [1])) * dense[0]
        reduce_gradients(
            tape.gradient(loss, [table, dense]),
            [table, dense],
            device_dense="/cpu:0",
            device_sparse="/cpu:1",
        )

    _, starts = traced(step)
    devices = {(s.type[6:15], s.device) for s in starts}
    assert devices == {
        ("Allreduce", "/device:CPU:0"),
        ("Allgather", "/device:CPU:1"),
    }


def test_backpropagation_goes_on_after_a_start():
    variables = chain(6)

    def step():
        gradients = gradients_of(variables)
        reduce_gradients(gradients, variables)
        return gradients

    graph, starts = traced(step)
    # A function ends with identities of its results.
    gradients = [result.op.inputs[0].op for result in reversed(graph.outputs)]
    waits_for = [
        [start.name in ancestors(gradient) for start in starts]
        for gradient in gradients
    ]
    assert waits_for == [
        *[[False, False, False]] * 2,
        *[[True, False, False]] * 2,
        *[[True, True, False]] * 2,
    ]
    assert_equal(tf.function(step)(), gradients_of(variables))


@pytest.mark.xla
def test_it_waits_under_xla():
    variables = chain(6)
    graph, _ = traced(
        lambda: reduce_gradients(gradients_of(variables), variables),
        jit_compile=True,
    )
    kinds = [operation.type for operation in graph.get_operations()]
    assert kinds.count("TfringAfterStart") >= 2


# oneDNN makes one operation of the two gradients that a convolution with a bias
# takes from one tensor; see Note [Waiting by data].
def test_what_may_be_merged_does_not_wait_for_each_other():
    layers = [
        (tf.Variable(tf.ones([3, 3, 4, 4])), tf.Variable(tf.ones([4])))
        for _ in range(3)
    ]

    def gradients():
        with tf.GradientTape() as tape:
            value = tf.ones([2, 8, 8, 4])
            for kernel, bias in layers:
                value = tf.nn.conv2d(value, kernel, 1, "SAME")
                value = tf.nn.relu(tf.nn.bias_add(value, bias))
        return tape.gradient(value, [v for layer in layers for v in layer])

    def step():
        return reduce_gradients(gradients(), [None] * 2 * len(layers))

    graph, _ = traced(step)
    biases, kernels = (
        [o for o in graph.get_operations() if o.type == kind]
        for kind in ("BiasAddGrad", "Conv2DBackpropFilter")
    )
    assert len(biases) == len(kernels) == len(layers)
    assert any(bias.name in ancestors(k) for bias in biases for k in kernels)
    for bias in biases:
        for kernel in kernels:
            if bias.inputs[0].name == kernel.inputs[2].name:
                assert bias.name not in ancestors(kernel)
                assert kernel.name not in ancestors(bias)
    assert_equal(tf.function(step)(), gradients())


def test_gradient_of_what_has_waited():
    variables = chain(6)

    @tf.function
    def gradients():
        first = gradients_of(variables)
        reduce_gradients(first, variables)
        return first

    def second(gradients):
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(g**2) for g in gradients()])
        return tape.gradient(loss, variables)

    assert_equal(second(gradients), second(lambda: gradients_of(variables)))


@tf.custom_gradient
def prints_its_gradient(x):
    def gradient(upstream):
        tf.print("gradient", output_stream="file:///dev/null")
        return upstream

    return tf.tanh(x), gradient


def loop(x):
    return tf.while_loop(
        lambda i, _: i < 3, lambda i, x: (i + 1, tf.tanh(x)), [0, x]
    )[1]


@pytest.mark.parametrize("layer", [prints_its_gradient, loop, tf.tanh])
@pytest.mark.parametrize("old_loops", [False, True])
def test_no_start_waits_for_what_waits_for_it(layer, old_loops):
    variables = chain(6)

    @tf.function
    def step():
        gradients = gradients_of(variables, layer)
        # The last layer reduces after all of backpropagation.
        waited_for = gradients if layer is tf.tanh else []
        with tf.control_dependencies(waited_for):
            return reduce_gradients(gradients, variables)

    expected = gradients_of(variables, layer)
    if old_loops:
        tf.compat.v1.disable_control_flow_v2()
    try:
        assert_equal(step(), expected)
    finally:
        tf.compat.v1.enable_control_flow_v2()
