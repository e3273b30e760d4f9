"""Averages at the ends of a dtype's range, where a sum is beyond it."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from helpers import DTYPES

import tfring

INTEGERS = [dtype for dtype in DTYPES if dtype.is_integer]


def values_of(rank, dtype):
    """Returns Python integers: limits, their neighbors, and large numbers."""
    low, high = dtype.min, dtype.max
    values = [
        high,
        low,
        high - rank % 2,
        low + rank % 2,
        (low, high)[rank % 2],
        high // 3 * 2 + rank,
        low // 3 * 2 + rank,
        rank if dtype.is_unsigned else -rank,
        1_700_000_000_000_000_001 % (high + 1),
    ]
    generator = np.random.default_rng([rank])
    return values + [
        int(value)
        for value in generator.integers(
            low, high, 50, dtype.as_numpy_dtype, endpoint=True
        )
    ]


def means_of(size, dtype):
    """Exact, and rounded towards zero."""
    of_ranks = [values_of(rank, dtype) for rank in range(size)]
    totals = [sum(values) for values in zip(*of_ranks, strict=True)]
    return [
        total // size if total >= 0 else -(-total // size) for total in totals
    ]


def test_averages_of_integers_are_exact(mode, rank, size):
    @mode
    def average(x):
        grouped = tfring.grouped_allreduce([x, tf.ones([2]), x[0]])
        return tfring.allreduce(x, name="x"), *grouped

    for dtype in INTEGERS:
        result, *grouped = average(tf.constant(values_of(rank, dtype), dtype))
        means = means_of(size, dtype)
        assert result.dtype == dtype
        assert result.numpy().tolist() == means
        for each, expected in zip(
            grouped, [means, [1, 1], means[0]], strict=True
        ):
            assert each.numpy().tolist() == expected


def test_reducescatter_is_as_exact(rank, size):
    for dtype in INTEGERS:
        values = np.array(values_of(rank, dtype), dtype.as_numpy_dtype)
        rows = np.repeat([values], size, axis=0)
        result = tfring.reducescatter(tf.constant(rows, dtype))
        assert result.numpy().tolist() == [means_of(size, dtype)]


def test_scaled_averages_are_rounded_once(mode, rank, size):
    @mode
    def average(x, factor):
        return tfring.allreduce(x, postscale_factor=factor)

    x = tf.constant([255, 3 if rank else 4, 100], tf.uint8)
    doubled = average(x, 2.0).numpy().tolist()
    assert doubled == [255, int((3 + 1 / size) * 2), 200]
    large = tf.constant([2**63 - 1, -(2**63), 5], tf.int64)
    assert average(large, 2.0).numpy().tolist() == [2**63 - 1, -(2**63), 10]
    assert average(x, 0.5).numpy().tolist()[::2] == [127, 50]
    halved = tfring.allreduce(tf.constant([3, -3]), prescale_factor=0.5)
    assert halved.numpy().tolist() == [1, -1]


@pytest.mark.parametrize("dtype", [tf.int8, tf.uint64])
def test_slices_of_integers_are_rounded_together(dtype, rank, size):
    high = dtype.max
    values = tf.constant([[7, high], [rank, high], [high, 1]], dtype)
    indices = tf.constant([4, 1, 5 + rank], tf.int64)
    slices = tf.IndexedSlices(values, indices, tf.constant([5 + size, 2]))
    mean = tfring.allreduce(slices)
    rows = dict(
        zip(mean.indices.numpy(), mean.values.numpy().tolist(), strict=True)
    )
    assert rows == {
        4: [7, high],
        1: [(size - 1) // 2, high],
        **{5 + r: [high // size, 1 // size] for r in range(size)},
    }


def test_scaled_slices_of_integers_are_rounded_together(rank, size):
    slices = tf.IndexedSlices([[3]], [2], [4, 1])
    halved = tfring.allreduce(slices, op=tfring.Sum, postscale_factor=0.5)
    assert tf.convert_to_tensor(halved)[2, 0] == int(1.5 * size)


# Few elements are one message, and many do not go through the fusion buffer.
@pytest.mark.parametrize("count", [3, 5_000_000])
def test_averages_of_large_float16(count, rank, size):
    largest = 60000.0
    x = tf.fill([count], tf.constant(largest, tf.float16))
    for mean in tfring.allreduce(x), tfring.reducescatter(x):
        np.testing.assert_allclose(mean, np.full(mean.shape, largest), 2**-9)
    # Small values lose no precision for the sake of large ones.
    few = tf.constant([1.0, 2.0**-10, 0.0], tf.float16) * size
    np.testing.assert_array_equal(tfring.allreduce(few), few)


def test_predivided_float16_is_divided_once(size):
    x = tf.constant([size * 2.0**-20], tf.float16)
    mean = tfring.allreduce(
        x, prescale_factor=1 / size, postscale_factor=float(size)
    )
    np.testing.assert_array_equal(mean, x)


@pytest.mark.parametrize(
    "other", [tf.uint16, tf.int64], ids=["uint16", "int64"]
)
def test_errors_name_the_dtypes_of_integers(other, several_ranks, rank):
    x = tf.ones([2], other if rank == 1 else tf.int16)
    for reduce in tfring.allreduce, tfring.reducescatter:
        with pytest.raises(tf.errors.FailedPreconditionError) as error:
            reduce(x, name="odd")
        for word in "'odd (int16)'", f"{other.name})'":
            assert word in error.value.message


@pytest.mark.parametrize("dtype", [tf.float16, tf.float32, tf.float64])
def test_slices_are_scaled_as_tensors_are(dtype, rank, size):
    values = tf.cast(tf.reshape(tf.range(1, 1001), [-1, 1]), dtype) / 7
    # Every other rank has no more than zeros, so that nothing is rounded twice.
    values *= tf.cast(rank == 0, dtype)
    slices = tf.IndexedSlices(values, tf.range(1000), tf.constant([1000, 1]))
    options = {"op": tfring.Sum, "postscale_factor": 0.1}
    dense = tfring.allreduce(values, **options)
    rows = tfring.allreduce(slices, **options).values
    np.testing.assert_array_equal(rows, dense)
