"""Offload on one rank: the moved tensors, their memory, and errors.

tests/parallel/test_offload.py compares bits.
"""

import threading
from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf
from waiting import wait_until

import tfring
from tfring._core import native
from tfring._memory.schedule import Schedule


def weights(count, width=64):
    return [
        tf.Variable(tf.random.stateless_normal([width, width], [0, i]) / 8)
        for i in range(count)
    ]


def gradients_of(variables, x, *, bound=None):
    with tf.GradientTape() as tape:
        for variable in variables:
            x = tf.nn.relu(x @ variable)
        if bound is not None:
            tf.debugging.assert_less(tf.reduce_max(x), bound)
        loss = tf.reduce_mean(x**2)
    return tape.gradient(loss, variables)


def traced(offload, gradients=None, **how):
    """A step; `gradients` gives those of a batch, by default of four layers."""
    variables = weights(4)

    @tf.function(**how)
    def step(*batch):
        found = (gradients or partial(gradients_of, variables))(*batch)
        tfring.offload_activations(found, offload)
        return found

    return step


BATCH = tf.random.stateless_normal([32, 64], [1, 2])
BYTES = 32 * 64 * 4


def test_what_is_moved_and_given_back():
    offload = tfring.Offload(min_bytes=BYTES)
    assert offload.statistics() is None
    step = traced(offload)
    for _ in range(100):
        step(BATCH)
        statistics = offload.statistics()
        # The outputs of the layers and the sum of squares, but no weights.
        assert statistics.moved == 4
        assert statistics.moved_bytes == 4 * BYTES
        assert statistics.tier_bytes == 0
        assert statistics.tier_peak_bytes >= BYTES


def test_small_ones_stay_if_sizes_are_known_late():
    offload = tfring.Offload(min_bytes=BYTES + 1)
    step = traced(offload, input_signature=[tf.TensorSpec([None, 64])])
    step(BATCH)
    assert offload.statistics().moved == 0
    step(tf.repeat(BATCH, 2, axis=0))
    assert offload.statistics().moved == 4


def test_all_are_away_at_once():
    # All stashes are before all fetches, for any `ahead`.
    offload = tfring.Offload(min_bytes=0, ahead=1)
    variables = weights(6, width=333)  # larger than in other tests
    traced(offload, partial(gradients_of, variables))(tf.ones([999, 333]))
    assert offload.statistics().tier_peak_bytes >= 6 * 999 * 333 * 4


@pytest.mark.parametrize("policy", ["all", "conv"])
def test_policies(policy):
    offload = tfring.Offload(policy, min_bytes=0)

    def gradients(images, kernel):
        with tf.GradientTape() as tape:
            tape.watch(kernel)
            # The convolution's input counts as `hidden`, in spite of the
            # reshaping.
            hidden = tf.tanh(images)
            hidden = tf.nn.conv2d(
                tf.reshape(hidden, [2, 8, 8, 3]), kernel, 1, "SAME"
            )
            loss = tf.reduce_mean(tf.sigmoid(hidden))
        return [tape.gradient(loss, kernel)]

    traced(offload, gradients)(tf.ones([2, 192]), tf.ones([3, 3, 3, 4]))
    # The input of the convolution, and for "all" the output of the sigmoid.
    assert offload.statistics().moved == (2 if policy == "all" else 1)


def test_a_function_chooses():
    seen = []

    def policy(found):
        seen.append(found)
        return found.shape == (32, 64) and "MatMul" in found.forward_uses

    offload = tfring.Offload(policy, min_bytes=0)
    traced(offload)(BATCH)
    assert offload.statistics().moved == 3  # all layers' but the last
    assert {found.op_type for found in seen} >= {"Relu"}
    assert all(found.dtype == tf.float32 for found in seen)
    assert "ReluGrad" in seen[0].backward_uses


def under_budget(feature_maps):
    # They are small: TensorFlow's allocators leave them out of their counts.
    return tfring.Offload(
        "auto", budget_bytes=feature_maps * BYTES + 1, min_bytes=0
    )


def kept_and_moved(offload):
    statistics = offload.statistics()
    assert statistics.kept_bytes <= offload.budget_bytes
    return statistics.kept_bytes // BYTES, statistics.moved


@pytest.mark.parametrize("room", range(5))
def test_a_budget_is_of_feature_maps(room):
    offload = under_budget(room)
    step = traced(offload)
    for kept in (0, room, room):
        step(BATCH)
        assert kept_and_moved(offload) == (kept, 4 - kept)


def test_what_is_between_steps_does_not_count():
    offloads = [under_budget(4) for _ in range(4)]
    one, other, first, second = (traced(offload) for offload in offloads)
    both = tf.function(
        lambda x: (first.python_function(x), second.python_function(x))
    )

    for _ in range(4):
        for step in (one, other, both):
            step(BATCH)
            tf.reduce_sum(tf.ones([1 << 22]))
    assert [kept_and_moved(offload) for offload in offloads] == [(4, 0)] * 4


def test_validation_does_not_count():
    tfring.init()
    offload = tfring.Offload("auto", budget_bytes=1 << 20, min_bytes=0)
    model = keras.Sequential(
        [keras.Input((64,))]
        + [keras.layers.Dense(64, "tanh") for _ in range(4)]
        + [keras.layers.Dense(1)]
    )
    optimizer = tfring.DistributedOptimizer("sgd", offload=offload)
    model.compile(optimizer, "mse", jit_compile=False)
    model.fit(
        *(np.zeros((32, 64)), np.zeros((32, 1))),
        batch_size=8,
        epochs=2,
        verbose=0,
        validation_data=(np.zeros((8192, 64)), np.zeros((8192, 1))),
        validation_batch_size=8192,
    )
    kept, moved = kept_and_moved(offload)
    assert kept >= 1  # Four of eight rows are as large as one of 32.
    assert moved == 0


def test_the_allocators_count_is_shown_and_left_alone():
    native.capi().tfring_offload_count_allocations()
    offload = under_budget(4)
    step = traced(offload)
    tf.reduce_sum(tf.ones([1 << 22]))
    before = tf.config.experimental.get_memory_info("CPU:0")["peak"]
    for _ in range(3):
        step(BATCH)
    peak = tf.config.experimental.get_memory_info("CPU:0")["peak"]
    assert before <= offload.statistics().peak_bytes <= peak


def test_the_graph_has_no_cycle_and_no_control_edge_to_others():
    step = traced(tfring.Offload(min_bytes=0))
    schedule = Schedule(step.get_concrete_function(BATCH).graph, [])
    for operation in schedule.operations:
        of_inputs = [tensor.op for tensor in operation.inputs]
        for before in of_inputs + operation.control_inputs:
            position = schedule.position_of(before)
            assert position < schedule.position_of(operation)
        ours = operation.type.startswith("Tfring")
        for control in operation.control_inputs:
            assert control.type.startswith("Tfring") == ours


def test_a_view_is_not_moved_twice():
    offload = tfring.Offload(min_bytes=0)
    w = tf.Variable(tf.eye(64))

    def gradients(x):
        with tf.GradientTape() as tape:
            hidden = tf.tanh(x @ w)
            flat = tf.reshape(hidden, [-1])
            loss = tf.reduce_sum(flat**2) + tf.reduce_sum(hidden @ w)
        return [tape.gradient(loss, w)]

    [got], [expected] = traced(offload, gradients)(BATCH), gradients(BATCH)
    tf.debugging.assert_near(got, expected, 1e-5)
    assert offload.statistics().moved == 1


@pytest.fixture
def as_traced():
    """Graphs run without TensorFlow's optimizations."""
    tf.config.optimizer.set_experimental_options(
        {"disable_meta_optimizer": True}
    )
    yield
    tf.config.optimizer.set_experimental_options(
        {"disable_meta_optimizer": False}
    )


def test_a_sum_is_not_rounded_otherwise_once_a_copy_is_made(as_traced):
    # A sum of three begins with the first that nobody else holds.
    weight = tf.Variable(tf.ones([64, 64]))
    offload = tfring.Offload(min_bytes=1024)

    def traced_sum(offload):
        @tf.function
        def step(x, big, minus_big):
            with tf.GradientTape() as tape:
                moved = tf.tanh(weight * x)
                late = moved
                for _ in range(50):  # so that the copy has been made
                    late = tf.nn.relu(late @ x)
                with tf.control_dependencies([late]):
                    total = tf.raw_ops.AddN(inputs=[big, minus_big, moved])
                loss = tf.reduce_sum(total**2)
            gradients = tape.gradient(loss, [weight])
            if offload is not None:
                tfring.offload_activations(gradients, offload)
            return total, *gradients

        return step

    plain, moving = traced_sum(None), traced_sum(offload)
    big = tf.fill([64, 64], 1e8)
    for number in range(1, 20):
        batch = tf.fill([64, 64], 0.1 * number), big, -big
        for one, other in zip(plain(*batch), moving(*batch), strict=True):
            np.testing.assert_array_equal(one, other)
    assert offload.statistics().moved > 0


def test_loops_and_calls_are_left_alone_and_said(capfd):
    offload = tfring.Offload(min_bytes=0)
    w = tf.Variable(tf.eye(64))
    inner = tf.function(lambda x: tf.tanh(tf.tanh(x @ w)))

    def gradients(x):
        with tf.GradientTape() as tape:
            x = tf.tanh(x @ w)
            x = tf.while_loop(
                lambda i, _: i < 3, lambda i, x: (i + 1, tf.tanh(x @ w)), [0, x]
            )[1]
            loss = tf.reduce_mean(inner(tf.tanh(x)))
        return [tape.gradient(loss, w)]

    step = traced(offload, gradients)
    for _ in range(4):
        [got] = step(BATCH)
    tf.debugging.assert_near(got, gradients(BATCH)[0], 1e-5)
    assert offload.statistics().moved > 0
    text = capfd.readouterr().err
    assert "stacks of a loop's iterations (tf.while_loop) are left" in text
    assert "calls of a tf.function inside of the step are left alone" in text
    assert text.count("offload: a step moves") == 1


def test_two_losses_in_one_step():
    offload = tfring.Offload(min_bytes=0)
    first, second = weights(3), weights(3)

    @tf.function
    def step(x):
        one = gradients_of(first, x)
        tfring.offload_activations(one, offload)
        for variable, gradient in zip(first, one, strict=True):
            variable.assign_sub(gradient)
        other = gradients_of(second, x)
        tfring.offload_activations(other, offload)
        return other

    expected = gradients_of(second, BATCH)
    for got, wanted in zip(step(BATCH), expected, strict=True):
        tf.debugging.assert_near(got, wanted, 1e-5)


def is_empty(offload):
    """A thread may release its last tensor after the end of a failed step."""
    return offload.statistics().tier_bytes == 0


def test_a_failed_step_leaves_nothing_behind():
    offload = tfring.Offload(min_bytes=0)
    variables = weights(4)
    step = traced(
        offload, lambda x, bound: gradients_of(variables, x, bound=bound)
    )
    step(BATCH, 1e9)
    for _ in range(10):
        with pytest.raises(tf.errors.InvalidArgumentError):
            step(BATCH, -1.0)
        wait_until(lambda: is_empty(offload))
    step(BATCH, 1e9)


def test_a_cancelled_step_leaves_nothing_behind():
    from tensorflow.python.eager import cancellation

    offload = tfring.Offload(min_bytes=0)
    variables = weights(4)
    manager = cancellation.CancellationManager()
    queue = tf.queue.FIFOQueue(1, tf.float32, [()])

    def gradients(x):
        with tf.GradientTape() as tape:
            for variable in variables:
                x = tf.nn.relu(x @ variable)
            loss = tf.reduce_mean(x * queue.dequeue())  # which never comes
        return tape.gradient(loss, variables)

    cancelled = manager.get_cancelable_function(
        traced(offload, gradients).get_concrete_function(BATCH)
    )

    def has_only_the_queue_to_wait_for():
        statistics = offload.statistics()
        return statistics and statistics.tier_peak_bytes >= 3 * BYTES

    def cancel():
        try:
            wait_until(has_only_the_queue_to_wait_for)
        finally:
            manager.start_cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(tf.errors.CancelledError):
        cancelled(BATCH)
    thread.join()
    wait_until(lambda: is_empty(offload))
    assert offload.statistics().tier_peak_bytes >= 3 * BYTES


def test_refuses_steps():
    with pytest.raises(RuntimeError, match=r"runs eagerly.*run_eagerly=False"):
        tfring.offload_activations([tf.ones([])], tfring.Offload())
    with pytest.raises(NotImplementedError, match="jit_compile=False"):
        traced(tfring.Offload(), jit_compile=True)(BATCH)
    with pytest.raises(ValueError, match=r"not computed by a tf.GradientTape"):
        tf.function(tfring.offload_activations)([BATCH], tfring.Offload())
    tfring.init()
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    optimizer = tfring.DistributedOptimizer("sgd", offload=tfring.Offload())
    model.compile(optimizer, "mse", run_eagerly=True)
    with pytest.raises(RuntimeError, match=r"^DistributedOptimizer: offload="):
        model.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0)


@pytest.mark.parametrize(
    ("error", "match", "options"),
    [
        (ValueError, '"all", "conv", "auto"', {"policy": "some"}),
        (ValueError, "go together", {"policy": "auto"}),
        (ValueError, "go together", {"budget_bytes": 1}),
        (ValueError, "at least 1", {"policy": "auto", "budget_bytes": 0}),
        (ValueError, "at least 0", {"min_bytes": -1}),
        (ValueError, "at least 1", {"ahead": 0}),
        (TypeError, "whole number", {"ahead": 1.5}),
    ],
)
def test_refuses_options(error, match, options):
    with pytest.raises(error, match=match):
        tfring.Offload(**options)


def test_refuses_what_is_no_offload():
    tfring.init()
    for call, given, offload in (
        (tfring.DistributedOptimizer, "sgd", "all"),
        (tfring.DistributedGradientTape, tf.GradientTape(), True),
        (tfring.offload_activations, [], None),
    ):
        with pytest.raises(TypeError, match=f"^{call.__name__}: offload must"):
            call(given, offload=offload)


def test_there_are_no_statistics_of_what_is_unknown():
    assert native.capi().tfring_offload_statistics(1 << 40, None) == 1
