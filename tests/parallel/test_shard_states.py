"""Optimizers with a share of the states on each rank.

They are compared with the same optimizer without shards, on the same gradients.
"""

from __future__ import annotations

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import (
    all_thorough_but,
    ancestors,
    assert_each_close,
    assert_each_equal,
    assert_same_on_all_ranks,
    thorough,
    xla_is_thorough,
)

import tfring

optimizers = keras.optimizers
OPTIMIZERS = {
    "SGD": lambda: optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "Adam": lambda: optimizers.Adam(0.01, amsgrad=True),
    "AdamW": lambda: optimizers.AdamW(0.01, weight_decay=0.1),
    "Adamax": lambda: optimizers.Adamax(0.01),
    "Nadam": lambda: optimizers.Nadam(0.01),
    "RMSprop": lambda: optimizers.RMSprop(0.01, momentum=0.9, centered=True),
    "Adagrad": lambda: optimizers.Adagrad(0.01),
    "Adadelta": lambda: optimizers.Adadelta(0.5),
    "Ftrl": lambda: optimizers.Ftrl(0.05, l1_regularization_strength=0.001),
    "Lion": lambda: optimizers.Lion(0.001),
}
# Shapes of kernels, of sizes that no number of ranks divides evenly, and with
# fewer elements than ranks.
SHAPES = [(48, 64), (64,), (13, 37), (7,), (), (2, 1), (16,), (150, 111)]


def new_variables():
    rng = np.random.default_rng(5)
    return [
        keras.Variable(rng.normal(size=shape), dtype="float32", name=f"v{i}")
        for i, shape in enumerate(SHAPES)
    ]


def gradients_of(step, shapes=SHAPES):
    """Returns this rank's gradients; their magnitude differs between steps."""
    rng = np.random.default_rng([step, tfring.rank()])
    return [
        tf.constant((1 + step) * rng.normal(size=s), tf.float32) for s in shapes
    ]


def trained(optimizer, mode, steps=4, gradients=gradients_of):
    variables = new_variables()

    @mode
    def step(*given):
        optimizer.apply(list(given), variables)

    optimizer.build(variables)
    for number in range(steps):
        step(*gradients(number))
    return variables


def state_bytes(optimizer):
    return sum(np.asarray(v).nbytes for v in optimizer.variables)


def compare(make, mode, exact=True, rtol=2e-5, atol=2e-6, **options):
    """Trains with and without shares; exactly equal on up to two ranks."""
    with_shares = tfring.DistributedOptimizer(
        make(), shard_states=True, **options
    )
    without = tfring.DistributedOptimizer(make(), **options)
    got, expected = trained(with_shares, mode), trained(without, mode)
    assert_same_on_all_ranks(got)
    if exact and tfring.size() <= 2:
        assert_each_equal(got, expected)
    else:
        assert_each_close(got, expected, rtol=rtol, atol=atol)
    return with_shares, without


@pytest.mark.parametrize("name", all_thorough_but(["Nadam"], OPTIMIZERS))
def test_every_optimizer(name, size):
    with_shares, without = compare(OPTIMIZERS[name], tf.function)
    # Small sizes: a rank has up to 64 bytes more of each variable.
    slots = state_bytes(without) // (sum(np.prod(s) for s in SHAPES) * 4)
    most = state_bytes(without) / size * 1.05 + slots * 64 + 16
    assert state_bytes(with_shares) <= most


@pytest.mark.parametrize(
    ("name", "mode", "exact"),
    [
        *((name, "eager", True) for name in ("SGD", "AdamW", "Nadam")),
        # It rounds a product and a sum once, where it computes them together.
        ("AdamW", "xla", False),
    ],
    indirect=["mode"],
)
def test_other_modes(name, mode, exact):
    compare(OPTIMIZERS[name], mode, exact)


@pytest.mark.parametrize("groups", [None, 2])
def test_variables_of_many_shapes_and_dtypes(groups):
    shapes = [(300, 700), (5,), (), (1024,), (3, 0), (2, 2), (99, 333)]
    dtypes = ["float32", "float16", "float32", "float64", *["float32"] * 3]

    def trained_by(**options):
        optimizer = tfring.DistributedOptimizer(
            optimizers.SGD(0.5, momentum=0.5), groups=groups, **options
        )
        variables = [
            keras.Variable(np.ones(shape), dtype=dtype)
            for shape, dtype in zip(shapes, dtypes, strict=True)
        ]
        for step in range(2):
            gradients = [
                tf.cast(gradient, dtype)
                for gradient, dtype in zip(
                    gradients_of(step, shapes), dtypes, strict=True
                )
            ]
            optimizer.apply(gradients, variables)
        return variables

    got = trained_by(shard_states=True)
    assert_same_on_all_ranks(got)
    assert_each_close(got, trained_by(), rtol=2e-3, atol=2e-3)


def excluding(make, *names):
    optimizer = make()
    optimizer.exclude_from_weight_decay(var_names=list(names))
    return optimizer


# A factory, and the options.
OPTIONS = {
    "decay": (
        lambda: excluding(OPTIMIZERS["AdamW"], "v0", "v4"),
        {"op": tfring.Sum},
    ),
    "averages": (
        lambda: optimizers.Adam(
            optimizers.schedules.CosineDecay(0.05, 4),
            use_ema=True,
            ema_momentum=0.5,
            ema_overwrite_frequency=2,
            clipvalue=0.5,
        ),
        {"groups": 3},
    ),
    "clipnorm": (lambda: optimizers.Adam(0.01, clipnorm=1.0), {}),
    "global_clipnorm": (lambda: optimizers.Adam(0.01, global_clipnorm=1.0), {}),
    "accumulation": (
        lambda: optimizers.SGD(0.01, momentum=0.9, use_ema=True),
        {"backward_passes_per_step": 2, "device_dense": "/cpu:0"},
    ),
    "loss_scale_factor": (
        lambda: optimizers.Adam(0.01, loss_scale_factor=3.0),
        {"gradient_predivide_factor": 2.0},
    ),
    "loss scaling": (
        lambda: optimizers.LossScaleOptimizer(
            optimizers.Adam(0.01), initial_scale=4.0, dynamic_growth_steps=2
        ),
        {},
    ),
    "scaled accumulation": (
        lambda: optimizers.LossScaleOptimizer(
            optimizers.SGD(0.01, gradient_accumulation_steps=2),
            initial_scale=4.0,
        ),
        {},
    ),
}
INEXACT = ("clipnorm", "global_clipnorm")
IN_THE_GATE = ("averages", "global_clipnorm", "loss scaling")


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *((name, "graph") for name in IN_THE_GATE),
        *(
            thorough(name, "graph")
            for name in OPTIONS
            if name not in IN_THE_GATE
        ),
        # These options have collectives inside of a condition.
        *(
            thorough(name, "xla")
            for name in ("loss scaling", "averages", "accumulation")
        ),
    ],
    indirect=["mode"],
)
def test_options(name, mode):
    make, options = OPTIONS[name]
    exact = name not in INEXACT and mode is tf.function
    compare(make, mode, exact, **options)


def test_gradients_that_travel_as_float16():
    compare(
        lambda: optimizers.SGD(0.01, momentum=0.9),
        tf.function,
        exact=False,
        rtol=1e-3,
        atol=1e-3,
        compression=tfring.Compression.fp16,
    )


def test_skips_together(rank, size):
    optimizer = optimizers.LossScaleOptimizer(
        tfring.DistributedOptimizer(optimizers.SGD(1.0), shard_states=True),
        initial_scale=2.0,
    )

    def gradients(step):
        # In the second step, only the last rank has no valid gradient.
        bad = step == 1 and rank == size - 1
        return [tf.fill(s, float("nan") if bad else 2.0) for s in SHAPES]

    after = trained(optimizer, tf.function, 3, gradients)
    # The scale is halved for the third step.
    expected = [before.numpy() - 3 for before in new_variables()]
    assert_each_close(after, expected, rtol=1e-5)
    assert optimizer.dynamic_scale == 1.0


@xla_is_thorough
def test_variables_without_a_gradient(mode):
    """Nothing of theirs changes, as in Keras."""

    def gradients(step):
        result = gradients_of(step)
        if step % 2:
            result[1] = result[4] = result[6] = None
        return result

    def trained_by(**options):
        optimizer = tfring.DistributedOptimizer(
            optimizers.AdamW(0.01, weight_decay=0.1), **options
        )
        variables = new_variables()
        optimizer.build(variables)
        for number in range(4):
            given = gradients(number)
            mode(lambda given=given: optimizer.apply(given, variables))()
        optimizer.apply(gradients_of(9)[:3], variables[:3])
        return optimizer, variables

    with pytest.warns(UserWarning, match="Gradients do not exist"):
        with_shares, got = trained_by(shard_states=True)
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        without, expected = trained_by()
    assert_each_close(got, expected, rtol=1e-5, atol=1e-6)
    with tfring.whole_states(with_shares):
        saved = {}
        with_shares.save_own_variables(saved)
    states = [saved[str(number)] for number in range(len(saved))]
    assert_each_close(states, without.variables, rtol=1e-5, atol=1e-6)


def test_sparse_gradients_are_made_dense(rank):
    def trained_by(**options):
        optimizer = tfring.DistributedOptimizer(optimizers.Adam(0.1), **options)
        table = keras.Variable(np.ones((9, 4), np.float32))
        slices = tf.IndexedSlices(
            tf.fill([3, 4], 1.0 + rank), [rank, 4, 4], [9, 4]
        )
        optimizer.apply([slices], [table])
        return table

    np.testing.assert_array_equal(
        trained_by(shard_states=True), trained_by(sparse_as_dense=True)
    )


def test_ranks_of_a_process_set(sets, rank, size):
    """Ranks outside keep all states, and their own gradients."""
    [process_set] = sets([size - 1])
    optimizer = tfring.DistributedOptimizer(
        optimizers.Adam(0.01), shard_states=True, process_set=process_set
    )
    alone = optimizers.Adam(0.01)
    assert_each_equal(
        trained(optimizer, tf.function), trained(alone, tf.function)
    )


def step_of_buckets(jit_compile, shape=(301, 333)):
    """Returns a step of four large variables, each in a bucket of its own."""
    weights = [tf.Variable(tf.ones(s)) for s in [shape, shape[::-1]] * 2]
    optimizer = tfring.DistributedOptimizer(
        keras.optimizers.Adam(), shard_states=True, groups=4
    )
    optimizer.build(weights)
    x = tf.ones([5, shape[0]])

    @tf.function(jit_compile=jit_compile)
    def step():
        with tf.GradientTape() as tape:
            value = x
            for weight in weights:
                value = tf.nn.relu(value @ weight)
            loss = tf.reduce_sum(tf.square(value))
        optimizer.apply(tape.gradient(loss, weights), weights)

    return step


def most_in_flight(starts):
    """Returns how many starts (True) have no done (False) yet, at most."""
    return max(np.cumsum([1 if start else -1 for start in starts]))


@pytest.mark.usefixtures("several_ranks")
def test_two_buckets_are_whole_at_a_time():
    """A share is copied, and new weights assigned, before a later start."""
    step = step_of_buckets(jit_compile=False)
    operations = step.get_concrete_function().graph.get_operations()
    starts = [
        o for o in operations if re.match("Tfring(Scatter|Gather)", o.type)
    ]
    assert [o.type for o in starts] == [
        *["TfringScatterInPlaceStart"] * 4,
        *["TfringGatherSharesStart"] * 4,
    ]
    collectives = [
        o for o in operations if o in starts or o.type == "TfringDone"
    ]
    assert most_in_flight([o in starts for o in collectives]) == 2

    def count_before(start, kind):
        before = ancestors(start)
        return sum(o.type == kind and o.name in before for o in operations)

    # The edges are those by which TensorFlow runs it.
    assert [count_before(s, "DeepCopy") for s in starts[:4]] == [0, 0, 1, 2]
    weights = [s.inputs[0].op.name for s in starts[4:]]
    assert len(set(weights)) == 4
    assigned = [count_before(s, "AssignVariableOp") for s in starts[4:]]
    assert np.diff(assigned[1:]).tolist() == [1, 1]
    # Nothing but the copy of a share holds a reduced gradient.
    dones = [o for o in operations if o.type == "TfringDone"]
    for done in dones[:4]:
        [flat] = done.outputs[0].consumers()
        [part] = flat.outputs[0].consumers()
        assert {o.type for o in part.outputs[0].consumers()} == {"DeepCopy"}


@pytest.mark.parametrize("jit_compile", [False, thorough(True)])
@pytest.mark.usefixtures("several_ranks")
def test_an_error_with_buckets_in_flight(jit_compile, rank):
    """The step ends on all ranks, and does not disturb the next step."""
    shape = (301, 333 + (rank == 0))
    with pytest.raises(tf.errors.OpError, match="shapes differ"):
        step_of_buckets(jit_compile, shape)()
    step_of_buckets(jit_compile)()


@pytest.mark.xla
@pytest.mark.usefixtures("several_ranks")
def test_xla_copies_no_large_variable():
    """XLA handles two buckets at a time, and reduces and gathers in place.

    No loop over a share divides by the length of a row.
    """
    step = step_of_buckets(jit_compile=True)
    program = step.experimental_get_compiler_ir()(stage="optimized_hlo")
    entry = program[program.index("ENTRY") :]
    calls = re.findall(r'custom_call_target="tfring_(start|done)"', entry)
    assert len(calls) == 16
    assert most_in_flight([call == "start" for call in calls]) == 2
    made = re.findall(r" = f32\[(\S+)\]\S* ([\w-]+)\(", entry)
    whole = {"301,333", "333,301"}
    assert str(301 * 333) not in program
    assert {operation for dims, operation in made if dims in whole} <= {
        *("parameter", "get-tuple-element"),  # nothing runs
        *("dot", "custom-call"),
    }
