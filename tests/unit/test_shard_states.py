"""Sharded optimizer states in one process: the layout, and errors."""

import copy

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring
from tfring.compression import Compressor

SHAPES = [(300, 700), (5,), (), (1024,), (33, 40), (3, 0), (2, 2), (99, 333)]


pytestmark = pytest.mark.usefixtures("initialized")


class OfMine(keras.optimizers.Adam):
    pass


# test_argument_table.py has the arguments that do not go with shares.
@pytest.mark.parametrize(
    ("make", "options", "text"),
    [
        (keras.optimizers.Adafactor, {}, "does not know .*Adafactor"),
        (OfMine, {}, "does not know .*OfMine"),
        (
            lambda: keras.optimizers.LossScaleOptimizer(OfMine()),
            {},
            "does not know .*OfMine",
        ),
        (keras.optimizers.Adam, {"compression": Compressor}, "compressor"),
    ],
)
def test_refuses_by_name(make, options, text):
    with pytest.raises(NotImplementedError, match=text):
        tfring.DistributedOptimizer(make(), shard_states=True, **options)


def test_refuses_local_variables():
    optimizer = tfring.DistributedOptimizer("adam", shard_states=True)
    with pytest.raises(NotImplementedError, match="no local variables"):
        optimizer.register_local_var(keras.Variable([1.0]))


def trained(optimizer, steps=3):
    variables = [
        keras.Variable(np.full(s, 0.5), dtype="float32", name=f"v{i}")
        for i, s in enumerate(SHAPES)
    ]
    rng = np.random.default_rng(0)
    for _ in range(steps):
        gradients = [tf.constant(rng.normal(size=s), "float32") for s in SHAPES]
        optimizer.apply(gradients, variables)
    return variables


def saved(optimizer):
    store = {}
    optimizer.save_own_variables(store)
    return {key: np.asarray(value) for key, value in store.items()}


def amsgrad():
    return keras.optimizers.Adam(
        0.1, amsgrad=True, use_ema=True, gradient_accumulation_steps=2
    )


@pytest.mark.parametrize(
    "make",
    [
        amsgrad,
        keras.optimizers.Nadam,
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Ftrl()),
    ],
    ids=["Adam", "Nadam", "LossScaleOptimizer"],
)
def test_saves_as_the_plain_optimizer(make):
    plain, sharded = make(), make()
    assert tfring.DistributedOptimizer(sharded, shard_states=True) is sharded
    for one, other in zip(trained(plain), trained(sharded), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    store, expected = saved(sharded), saved(plain)
    assert store.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(store[key], value, rtol=1e-5, atol=1e-7)
    other = tfring.DistributedOptimizer(make(), shard_states=True)
    trained(other, 1)
    other.load_own_variables(expected)
    np.testing.assert_equal(saved(other), expected)


def test_takes_over_the_states_of_an_optimizer_that_is_built():
    optimizer = amsgrad()
    trained(optimizer)
    expected = saved(optimizer)
    tfring.DistributedOptimizer(optimizer, shard_states=True)
    np.testing.assert_equal(saved(optimizer), expected)


def test_loads_after_the_job():
    optimizer = tfring.DistributedOptimizer("adam", shard_states=True)
    trained(optimizer)
    store = saved(optimizer)
    tfring.shutdown()
    try:
        optimizer.load_own_variables(store)
    finally:
        tfring.init()
    for key, value in saved(optimizer).items():
        np.testing.assert_array_equal(value, store[key])


def test_is_cut_anew_without_states():
    """A worker of an elastic job has no states before its first commit."""
    optimizer = tfring.DistributedOptimizer("sgd", shard_states=True)
    trained(optimizer)
    optimizer._cut_anew(None)
    assert optimizer.iterations == 3


def test_a_copy_has_shares_too():
    optimizer = tfring.DistributedOptimizer("adam", shard_states=True)
    copied = copy.deepcopy(optimizer)
    for one, other in zip(trained(optimizer), trained(copied), strict=True):
        np.testing.assert_array_equal(one, other)
    assert [v.shape for v in copied.variables] == [
        v.shape for v in optimizer.variables
    ]


def test_a_state_of_another_model_is_refused():
    optimizer = tfring.DistributedOptimizer("adam", shard_states=True)
    trained(optimizer)
    store = saved(optimizer)
    with pytest.warns(UserWarning, match="Skipping"):
        optimizer.load_own_variables({"0": 1})
    store["2"] = np.zeros([4])
    with pytest.raises(ValueError, match=r"shape \(4,\).*v0"):
        optimizer.load_own_variables(store)


def test_weights_are_gathered_into_all_ranks_alike():
    """A share has a value only during an update."""
    optimizer = tfring.DistributedOptimizer("sgd", shard_states=True)
    trained(optimizer)
    share = optimizer._tfring_layout.shares[0]
    with pytest.raises(RuntimeError, match="during updates alone"):
        tf.convert_to_tensor(share)
