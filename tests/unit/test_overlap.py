"""What of backpropagation waits for starts. Collectives are fakes here."""

import pytest
import tensorflow as tf
from reductions import gradients_of_chain, reduce_gradients, variables_of_chain

from tfring._core import runtime


def ancestors(operation):
    """Returns the names of the operations that `operation` waits for."""
    graph = operation.graph.as_graph_def()
    waited_for = tf.compat.v1.graph_util.extract_sub_graph(
        graph, [operation.name]
    )
    return {node.name for node in waited_for.node}


def test_backpropagation_goes_on_after_a_start(recorder):
    variables = variables_of_chain(6)

    @tf.function
    def step():
        gradients = gradients_of_chain(variables)
        reduce_gradients(gradients, variables)
        starts = [start["started"].handle.op.name for start in recorder.starts]
        waits_for = [
            [start in ancestors(gradient.op) for start in starts]
            for gradient in reversed(gradients)
        ]
        # Two gradients of 32 bytes make a bucket.
        assert waits_for == [
            *[[False, False, False]] * 2,
            *[[True, False, False]] * 2,
            *[[True, True, False]] * 2,
        ]
        return gradients

    for got, expected in zip(
        step(), gradients_of_chain(variables), strict=True
    ):
        tf.debugging.assert_equal(got, expected)


def convolutions():
    return [
        (tf.Variable(tf.ones([3, 3, 4, 4])), tf.Variable(tf.ones([4])))
        for _ in range(3)
    ]


def gradients_of_convolutions(layers):
    with tf.GradientTape() as tape:
        value = tf.ones([2, 8, 8, 4])
        for kernel, bias in layers:
            value = tf.nn.conv2d(value, kernel, 1, "SAME")
            value = tf.nn.relu(tf.nn.bias_add(value, bias))
    return tape.gradient(value, [v for layer in layers for v in layer])


# oneDNN makes one operation of the two gradients that a convolution with a bias
# takes from one tensor; see Note [Waiting by data].
def test_what_may_be_merged_does_not_wait_for_each_other(recorder):
    layers = convolutions()

    @tf.function
    def step():
        gradients = gradients_of_convolutions(layers)
        graph = tf.compat.v1.get_default_graph()
        before = graph.get_operations()
        result = reduce_gradients(gradients, [None] * len(gradients))
        biases = [o for o in before if o.type == "BiasAddGrad"]
        kernels = [o for o in before if o.type == "Conv2DBackpropFilter"]
        assert len(biases) == len(kernels) == len(layers)
        assert any(
            bias.name in ancestors(k) for bias in biases for k in kernels
        )
        for bias in biases:
            for kernel in kernels:
                if bias.inputs[0].name == kernel.inputs[2].name:
                    assert bias.name not in ancestors(kernel)
                    assert kernel.name not in ancestors(bias)
        return result

    for got, expected in zip(
        step(), gradients_of_convolutions(layers), strict=True
    ):
        tf.debugging.assert_near(got, expected)


def test_nothing_waits_where_a_setting_says_so(recorder, monkeypatch):
    monkeypatch.setattr(runtime, "overlap", lambda: False)
    variables = variables_of_chain(6)

    @tf.function
    def step():
        reduce_gradients(gradients_of_chain(variables), variables)

    types = [
        o.type for o in step.get_concrete_function().graph.get_operations()
    ]
    assert "TfringAfterStart" not in types


def test_backpropagation_waits_under_xla_too(recorder):
    variables = variables_of_chain(6)

    @tf.function(jit_compile=True)
    def step():
        reduce_gradients(gradients_of_chain(variables), variables)

    types = [
        o.type for o in step.get_concrete_function().graph.get_operations()
    ]
    assert types.count("TfringAfterStart") >= 2


def test_gradient_of_what_has_waited(recorder):
    variables = variables_of_chain(6)

    @tf.function
    def gradients():
        first = gradients_of_chain(variables)
        reduce_gradients(first, variables)
        return first

    def second(gradients):
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(g**2) for g in gradients()])
        return tape.gradient(loss, variables)

    expected = second(lambda: gradients_of_chain(variables))
    for got, wanted in zip(second(gradients), expected, strict=True):
        tf.debugging.assert_near(got, wanted)


@tf.custom_gradient
def prints_its_gradient(x):
    def gradient(upstream):
        tf.print("gradient", output_stream="file:///dev/null")
        return upstream

    return x, gradient


def loop(x):
    return tf.while_loop(
        lambda i, _: i < 3, lambda i, x: (i + 1, tf.tanh(x)), [0, x]
    )[1]


@pytest.mark.parametrize("layer", [prints_its_gradient, loop])
@pytest.mark.parametrize("old_loops", [False, True])
def test_no_start_waits_for_what_waits_for_it(recorder, layer, old_loops):
    variables = variables_of_chain(6)

    def gradients():
        with tf.GradientTape() as tape:
            value = tf.ones([8])
            for variable in variables:
                value = layer(tf.tanh(value * variable))
        return tape.gradient(value, variables)

    @tf.function
    def step():
        return reduce_gradients(gradients(), variables)

    expected = gradients()
    if old_loops:
        tf.compat.v1.disable_control_flow_v2()
    try:
        result = step()
    finally:
        tf.compat.v1.enable_control_flow_v2()
    for got, wanted in zip(result, expected, strict=True):
        tf.debugging.assert_near(got, wanted)


def test_reduction_after_all_of_backpropagation(recorder):
    variables = variables_of_chain(6)

    @tf.function
    def step():
        gradients = gradients_of_chain(variables)
        with tf.control_dependencies(gradients):
            return reduce_gradients(gradients, variables)

    for got, expected in zip(
        step(), gradients_of_chain(variables), strict=True
    ):
        tf.debugging.assert_equal(got, expected)
