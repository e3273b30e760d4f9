"""PowerSGD: what it leaves out comes later, and all ranks apply the same."""

from __future__ import annotations

import copy
import os

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import (
    MODES,
    assert_each_close,
    assert_same_on_all_ranks,
    bits_of,
    compiled,
    jit_compile_is_thorough,
    thorough,
    xla_is_thorough,
)

import tfring
from tfring._core import runtime

# A matrix, a kernel of a convolution, and two that are reduced whole.
SHAPES = [(40, 24), (3, 3, 8, 16), (24,), (4, 4)]


def variables_of(shapes=SHAPES, dtype="float32"):
    return [
        keras.Variable(np.zeros(shape), dtype=dtype, name=f"v{i}")
        for i, shape in enumerate(shapes)
    ]


def gradients_of(rank, step=0, columns=None, dtype=np.float32):
    """A rank's gradients: as matrices of any rank, or of a low one."""
    generator = np.random.default_rng([rank, step])
    gradients = []
    for shape in SHAPES:
        value = generator.normal(size=shape)
        if columns is not None and len(shape) > 1:
            right = generator.normal(size=(columns, shape[-1]))
            value = generator.normal(size=(*shape[:-1], columns)) @ right
        gradients.append(tf.constant(value.astype(dtype)))
    return gradients


def means_of(size, *arguments, **more):
    of_ranks = [gradients_of(rank, *arguments, **more) for rank in range(size)]
    return [np.mean(each, axis=0) for each in zip(*of_ranks, strict=True)]


def step_of(mode, variables, compression, **options):
    """Returns a function that reduces gradients by tapes."""

    @mode
    def step(gradients):
        with tfring.DistributedGradientTape(
            tf.GradientTape(), compression=compression, **options
        ) as tape:
            loss = tf.add_n(
                [
                    tf.cast(tf.reduce_sum(variable * gradient), tf.float64)
                    for variable, gradient in zip(
                        variables, gradients, strict=True
                    )
                ]
            )
        return tape.gradient(loss, variables)

    return step


def assert_close(results, expected, tolerance=1e-5):
    assert_each_close(results, expected, rtol=0, atol=tolerance * 10)


@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        ("float32", {}),
        ("float16", {"op": tfring.Sum, "groups": 2}),
        thorough("float64", {"gradient_predivide_factor": 2.0}),
    ],
)
def test_gradients_of_low_rank_are_reproduced(dtype, options, mode, rank, size):
    """The mean of one column of each rank has no more columns than ranks."""
    compression = tfring.PowerSGD(size + 2, start=0)
    step = step_of(mode, variables_of(dtype=dtype), compression, **options)
    for number in range(2):
        given = {"step": number, "columns": 1, "dtype": dtype}
        results = step(gradients_of(rank, **given))
        expected = means_of(size, **given)
        tolerance = 1e-5
        if "op" in options:  # in float16
            expected = [size * each for each in expected]
            tolerance = 5e-4 * size
        assert [each.dtype for each in results] == [dtype] * len(SHAPES)
        assert_close(results, expected, tolerance)
        assert_same_on_all_ranks(results)


@pytest.mark.parametrize("whole", ["full rank", "first steps"])
def test_gradients_that_are_reduced_whole(whole, mode, rank, size):
    compression = (
        tfring.PowerSGD(24, start=0)
        if whole == "full rank"
        else tfring.PowerSGD(2, start=2)
    )
    step = step_of(mode, variables_of(), compression)
    for number in range(3):
        results = step(gradients_of(rank, number))
        expected = means_of(size, number)
        if size == 1 or whole == "full rank" or number < 2:
            assert_close(results, expected)
        else:
            assert np.abs(results[0] - expected[0]).max() > 0.1
            assert_close(results[2:], expected[2:])


@xla_is_thorough
def test_it_leaves_nothing_out_for_ever(mode, rank, size):
    step = step_of(mode, variables_of(), tfring.PowerSGD(2, start=0))
    sums, expected = [0.0] * len(SHAPES), [0.0] * len(SHAPES)
    for number in range(45):
        # Some gradients are zero: a factor that became zero would remain so.
        given = gradients_of(rank, number)
        if number == 0 or number > 5:
            given = [tf.zeros_like(each) for each in given]
        else:
            expected = [
                a + b
                for a, b in zip(expected, means_of(size, number), strict=True)
            ]
        results = step(given)
        sums = [a + b.numpy() for a, b in zip(sums, results, strict=True)]
    assert_close(sums, expected, 1e-3)


@xla_is_thorough
def test_a_skipped_step_leaves_no_trace(mode, rank, size):
    """Nor does a change of the loss scale."""
    optimizer = tfring.DistributedOptimizer(
        keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(1.0), initial_scale=4.0, dynamic_growth_steps=2
        ),
        compression=tfring.PowerSGD(2, start=1),
    )
    variables = variables_of()
    optimizer.build(variables)
    # Keras loads no state into an optimizer with more variables.
    count = len(optimizer.variables)

    @mode
    def step(gradients):
        optimizer.apply(
            [optimizer.scale_loss(each) for each in gradients], variables
        )

    expected = [np.zeros(shape) for shape in SHAPES]
    for number in range(45):
        given = gradients_of(rank, number)
        if number == 3 and rank == size - 1:
            given[1] *= np.inf
        elif number > 5:
            given = [tf.zeros_like(each) for each in given]
        elif number != 3:
            expected = [
                a - b
                for a, b in zip(expected, means_of(size, number), strict=True)
            ]
        step(given)
    assert optimizer.iterations == 44
    assert len(optimizer.variables) == count
    assert_close(variables, expected, 1e-3)
    assert_same_on_all_ranks(variables)


@xla_is_thorough
def test_a_new_rank_takes_part_in_no_first_steps(mode, rank, size):
    """Others, such as those that have loaded a file, are past them."""
    optimizer = tfring.DistributedOptimizer(
        "sgd", compression=tfring.PowerSGD(size, start=4)
    )
    if rank == 0:
        optimizer.iterations.assign(4)
    variables = variables_of()
    optimizer.build(variables)
    step = mode(lambda gradients: optimizer.apply(gradients, variables))
    before = tfring.statistics().tensor_bytes
    step(gradients_of(rank))
    sent_bytes = tfring.statistics().tensor_bytes - before
    assert sent_bytes < 4 * 40 * 24
    assert_same_on_all_ranks(variables)


@pytest.mark.usefixtures("several_ranks")
def test_bytes(mode, rank, size):
    low_rank = 3
    shapes = [(64, 80), (80,), (3, 3, 8, 32)]
    compression = tfring.PowerSGD(low_rank, start=0)
    step = step_of(mode, variables_of(shapes), compression)
    gradients = [tf.random.normal(shape) for shape in shapes]
    step(gradients)
    before = tfring.statistics()
    step(gradients)
    after = tfring.statistics()
    expected = 4 * (low_rank * (64 + 80 + 72 + 32) + 80)
    assert after.tensor_bytes - before.tensor_bytes == expected
    # Messages between GPUs are not counted.
    if size == 2 and "TFRING_TEST_DEVICE" not in os.environ:
        sent = after.sent_bytes["allreduce"] - before.sent_bytes["allreduce"]
        assert sent == pytest.approx(expected, rel=0.02)


@pytest.mark.usefixtures("several_ranks")
def test_one_rank_compresses_nothing(sets_of_one, rank, size):
    # The rank is alone in one set, and not in the other one.
    for process_set in (sets_of_one[rank], sets_of_one[(rank + 1) % size]):
        step = step_of(
            *(tf.function, variables_of(), tfring.PowerSGD(1, start=0)),
            process_set=process_set,
        )
        given = gradients_of(rank)
        assert bits_of(step(given)) == bits_of(given)


def test_a_later_trace_may_have_other_variables(rank, size):
    compression = tfring.PowerSGD(size + 2, start=1)

    @tf.function
    def step(number, gradients):
        eager = MODES["eager"]
        return step_of(eager, variables[number], compression)(gradients)

    variables = [variables_of(), variables_of()]
    for number in range(2):
        results = step(number, gradients_of(rank, columns=1))
        assert_close(results, means_of(size, columns=1))


def fitted(jit_compile, steps_per_execution=1, **options):
    keras.utils.set_random_seed(1)
    optimizer = tfring.DistributedOptimizer(
        keras.optimizers.Adam(0.01, clipnorm=1.0),
        compression=tfring.PowerSGD(2, start=3),
        **options,
    )
    model = compiled(
        optimizer,
        keras.Input((24,)),
        keras.layers.Dense(32, "tanh"),
        keras.layers.Dense(32, "tanh"),
        keras.layers.Dense(1),
        jit_compile=jit_compile,
        steps_per_execution=steps_per_execution,
    )
    rng = np.random.default_rng(tfring.rank())
    x = rng.normal(size=(14 * 8, 24))
    y = np.sin(x.sum(axis=1, keepdims=True))
    model.fit(x, y, batch_size=8, verbose=0, shuffle=False)
    return model


@pytest.mark.xla
@pytest.mark.parametrize(
    ("jit_compile", "steps"),
    [thorough(False, 7), (True, 2)],
)
def test_fit(jit_compile, steps):
    expected = fitted(jit_compile=False).get_weights()
    weights = fitted(jit_compile, steps_per_execution=steps).get_weights()
    assert_same_on_all_ranks(weights)
    assert_each_close(weights, expected, rtol=0, atol=1e-3)


@jit_compile_is_thorough
def test_fit_of_accumulated_gradients(jit_compile):
    model = fitted(jit_compile, backward_passes_per_step=3)
    assert model.optimizer.iterations == 4
    assert_same_on_all_ranks(model.get_weights())


def test_a_copy_begins_anew(rank):
    optimizer = tfring.DistributedOptimizer(
        "sgd", compression=tfring.PowerSGD(1, start=0)
    )
    results = []
    for each in (optimizer, copy.deepcopy(optimizer)):
        variables = variables_of()
        for number in range(3):
            each.apply(gradients_of(rank, number), variables)
        results.append(variables)
    assert bits_of(results[0]) == bits_of(results[1])


@pytest.mark.usefixtures("several_ranks")
def test_left_factors_overlap_with_backpropagation(monkeypatch):
    """Left factors all start before the first is done, right ones later."""
    monkeypatch.setattr(runtime, "fusion_threshold_bytes", lambda: 64)
    weights = [tf.Variable(tf.ones([16, 16]), name=f"w{i}") for i in range(4)]
    compression = tfring.PowerSGD(2, start=5)

    @tf.function
    def step():
        with tfring.DistributedGradientTape(
            tf.GradientTape(), compression=compression
        ) as tape:
            value = tf.ones([2, 16])
            for weight in weights:
                value = tf.tanh(value @ weight)
        return tape.gradient(value, weights)

    operations = step.get_concrete_function().graph.get_operations()
    kinds = [o.type for o in operations if o.type.startswith("Tfring")]
    names = [
        o.get_attr("tensor_names")
        for o in operations
        if o.type == "TfringAllreduceStart"
    ]
    left, right = (
        [[f"w{i}:0/{which} factor".encode()] for i in (3, 2, 1, 0)]
        for which in ("left", "right")
    )
    assert [name for name in names if name != [b"first steps"]] == left + right
    starts = ["TfringAllreduceStart"]
    order = [kind for kind in kinds if kind != "TfringAfterStart"]
    dones = ["TfringDone"]
    assert order == starts * 5 + dones * 5 + starts * 4 + dones * 4
    assert kinds.count("TfringAfterStart") >= 2
