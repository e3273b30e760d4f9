"""Grouped collectives: mixed dtypes, ragged and uneven rows, gradients."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from helpers import DTYPES, values_of, without_xla

import tfring


def test_allreduce_of_mixed_dtypes(mode, rank, size):
    kinds = [
        (tf.float32, (3,)),
        (tf.int64, ()),
        (tf.float32, (0,)),
        (tf.float16, (2, 2)),
        (tf.int64, (5,)),
        (tf.bool, (2,)),
    ]

    def reduce(*tensors):
        return tfring.grouped_allreduce(iter(tensors), op=tfring.Sum)

    arrays = [
        [values_of(r, shape, dtype) for dtype, shape in kinds]
        for r in range(size)
    ]
    results = mode(reduce)(*map(tf.constant, arrays[rank]))
    for i, result in enumerate(results):
        expected = np.sum([of_rank[i] for of_rank in arrays], axis=0)
        assert result.dtype == kinds[i][0]
        np.testing.assert_array_equal(
            result, expected.astype(result.dtype.name)
        )


@without_xla
def test_allgather_of_every_dtype_at_once(mode, rank, size):
    # Other numbers of rows for each tensor and rank; some have none.
    arrays = [
        [
            values_of(r, ((r + i) % 3, 2), dtype)
            for i, dtype in enumerate(DTYPES * 2)
        ]
        for r in range(size)
    ]
    results = mode(tfring.grouped_allgather)(
        list(map(tf.constant, arrays[rank]))
    )
    for i, (result, dtype) in enumerate(zip(results, DTYPES * 2, strict=True)):
        assert result.dtype == dtype
        np.testing.assert_array_equal(
            result, np.concatenate([of_rank[i] for of_rank in arrays])
        )


@without_xla
def test_reducescatter_of_every_dtype_at_once(mode, rank, size):
    # Some tensors have no rows, and some more rows than there are ranks.
    shapes = [(i % (2 * size + 2), 3) for i in range(len(DTYPES))]

    def scatter(*tensors):
        return tfring.grouped_reducescatter(iter(tensors), op=tfring.Sum)

    arrays = [
        [
            values_of(r, shape, dtype)
            for shape, dtype in zip(shapes, DTYPES, strict=True)
        ]
        for r in range(size)
    ]
    results = mode(scatter)(*map(tf.constant, arrays[rank]))
    for i, (result, dtype) in enumerate(zip(results, DTYPES, strict=True)):
        assert result.dtype == dtype
        total = sum(of_rank[i].astype(np.float64) for of_rank in arrays)
        expected = np.array_split(total, size)[rank]
        np.testing.assert_array_equal(
            result, expected.astype(dtype.as_numpy_dtype)
        )


@without_xla
def test_allreduce_with_indexed_slices_among_tensors(mode, rank, size):
    def reduce(values, indices):
        slices = tf.IndexedSlices(values, indices, tf.constant([4, 2]))
        reduced = tfring.grouped_allreduce(
            [slices, values, slices, indices], prescale_factor=size
        )
        assert isinstance(reduced[0], tf.IndexedSlices)
        return [tf.convert_to_tensor(each) for each in reduced]

    values = tf.fill([2, 2], rank + 1.0)
    results = mode(reduce)(values, tf.constant([3, 0]))
    total = size * (size + 1) / 2
    sparse = np.array([[total] * 2, [0] * 2, [0] * 2, [total] * 2])
    for i, expected in (0, sparse), (1, np.full([2, 2], total)), (2, sparse):
        np.testing.assert_allclose(results[i], expected, rtol=1e-6)
    np.testing.assert_array_equal(results[3], [3 * size, 0])


def test_groups_of_nothing():
    for grouped in (
        tfring.grouped_allreduce,
        tfring.grouped_allgather,
        tfring.grouped_reducescatter,
    ):
        assert grouped([]) == []


def test_reducescatter_compresses(several_ranks, size):
    @tf.function
    def scatter(x):
        # 2049 has more bits than float16.
        return tfring.reducescatter(
            x, compression=tfring.Compression.fp16, op=tfring.Max
        )

    result = scatter(tf.fill([size], 2049.0))
    assert result.dtype == tf.float32
    np.testing.assert_array_equal(result, [2048.0])
