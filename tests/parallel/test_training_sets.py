"""Gradients that are averaged within process sets."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring


@pytest.mark.parametrize("jit_compile", [False, True])
def test_each_set_averages_by_itself(jit_compile, halves, rank):
    own = halves[rank % 2]
    distributed = tfring.DistributedOptimizer(
        keras.optimizers.SGD(1.0), process_set=own
    )
    own_variable, variable = (keras.Variable([0.0]) for _ in range(2))
    distributed.register_local_var(own_variable)
    table = tf.Variable(tf.zeros([3, 1]))
    variables = [own_variable, variable, table]
    distributed.build(variables)

    @tf.function(jit_compile=jit_compile)
    def step():
        with tf.GradientTape() as tape:
            loss = own_variable.value[0] + variable.value[0]
            loss = (loss + tf.reduce_sum(tf.gather(table, [1]))) * float(rank)
        sources = [own_variable.value, variable.value, table]
        distributed.apply(tape.gradient(loss, sources), variables)

    step()
    mean = np.mean(own.ranks)
    np.testing.assert_allclose(own_variable, [-rank / own.size()])
    np.testing.assert_allclose(variable, [-mean])
    np.testing.assert_allclose(table, [[0], [-mean], [0]])


def test_a_rank_outside_keeps_its_gradients(halves, rank):
    odd = halves[1]
    source = tf.Variable(1.0)

    @tf.function
    def gradients():
        with tfring.DistributedGradientTape(
            tf.GradientTape(), process_set=odd
        ) as tape:
            loss = source * float(rank)
        of_odd = tape.gradient(loss, source)
        # The name of this one does not depend on the ranks of the first one.
        with tfring.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = source * float(rank)
        return of_odd, tape.gradient(loss, source)

    of_odd, of_all = gradients()
    expected = np.mean(odd.ranks) if odd.included() else rank
    np.testing.assert_allclose(of_odd, expected)
    np.testing.assert_allclose(of_all, (tfring.size() - 1) / 2)


def test_batch_normalization_within_a_set(halves, rank):
    own = halves[rank % 2]
    layer = tfring.SyncBatchNormalization(momentum=0.0, process_set=own)
    batches = [np.full((2, 1), float(r), np.float32) for r in own.ranks]
    layer(batches[own.rank()], training=True)
    np.testing.assert_allclose(layer.moving_mean, [np.mean(own.ranks)])
    np.testing.assert_allclose(layer.moving_variance, [np.var(own.ranks)])
