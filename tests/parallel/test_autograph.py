"""AutoGraph leaves tfring alone: converting it took seconds at each trace."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf
from tensorflow.python.autograph.impl import api

import tfring


@pytest.fixture
def converted(monkeypatch):
    """The functions of tfring's that AutoGraph has converted so far."""
    names = []
    convert = api._convert_actual

    def recording_convert(entity, context):
        if entity.__module__.split(".")[0] == "tfring":
            names.append(f"{entity.__module__}.{entity.__qualname__}")
        return convert(entity, context)

    monkeypatch.setattr(api, "_convert_actual", recording_convert)
    return names


def step_of_optimizer():
    weight = keras.Variable([1.0, 2.0])
    optimizer = tfring.DistributedOptimizer(keras.optimizers.SGD(0.1))
    optimizer.build([weight])
    sharding = tfring.DistributedOptimizer(
        keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)),
        shard_states=True,
    )
    sharding.build([weight])

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight.value * weight.value)
        gradients = tape.gradient(loss, [weight.value])
        optimizer.apply(gradients, [weight])
        optimizer.apply_gradients(zip(gradients, [weight], strict=True))
        sharding.apply(gradients, [weight])

    return step


def collectives():
    x = tf.ones([tfring.size(), 2])

    def step():
        tfring.allreduce(x, name="allreduce")
        tfring.grouped_allreduce([x, x], name="grouped_allreduce")
        tfring.allgather(x, name="allgather")
        tfring.grouped_allgather([x, x], name="grouped_allgather")
        tfring.broadcast(x, 0, name="broadcast")
        tfring.alltoall(x, name="alltoall")
        tfring.reducescatter(x, name="reducescatter")
        tfring.grouped_reducescatter([x, x], name="grouped_reducescatter")
        tfring.barrier()
        tfring.size_op()
        tfring.rank_op()
        tfring.local_size_op()
        tfring.local_rank_op()
        tfring.process_set_included_op()

    return step


def step_of_tape():
    weight = tf.Variable([1.0, 2.0])

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * weight)
        tape = tfring.DistributedGradientTape(tape)
        weight.assign_sub(tape.gradient(loss, [weight])[0])
        tfring.broadcast_variables([weight], 0)

    return step


def step_that_offloads():
    layer = keras.layers.Dense(256, activation="relu")
    layer.build([None, 256])
    offload = tfring.Offload(min_bytes=1)

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(layer(tf.ones([64, 256]))))
        gradients = tape.gradient(loss, layer.trainable_variables)
        tfring.offload_activations(gradients, offload)
        return gradients

    return step


@pytest.mark.parametrize(
    "make_step",
    [collectives, step_of_tape, step_of_optimizer, step_that_offloads],
)
def test_nothing_is_converted(make_step, converted):
    tf.function(make_step())()
    assert converted == []
