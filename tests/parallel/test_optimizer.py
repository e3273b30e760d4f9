"""DistributedOptimizer and DistributedGradientTape, step by step."""

from __future__ import annotations

import copy

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_same_on_all_ranks, compiled, with_loss_scale

import tfring
from tfring._core import runtime


@pytest.fixture
def mean_rank(size):
    return (size - 1) / 2


def applied(optimizer, gradients_of_steps, mode, shape=(2,)):
    """The value of a variable after each step, from zero."""
    variable = keras.Variable(np.zeros(shape, np.float32))
    optimizer.build([variable])

    @mode
    def step(gradient):
        optimizer.apply([gradient], [variable])

    values = []
    for gradient in gradients_of_steps:
        step(tf.constant(gradient, tf.float32))
        values.append(variable.numpy().copy())
    return values


def test_predivided_average_stays_in_the_range_of_float16(mode, size):
    # On two ranks already, the sum is more than float16 holds.
    for factor in (1.0, size):
        sgd = tfring.DistributedOptimizer(
            keras.optimizers.SGD(1.0),
            compression=tfring.Compression.fp16,
            gradient_predivide_factor=factor,
        )
        [value] = applied(sgd, [[61440.0, -61440.0]], mode)
        largest = np.inf if factor < size else 61440.0
        np.testing.assert_allclose(value, [-largest, largest], rtol=2**-9)


def test_clips_the_average(rank, size):
    # Each rank's own gradient is far above the norm; the average is not.
    sgd = tfring.DistributedOptimizer(keras.optimizers.SGD(1.0, clipnorm=10.0))
    own = 1000.0 if rank == 0 else -1000.0 / max(size - 1, 1)
    [value] = applied(sgd, [[own if size > 1 else 0.0, 3.0]], tf.function)
    np.testing.assert_allclose(value, [0.0, -3.0], atol=1e-3)


def test_accumulates_before_it_averages(mode, rank, mean_rank):
    sgd = tfring.DistributedOptimizer(
        keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
    )
    values = applied(sgd, [[rank, 2.0], [rank, 4.0]] * 2, mode)
    update = np.array([-mean_rank, -3.0])
    np.testing.assert_allclose(values, [0 * update, update, update, 2 * update])


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("clipnorm", [None, 1.0])
def test_accumulates_passes(average, clipnorm, rank, size, mean_rank):
    sgd = tfring.DistributedOptimizer(
        keras.optimizers.SGD(1.0, clipnorm=clipnorm),
        backward_passes_per_step=3,
        average_aggregated_gradients=average,
    )
    gradients = [[rank, 2.0], [rank, 4.0], [rank, 3.0]] * 2
    update = np.array([-mean_rank, -3.0]) * (1 if average else 3)
    if clipnorm:
        update /= np.linalg.norm(update)
    before = tfring.statistics().requests
    for optimizer in (sgd, copy.deepcopy(sgd)):
        values = applied(optimizer, gradients, tf.function)
        expected = [0 * update] * 2 + [update] * 3 + [2 * update]
        np.testing.assert_allclose(values, expected, rtol=1e-6)
    # Each optimizer has one request per update, and one to compare the weights.
    requests = tfring.statistics().requests - before
    assert requests == (6 if size > 1 else 0)


def test_every_optimizer_of_a_multi_optimizer_gets_averages(mean_rank, rank):
    multi = tfring.DistributedOptimizer(
        keras.optimizers.MultiOptimizer(
            keras.optimizers.OptimizerMap(
                keras.optimizers.SGD(1.0), {"b": keras.optimizers.SGD(10.0)}
            )
        )
    )
    variables = [keras.Variable([0.0], name=name) for name in "ab"]
    multi.apply([tf.constant([float(rank)])] * 2, variables)
    np.testing.assert_allclose(variables, [[-mean_rank], [-10 * mean_rank]])


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_built_optimizer_takes_gradients_alone(mean_rank, rank):
    sgd = tfring.DistributedOptimizer(keras.optimizers.SGD(1.0))
    variables = [keras.Variable([0.0]), keras.Variable([0.0])]
    sgd.build(variables)
    sgd.apply([None, tf.constant([float(rank)])])
    np.testing.assert_allclose(variables, [[0.0], [-mean_rank]])


def test_variables_can_be_called(rank):
    optimizer = tfring.DistributedOptimizer(keras.optimizers.Adam())
    optimizer.build([keras.Variable([1.0])])
    assert optimizer.variables() == optimizer.variables
    assert len(optimizer.variables) == 4


def test_plain_optimizers_are_left_alone(rank):
    tfring.DistributedOptimizer(keras.optimizers.SGD())
    plain = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(1.0), initial_scale=1.0
    )
    [value] = applied(plain, [[rank, 1.0]], tf.function)
    np.testing.assert_allclose(value, [-rank, -1.0])


def check_a_step(variables, mode, rank, mean_rank, **options):
    """The gradient of each is the rank and the variable's number."""
    sgd = tfring.DistributedOptimizer(keras.optimizers.SGD(1.0), **options)
    sgd.build(variables)

    @mode
    def step():
        gradients = [
            tf.fill(v.shape, tf.cast(rank + i, v.dtype))
            for i, v in enumerate(variables)
        ]
        sgd.apply(gradients, variables)

    step()
    for i, variable in enumerate(variables):
        np.testing.assert_array_equal(
            np.asarray(variable.numpy(), np.float64), -(mean_rank + i)
        )


@pytest.mark.parametrize("by_lists", [True, False])
def test_groups(by_lists, rank, mean_rank):
    dtypes = ["float32", "float16", "float32", "float64", "float32"]
    v = [keras.Variable(np.zeros(3), dtype=dtype) for dtype in dtypes]
    groups = [[v[4], v[0], v[3]], [v[1]]] if by_lists else 2
    check_a_step(v, tf.function, rank, mean_rank, groups=groups)


@pytest.mark.parametrize(
    ("inside", "passes"), [(True, "keras"), (False, "keras"), (True, "tfring")]
)
def test_skips_together_while_accumulating(inside, passes, mode, rank, size):
    optimizer, how = keras.optimizers.SGD(1.0), {}
    if passes == "keras":
        optimizer.gradient_accumulation_steps = 2
    else:
        how = {
            "backward_passes_per_step": 2,
            "average_aggregated_gradients": True,
        }
    optimizer = with_loss_scale(optimizer, inside=inside, **how)
    overflow = [np.inf if rank == size - 1 else 4.0, 4.0]
    values = applied(optimizer, [[8.0, 8.0], overflow, [4.0, 4.0]], mode)
    # The scale was 4, and is 2 after the step that all have skipped.
    np.testing.assert_allclose(values, [[0, 0], [0, 0], [-2, -2]])


def test_loss_scale_factor(rank, mean_rank):
    sgd = tfring.DistributedOptimizer(
        keras.optimizers.SGD(1.0, loss_scale_factor=8.0)
    )
    [value] = applied(sgd, [[8.0 * rank, 8.0]], tf.function)
    np.testing.assert_allclose(value, [-mean_rank, -1.0])


def test_buckets_of_many_sizes_and_dtypes(mode, rank, mean_rank, monkeypatch):
    monkeypatch.setattr(runtime, "fusion_threshold_bytes", lambda: 256)
    dtypes = ("float32", "float16", "bfloat16", "float64")
    variables = [
        keras.Variable(np.zeros([count]), dtype=dtypes[i % 4])
        for i, count in enumerate((0, 1, 7, 100, 3, 2, 65, 1, 1, 1, 30, 64))
    ]
    check_a_step(variables, mode, rank, mean_rank)


@pytest.mark.parametrize("sparse_as_dense", [True, False])
def test_tape_sums_and_predivides(sparse_as_dense, rank, size):
    table = tf.Variable(tf.zeros([2, 2]))

    @tf.function
    def gradient(**options):
        with tfring.DistributedGradientTape(
            tf.GradientTape(), sparse_as_dense=sparse_as_dense, **options
        ) as tape:
            loss = tf.reduce_sum(tf.gather(table, [1])) * (rank + 1.0)
        return tf.convert_to_tensor(tape.gradient(loss, table))

    total = size * (size + 1) / 2
    for options, expected in (
        ({"op": tfring.Sum}, total),
        ({"gradient_predivide_factor": 10.0}, total / size),
    ):
        np.testing.assert_allclose(
            gradient(**options), [[0, 0], [expected] * 2], rtol=1e-6
        )


def test_two_optimizers_in_one_step(rank, mean_rank):
    pairs = [
        (
            tfring.DistributedOptimizer(keras.optimizers.SGD(rate)),
            keras.Variable(np.zeros(2, np.float32)),
        )
        for rate in (1.0, 10.0)
    ]
    for optimizer, variable in pairs:
        optimizer.build([variable])

    @tf.function
    def step():
        for optimizer, variable in pairs:
            optimizer.apply([tf.fill([2], float(rank))], [variable])

    step()
    step()
    np.testing.assert_allclose(pairs[0][1].numpy(), -2 * mean_rank)
    np.testing.assert_allclose(pairs[1][1].numpy(), -20 * mean_rank)


def test_gradient_of_a_shape_known_on_one_rank_alone(rank, mean_rank):
    variables = [keras.Variable(np.zeros(2, np.float32)) for _ in range(3)]
    sgd = tfring.DistributedOptimizer(keras.optimizers.SGD(1.0))
    sgd.build(variables)
    shape = [2] if rank == 0 else None

    @tf.function(input_signature=[tf.TensorSpec(shape, tf.float32)] * 3)
    def step(*gradients):
        sgd.apply(gradients, variables)

    step(*[tf.fill([2], float(rank))] * 3)
    for variable in variables:
        np.testing.assert_allclose(variable.numpy(), -mean_rank)


def test_models_that_differ_are_named_on_every_rank(several_ranks, rank, size):
    # Only one rank differs: an error names the first two requests that differ.
    units = 3 if rank == size - 1 else 2
    head = keras.Variable(np.zeros(units, np.float32), name="head")
    sgd = tfring.DistributedOptimizer(keras.optimizers.SGD(1.0))
    with pytest.raises(tf.errors.FailedPreconditionError) as error:
        sgd.apply([tf.zeros([units])], [head])
    for part in ("head", "(2,)", "(3,)", f"ank {size - 1}"):
        assert part in str(error.value)


def test_one_rank_has_built_other_models_before(rank):
    # Keras then numbers rank 0's layers differently: "dense_1/kernel".
    for _ in range(2 if rank == 0 else 1):
        optimizer = tfring.DistributedOptimizer(keras.optimizers.Adam(0.1))
        model = compiled(optimizer, keras.Input((3,)), keras.layers.Dense(2))
    model.fit(
        np.ones((4, 3)),
        np.full((4, 2), rank),
        verbose=0,
        callbacks=[tfring.callbacks.BroadcastGlobalVariablesCallback(0)],
    )
    assert_same_on_all_ranks(model.weights)


def test_tape_averages_in_the_structure_of_its_sources(rank, mean_rank):
    weights = {"a": tf.Variable([1.0, 2.0]), "b": (tf.Variable(3.0),)}
    unused = tf.Variable(1.0)
    zero = tf.UnconnectedGradients.ZERO

    @tf.function
    def gradients():
        with tfring.DistributedGradientTape(
            tf.GradientTape(persistent=True)
        ) as tape:
            loss = rank * tf.reduce_sum(weights["a"]) + weights["b"][0]
        return (
            tape.gradient(loss, weights),
            tape.gradient(loss, weights["a"]),
            tape.gradient(loss, [unused], unconnected_gradients=zero),
            tape.gradient(loss, weights["b"][0], output_gradients=2.0 * rank),
        )

    nested, one, unconnected, weighted = gradients()
    np.testing.assert_allclose(nested["a"], [mean_rank, mean_rank])
    np.testing.assert_allclose(nested["b"][0], 1.0)
    np.testing.assert_allclose(one, [mean_rank, mean_rank])
    np.testing.assert_allclose(unconnected[0], 0.0)
    np.testing.assert_allclose(weighted, 2.0 * mean_rank)


def test_jacobians_are_the_ranks_own(rank):
    source = tf.Variable([1.0, 2.0])
    with tfring.DistributedGradientTape(tf.GradientTape()) as tape:
        target = source * source * float(rank)
    np.testing.assert_allclose(
        tape.jacobian(target, source), np.diag([2.0 * rank, 4.0 * rank])
    )
