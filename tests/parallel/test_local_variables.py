"""Local variables differ between ranks, beside variables that all share."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import (
    assert_each_equal,
    assert_same_on_all_ranks,
    compiled,
    jit_compile_is_thorough,
    with_loss_scale,
)

import tfring


def everyones(variable):
    return tfring.allgather(np.asarray(variable)[np.newaxis]).numpy()


@pytest.mark.parametrize(
    ("scaled", "jit_compile"), [(True, True), (False, False)]
)
def test_local_sources(scaled, jit_compile, rank, size):
    own, shared = tf.Variable([1.0, 2.0]), keras.Variable([3.0])
    table = tf.Variable(tf.zeros([3, 2]))

    @tf.function(jit_compile=jit_compile)
    def gradients():
        tape = tfring.DistributedGradientTape(
            tf.GradientTape(), scale_local_gradients=scaled
        )
        tape.register_local_source(own)
        tape.register_local_source(table)
        with tape:
            loss = tf.reduce_sum(own) + shared.value[0]
            loss = (loss + tf.reduce_sum(tf.gather(table, [1, 1]))) * (rank + 1)
        result = tape.gradient(loss, [own, shared.value, table])
        return [tf.convert_to_tensor(gradient) for gradient in result]

    of_own, of_shared, of_table = gradients()
    local = (rank + 1) / (size if scaled else 1)
    np.testing.assert_allclose(of_own, [local] * 2)
    np.testing.assert_allclose(of_shared, [(size + 1) / 2])
    np.testing.assert_allclose(of_table[:, 0], [0, 2 * local, 0])


@jit_compile_is_thorough
def test_local_layers_go_their_own_way(jit_compile, rank, size):
    keras.utils.set_random_seed(0)
    own = keras.layers.Dense(4, activation="tanh")
    optimizer = tfring.PartialDistributedOptimizer(
        keras.optimizers.SGD(0.1, momentum=0.9),
        local_layers=own,
        backward_passes_per_step=2,
    )
    layers = own, keras.layers.Dense(2), keras.layers.Dense(1)
    model = compiled(
        optimizer, keras.Input((3,)), *layers, jit_compile=jit_compile
    )
    rng = np.random.default_rng(rank)
    x, y = rng.normal(size=(16, 3)), rng.normal(size=(16, 1))
    model.fit(x, y, batch_size=4, verbose=0)
    local = everyones(own.kernel)
    for other in range(1, size):
        assert (local[other] != local[0]).all()
    for layer in model.layers[1:]:
        assert_same_on_all_ranks(layer.variables)


def test_a_broadcast_leaves_local_variables_and_their_states(rank, size):
    """A second `fit` begins with one, and so does a new start."""
    own, shared = keras.layers.Dense(2), keras.layers.Dense(1)
    optimizer = tfring.PartialDistributedOptimizer(
        keras.optimizers.Adam(0.1), local_layers=own
    )
    layers = keras.Input((3,)), own, shared
    model = compiled(optimizer, *layers, jit_compile=False)
    rng = np.random.default_rng(rank)
    x, y = rng.normal(size=(8, 3)), rng.normal(size=(8, 1))
    callback = tfring.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(x, y, callbacks=[callback], verbose=0)
    local = [
        *own.variables,
        *(v for v in optimizer.variables if tuple(v.shape) in ((3, 2), (2,))),
    ]
    assert len(local) == 6
    before = [v.numpy() for v in local]

    def check(batch=0, logs=None):
        assert_each_equal(local, before)

    checks = keras.callbacks.LambdaCallback(on_train_batch_begin=check)
    model.fit(x, y, callbacks=[callback, checks], verbose=0)
    before = [v.numpy() for v in local]
    tfring.elastic.TensorFlowKerasState(model).sync()
    check()
    for variable in local[:2]:
        everyones_own = everyones(variable)
        assert all((o != everyones_own[0]).any() for o in everyones_own[1:])


def test_accumulators_of_local_variables_stay_each_ranks_own(rank, size):
    """`fit` ends in the middle of an update; local layers differ in shape."""
    own = keras.layers.Dense(2 + rank, "tanh", kernel_initializer="ones")
    shared = keras.layers.Dense(1, kernel_initializer="ones")
    inputs = keras.Input((3,))
    mean = keras.ops.mean(own(inputs), axis=-1, keepdims=True)
    model = keras.Model(inputs, shared(mean))
    optimizer = tfring.PartialDistributedOptimizer(
        keras.optimizers.SGD(0.1), local_layers=own, backward_passes_per_step=2
    )
    model.compile(optimizer, "mse", jit_compile=False)

    def accumulated(variable):
        return optimizer._accumulated_gradients[
            optimizer._get_variable_index(variable)
        ]

    of_batches = []
    notes = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: of_batches.append(
            accumulated(own.kernel).numpy()
        )
    )
    rng = np.random.default_rng(rank)
    x, y = rng.normal(size=(12, 3)), rng.normal(size=(12, 1))
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0, callbacks=[notes])
    assert of_batches[-1].any()

    def check():
        kept = accumulated(own.kernel)
        np.testing.assert_array_equal(kept, of_batches[-1])
        assert_same_on_all_ranks([accumulated(shared.kernel)])

    check()
    with tfring.whole_states(model):
        check()
    tfring.elastic.TensorFlowKerasState(model).commit()
    check()
    tfring.broadcast_variables(optimizer._accumulated_gradients)
    check()


def test_partial_tape(rank, size):
    own, shared = keras.layers.Dense(1), keras.layers.Dense(1)
    with tfring.PartialDistributedGradientTape(
        tf.GradientTape(), local_layers=[own]
    ) as tape:
        both = own(tf.ones([1, 2])) + shared(tf.ones([1, 2]))
        loss = tf.reduce_sum(both) * (rank + 1)
    [of_own, of_shared] = tape.gradient(loss, [own.bias.value, shared.bias])
    np.testing.assert_allclose(of_own, [(rank + 1) / size])
    np.testing.assert_allclose(of_shared, [(size + 1) / 2])


@pytest.mark.parametrize("inside", [True, False])
def test_the_overflow_of_a_local_gradient_is_skipped_by_all(inside, rank, size):
    sgd = keras.optimizers.SGD(1.0)
    optimizer = with_loss_scale(sgd, inside=inside)
    own, shared = keras.Variable([0.0]), keras.Variable([0.0])
    (sgd if inside else optimizer).register_local_var(own)

    @tf.function
    def step(gradient):
        optimizer.apply([gradient, tf.constant([4.0])], [own, shared])

    step(tf.constant([np.inf if rank == size - 1 else 4.0]))
    assert own.numpy()[0] == shared.numpy()[0] == 0
    assert optimizer.dynamic_scale.numpy() == 2.0
    step(tf.constant([2.0]))
    np.testing.assert_allclose(own, [-1.0 / size])
    np.testing.assert_allclose(shared, [-2.0])


def by_tape(optimizer, variables, **how):
    """Steps that take the gradients from a distributed tape, and clip them."""
    own, shared = variables

    def step(factor):
        with tfring.DistributedGradientTape(tf.GradientTape(), **how) as tape:
            tape.register_local_source(own.value)
            loss = factor * (own.value[0] + shared.value[0])
        gradients = tape.gradient(loss, [own.value, shared.value])
        gradients = [tf.clip_by_value(g, -9, 9) for g in gradients]
        optimizer.apply(gradients, variables)

    return step


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("in_graph", [True, False])
def test_a_tape_and_an_optimizer_scale_once(in_graph, passes, rank, size):
    variables = [keras.Variable([0.0]), keras.Variable([0.0])]
    optimizer = tfring.DistributedOptimizer(
        keras.optimizers.SGD(1.0), backward_passes_per_step=passes
    )
    optimizer.register_local_var(variables[0])
    step = by_tape(optimizer, variables)
    if in_graph:
        step = tf.function(step)
    for _ in range(passes):
        step(tf.constant(rank + 1.0))
    np.testing.assert_allclose(variables[0], [-passes * (rank + 1) / size])
    np.testing.assert_allclose(variables[1], [-passes * (size + 1) / 2])
    # The optimizer scales the gradients of a plain tape.
    for _ in range(passes):
        optimizer.apply([tf.constant([1.0])] * 2, variables)
    np.testing.assert_allclose(
        variables[0], [-passes * (rank + 2) / size], rtol=1e-6
    )


@pytest.mark.parametrize(
    "how", [{"op": tfring.Sum}, {"compression": tfring.PowerSGD(rank=1)}]
)
@pytest.mark.parametrize("in_graph", [True, False])
def test_only_averages_are_reduced_twice(in_graph, how):
    variables = [keras.Variable([0.0]), keras.Variable([0.0])]
    optimizer = tfring.DistributedOptimizer(keras.optimizers.SGD(1.0), **how)
    step = by_tape(optimizer, variables)
    if in_graph:
        step = tf.function(step)
    with pytest.raises(ValueError, match="reduced these gradients already"):
        step(tf.constant(1.0))


@pytest.mark.parametrize(
    "sync",
    [
        None,
        tfring.LocalSGD(1, start=9),
        tfring.LocalSGD(1),
        tfring.LocalSGD(2, within="host"),
        tfring.DiLoCo(1),
        tfring.Gossip(),
    ],
    ids=["each step", "before rounds", "LocalSGD", "host", "DiLoCo", "Gossip"],
)
@pytest.mark.parametrize("scaled", [True, False])
def test_every_road_scales_local_gradients(sync, scaled, rank, size):
    optimizer = tfring.DistributedOptimizer(
        keras.optimizers.SGD(1.0), sync=sync, scale_local_gradients=scaled
    )
    own, shared = keras.Variable([0.0]), keras.Variable([0.0])
    optimizer.register_local_var(own)
    for _ in range(2):
        optimizer.apply([tf.constant([rank + 1.0])] * 2, [own, shared])
    factor = 1 / size if scaled else 1
    np.testing.assert_allclose(own, [-2 * (rank + 1) * factor], rtol=1e-6)
