"""Gradients are clipped by one norm on all ranks, as in one process."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_each_close, assert_same_on_all_ranks, without_xla

import tfring

ROWS, WIDTH, BATCH, STEPS = 11, 3, 4, 3
NORM = 0.05  # below that of every step


def model_with(table):
    keras.utils.set_random_seed(0)
    layers = keras.Input((2,), dtype="int32"), table, keras.layers.Flatten()
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    values = np.random.default_rng(0).normal(size=(ROWS, WIDTH))
    if isinstance(table, tfring.layers.ShardedEmbedding):
        table.set_table(values)
    else:
        table.set_weights([values])
    return model, model.trainable_variables


def batches_of(rank):
    rng = np.random.default_rng([1, rank])
    for _ in range(STEPS):
        ids = rng.integers(0, ROWS, (BATCH, 2))
        yield ids, rng.normal(size=(BATCH, 1)).astype("float32")


def trained_alone(size):
    """The variables of one process, and the norms of its steps."""
    model, variables = model_with(keras.layers.Embedding(ROWS, WIDTH))
    optimizer, norms = keras.optimizers.Adam(0.1), []
    for parts in zip(*map(batches_of, range(size)), strict=True):
        ids, y = (np.concatenate(each) for each in zip(*parts, strict=True))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(ids) - y) ** 2)
        gradients = map(tf.convert_to_tensor, tape.gradient(loss, variables))
        gradients, norm = tf.clip_by_global_norm(list(gradients), NORM)
        optimizer.apply(gradients, variables)
        norms.append(norm)
    return [np.asarray(each) for each in variables], norms


@pytest.mark.parametrize("kind", ["table of all ranks", "table of each rank"])
@without_xla
def test_trains_as_one_process(kind, mode, rank, size):
    shards = kind == "table of all ranks"
    layer = tfring.layers.ShardedEmbedding if shards else keras.layers.Embedding
    model, variables = model_with(layer(ROWS, WIDTH))
    optimizer = keras.optimizers.Adam(0.1)
    optimizer.build(variables)
    tfring.broadcast_variables([*model.variables, *optimizer.variables])

    @mode
    def step(ids, y):
        with tfring.DistributedGradientTape(
            tf.GradientTape(), sparse_as_dense=not shards
        ) as tape:
            loss = tf.reduce_mean((model(ids) - y) ** 2)
        gradients, norm = tfring.clip_by_global_norm(
            tape.gradient(loss, variables), NORM, variables=variables
        )
        optimizer.apply(gradients, variables)
        return norm

    norms = [step(*map(tf.constant, batch)) for batch in batches_of(rank)]
    expected, expected_norms = trained_alone(size)
    table, *dense = variables
    table = model.layers[0].table() if shards else table
    assert_each_close([table, *dense], expected, rtol=0, atol=1e-5)
    assert_each_close(norms, expected_norms, rtol=1e-5)
    assert_same_on_all_ranks([*dense, *norms])


@pytest.mark.parametrize("size_of_part", ["all", "one"])
def test_local_variables(size_of_part, mode, sets_of_one, rank, size):
    """Each rank has own, and a process set has those of its ranks."""
    alone = size_of_part == "one"
    process_set = sets_of_one[rank] if alone else tfring.global_process_set
    own = tf.Variable([1.0] * (rank + 1))
    shared = keras.Variable([2.0, 3.0])

    @mode
    def clipped():
        return tfring.clip_by_global_norm(
            [own * 4, shared.value * 5],
            0.5,
            variables=[own, shared],
            local_variables=[own],
            process_set=process_set,
        )

    of_own, of_shared = 4.0, np.array([10, 15])
    count = rank + 1 if alone else size * (size + 1) / 2  # of own elements
    wanted = np.sqrt(count * of_own**2 + np.sum(of_shared**2))
    gradients, norm = clipped()
    np.testing.assert_allclose(norm, wanted, rtol=1e-6)
    np.testing.assert_allclose(
        gradients[0], [of_own * 0.5 / wanted] * (rank + 1), rtol=1e-6
    )
    np.testing.assert_allclose(
        gradients[1], of_shared * 0.5 / wanted, rtol=1e-6
    )
    if not alone:
        assert_same_on_all_ranks([norm, gradients[1]])


def test_without_own_gradients_it_is_tensorflows(mode, rank, size):
    variables = [tf.Variable([3.0, 2.0]), tf.Variable(4.0)]

    @mode
    def clipped(clip, **how):
        with tfring.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = variables[1] * tf.reduce_sum(variables[0] ** 2) * rank
        gradients = [*tape.gradient(loss, variables), None]
        return clip(gradients, 1.0, **how)

    expected, norm = clipped(tf.clip_by_global_norm)
    found, own_norm = clipped(
        tfring.clip_by_global_norm, variables=[*variables, None]
    )
    assert found.pop() is expected.pop() is None
    assert_each_close([*found, own_norm], [*expected, norm], rtol=1e-6)
    assert_same_on_all_ranks(found)


def test_it_needs_each_variable():
    with pytest.raises(ValueError, match="2 gradients and 1 variables"):
        tfring.clip_by_global_norm(
            [tf.zeros(1), None], 1.0, variables=[tf.Variable([0.0])]
        )
