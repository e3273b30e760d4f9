"""The warning of a custom loop with different weights on the ranks."""

from __future__ import annotations

import warnings
from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import compiled, warnings_of

import tfring
from tfring._state import weights

warned = partial(warnings_of, tfring.NotBroadcastWarning)


def steps(how):
    """A step of training, and its variables."""
    weight = keras.Variable(np.ones([2], np.float32), name="weight")
    bias = tf.Variable([0.0])
    optimizer = keras.optimizers.SGD(0.1)
    if "optimizer" in how:
        tfring.DistributedOptimizer(optimizer)
    optimizer.build([weight, bias])

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight.value) * bias[0]
        if "tape" in how:
            tape = tfring.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, [weight.value, bias])
        optimizer.apply(gradients, [weight, bias])
        return loss

    if "traced" in how:
        step = tf.function(step, jit_compile="compiled" in how)
    return step, (weight, bias)


HOW = [
    "optimizer, traced",
    "tape, traced",
    "tape",
    "optimizer, traced, compiled",
]


@pytest.mark.parametrize(
    "how",
    [pytest.param(h, marks=pytest.mark.xla) if "comp" in h else h for h in HOW],
)
def test_weights_that_differ_are_noticed_once(how, rank, size):
    step, (_, bias) = steps(how)
    if rank == size - 1:
        bias.assign([0.5])
    texts = warned(step)
    assert len(texts) == (size > 1 and rank == 0)
    assert all("tfring.broadcast_variables(" in text for text in texts)
    assert all("float32 (1,): it is the same only" in text for text in texts)
    assert warned(step) == []


@pytest.mark.parametrize("how", HOW[:3])
def test_weights_that_are_the_same_pass(how, rank):
    step, variables = steps(how)
    variables[1].assign([float(rank)])
    tfring.broadcast_variables(variables)
    assert warned(step) == []


def test_as_an_error_it_is_one_on_every_rank(rank, several_ranks):
    step, (weight, _) = steps("tape")
    weight.assign([rank, rank])
    with warnings.catch_warnings():
        warnings.simplefilter("error", tfring.NotBroadcastWarning)
        with pytest.raises(tfring.NotBroadcastWarning, match="weight"):
            step()
    np.testing.assert_array_equal(weight, [rank, rank])


def test_local_variables_and_sets_of_one_rank_are_left_out(
    rank, several_ranks, sets_of_one
):
    weight = tf.Variable([float(rank)])

    def alone():
        with tf.GradientTape() as tape:
            loss = weight * weight
        tfring.DistributedGradientTape(
            tape, process_set=sets_of_one[rank]
        ).gradient(loss, weight)

    def local():
        with tf.GradientTape() as tape:
            loss = weight * weight
        tape = tfring.DistributedGradientTape(tape)
        tape.register_local_source(weight)
        tape.gradient(loss, weight)

    assert warned(alone) == warned(local) == []


def test_variables_that_a_function_makes(rank, size):
    made = []

    @tf.function
    def step():
        if not made:
            made.append(tf.Variable([1.0]))
        with tf.GradientTape() as tape:
            loss = made[0] * made[0]
        tape = tfring.DistributedGradientTape(tape)
        return tape.gradient(loss, made[0])

    assert warned(step) == []
    assert step().numpy() == 2


@pytest.mark.parametrize("how", HOW[:3])
def test_who_joins_a_job_waits_for_nobody_that_need_not_trace(how, monkeypatch):
    def gathered(*args, **kwargs):
        raise AssertionError("a collective of those alone that trace")

    monkeypatch.setattr(weights.runtime, "may_grow", lambda: True)
    monkeypatch.setattr(weights, "gather_json", gathered)
    step, _ = steps(how)
    step()


def test_optimizers_may_have_another_name_on_each_rank(rank):
    """Keras calls the hook for accumulated gradients in the name's scope."""
    optimizer = keras.optimizers.SGD(
        0.1, name=f"of_rank_{rank}", gradient_accumulation_steps=2
    )
    model = compiled(
        tfring.DistributedOptimizer(optimizer),
        keras.Input((3,)),
        keras.layers.Dense(1, kernel_initializer="ones"),
    )
    for _ in range(2):
        model.train_on_batch(np.ones((2, 3)), np.ones((2, 1)))
    assert optimizer.iterations == 1
