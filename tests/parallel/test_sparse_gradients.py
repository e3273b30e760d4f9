"""tf.IndexedSlices: repeated rows count as in a dense gradient."""

from __future__ import annotations

import fake_driver
import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_same_on_all_ranks, gradient_of, without_xla

import tfring
from tfring._ops import slices as slices_module

OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(0.1, beta_1=0.5, beta_2=0.75),
    "momentum": lambda: keras.optimizers.SGD(0.5, momentum=0.5, clipnorm=9.0),
    "adagrad": lambda: keras.optimizers.Adagrad(0.5),
}
WAYS = {
    "sparse": {},
    "sparse_as_dense": {"sparse_as_dense": True},
    "shard_states": {"shard_states": True},
}
STEPS, LOOKUPS, ROWS = 3, 7, 6


def lookups_of(step, rank, size):
    """Some rows more than once, on one rank and on several, and factors.

    The averages over the ranks are integers.
    """
    rng = np.random.default_rng([step, rank])
    rows = rng.integers(0, ROWS - 1, LOOKUPS, np.int32)
    return rows, rng.integers(-4, 5, (LOOKUPS, 2)).astype(np.float32) * size


def gradient_of_table(table, rows, factors):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(table.value, rows) * factors)
    return tape.gradient(loss, table.value)


def trained_alone(optimizer, size):
    """The table after steps of one process, with a dense gradient."""
    table = keras.Variable(np.zeros((ROWS, 2), np.float32))
    for step in range(STEPS):
        rows, factors = zip(
            *(lookups_of(step, r, size) for r in range(size)), strict=True
        )
        gradient = gradient_of_table(
            table, np.concatenate(rows), np.concatenate(factors) / size
        )
        optimizer.apply([tf.convert_to_tensor(gradient)], [table])
    return table.numpy()


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_way_trains_like_one_process_with_a_dense_gradient(
    name, way, jit_compile, rank, size
):
    table = keras.Variable(np.zeros((ROWS, 2), np.float32))
    optimizer = tfring.DistributedOptimizer(OPTIMIZERS[name](), **WAYS[way])
    optimizer.build([table])

    @tf.function(jit_compile=jit_compile)
    def train(rows, factors):
        optimizer.apply([gradient_of_table(table, rows, factors)], [table])

    for step in range(STEPS):
        train(*map(tf.constant, lookups_of(step, rank, size)))
    expected = trained_alone(OPTIMIZERS[name](), size)
    np.testing.assert_allclose(table.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("sparse_as_dense", [False, True])
def test_gradients_are_exact(sparse_as_dense, jit_compile, rank, size):
    table = keras.Variable(np.zeros((ROWS, 2), np.float32))

    @tf.function(jit_compile=jit_compile)
    def squares(rows, factors):
        with tfring.DistributedGradientTape(
            tf.GradientTape(), sparse_as_dense=sparse_as_dense
        ) as tape:
            loss = tf.reduce_sum(tf.gather(table.value, rows) * factors)
        # Adam, too, squares before anything makes them dense.
        return tf.convert_to_tensor(
            keras.ops.square(tape.gradient(loss, table.value))
        )

    expected = np.zeros((ROWS, 2))
    for other in range(size):
        rows, factors = lookups_of(0, other, size)
        np.add.at(expected, rows, factors / size)
    found = squares(*map(tf.constant, lookups_of(0, rank, size)))
    np.testing.assert_array_equal(found, expected**2)


@without_xla
def test_rows_are_added_up_in_the_order_of_the_ranks(mode, rank, size):
    rng = np.random.default_rng(0)
    values = rng.normal(size=(size, 40, 3)).astype(np.float32)
    rows = [rng.permutation(60)[:40] for _ in range(size)]
    reduce = mode(lambda *x: tfring.allreduce(tf.IndexedSlices(*x)))
    mean = reduce(*map(tf.constant, (values[rank], rows[rank], (60, 3))))
    dense = np.zeros((60, 3), np.float32)
    for own_rows, own_values in zip(rows, values, strict=True):
        dense[own_rows] += own_values
    expected = (dense.astype(np.float64) * (1 / size)).astype(np.float32)
    np.testing.assert_array_equal(tf.convert_to_tensor(mean), expected)
    assert sorted(mean.indices.numpy()) == sorted(set(np.concatenate(rows)))
    assert mean.dense_shape is not None
    assert_same_on_all_ranks([mean.values])


def test_each_index_travels_once(monkeypatch, rank, size):
    counts = []

    def start_gather(tensors, **arguments):
        counts.extend(len(tensor) for tensor in tensors[:2])
        return gather(tensors, **arguments)

    gather = slices_module.start_gather
    monkeypatch.setattr(slices_module, "start_gather", start_gather)
    total = tfring.allreduce(
        tf.IndexedSlices(tf.ones([5, 2]), [rank, 7, rank, 7, 7]), op=tfring.Sum
    )
    assert counts == [2, 2]
    found = dict(
        zip(total.indices.numpy(), total.values.numpy()[:, 0], strict=True)
    )
    assert found == {**dict.fromkeys(range(size), 2.0), 7: 3.0 * size}


@pytest.mark.parametrize(
    ("dtype", "large"), [(tf.float16, 2048.0), (tf.bfloat16, 256.0)]
)
def test_halves_are_added_in_float32(dtype, large):
    # Added one by one in `dtype`, each of the small ones would be lost.
    values = tf.constant([[large], [1.0], [1.0]], dtype)
    mean = tfring.allreduce(tf.IndexedSlices(values, [4, 4, 4]))
    assert mean.values.dtype == dtype
    assert mean.values.numpy().tolist() == [[large + 2]]


@without_xla
@pytest.mark.parametrize("op", [tfring.Sum, tfring.Average])
def test_gradient(mode, op, rank, size):
    if mode is helpers.MODES["eager"] and fake_driver.options() is not None:
        pytest.skip("TensorFlow has no zeros like int32 on the fake GPU")

    def loss(values):
        slices = tf.IndexedSlices(values, [1, 1, 0], [3, 1])
        reduced = tf.convert_to_tensor(tfring.allreduce(slices, op=op))
        return reduced * [[3.0], [5.0], [7.0]] * (rank + 1.0)

    # An allgather's, see Note [Whose loss] in tfring/_ops/gradients.py.
    expected = np.array([[5.0], [5.0], [3.0]]) * (size + 1) / 2
    if op is tfring.Average:
        expected /= size
    gradient = mode(gradient_of(loss))(tf.ones([3, 1]))
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (2,), (2, 3, 4)])
def test_rows_of_any_shape(shape, size):
    @tf.function(
        input_signature=[
            tf.TensorSpec(None),
            tf.TensorSpec(None, tf.int64),
        ]
    )
    def reduce(values, indices):
        return tfring.allreduce(tf.IndexedSlices(values, indices)).values

    indices = tf.fill([shape[0]], tf.constant(3, tf.int64))
    result = reduce(tf.ones(shape), indices)
    expected = np.full([min(shape[0], 1), *shape[1:]], 2.0)
    np.testing.assert_array_equal(result, expected)


def test_or_of_rows_of_bool(size):
    slices = tf.IndexedSlices([[True, False], [False, False]], [1, 1])
    either = tfring.allreduce(slices, op=tfring.Sum, prescale_factor=0.5)
    assert either.values.numpy().tolist() == [[True, False]]
