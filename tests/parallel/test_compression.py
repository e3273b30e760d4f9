"""Compression on the wire: its error bound, in every use of it."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_same_on_all_ranks

import tfring
from tfring import Compression
from tfring.compression import Compressor

WIRES = {Compression.fp16: tf.float16, Compression.bf16: tf.bfloat16}
# Half the distance from 1 to the next number.
UNIT_ROUNDOFF = {Compression.fp16: 2.0**-11, Compression.bf16: 2.0**-8}
# Half the distance of subnormal numbers.
SMALLEST_STEP = {Compression.fp16: 2.0**-25, Compression.bf16: 2.0**-134}


@pytest.fixture(params=list(WIRES), ids=["fp16", "bf16"])
def compression(request):
    return request.param


def values_of(rank, dtype=np.float64, count=10_007):
    """Values of very different sizes and both signs, so that sums cancel."""
    generator = np.random.default_rng([7, rank])
    sizes = 2.0 ** generator.integers(-20, 8, count)
    return (generator.normal(size=count) * sizes).astype(dtype)


def check(result, arrays, op, compression):
    """Holds a result against float64, by the bound that Compression states."""
    stacked = np.stack(arrays).astype(np.float64)
    exact, magnitude = stacked.sum(axis=0), np.abs(stacked).sum(axis=0)
    if op is tfring.Average:
        exact, magnitude = exact / len(arrays), magnitude / len(arrays)
    roundings = len(arrays) + 1
    unit = UNIT_ROUNDOFF[compression]
    # The error of first order, and a bound on the higher orders.
    bound = roundings * unit * (1 + roundings * unit) * magnitude
    bound += roundings * SMALLEST_STEP[compression]
    error = np.abs(np.asarray(result, np.float64) - exact)
    assert np.all(error <= bound), np.max(error / bound)
    if len(arrays) > 1:
        # A result that was not rounded would show nothing about the bound.
        assert np.max(error / magnitude) > unit / 8
    assert_same_on_all_ranks([result])


@pytest.mark.parametrize(
    ("op", "dtype"), [(tfring.Average, np.float32), (tfring.Sum, np.float64)]
)
def test_error_of_allreduce(op, dtype, compression, rank, size):
    result = tfring.allreduce(
        tf.constant(values_of(rank, dtype)), op=op, compression=compression
    )
    assert result.dtype == dtype
    arrays = [values_of(r, dtype) for r in range(size)]
    if size == 1:
        np.testing.assert_array_equal(result, arrays[0])
        return
    check(result, arrays, op, compression)


class ByHand(Compressor):
    """TensorFlow casts, on either side of a collective of the wire's dtype."""

    def __init__(self, wire):
        self.wire = wire

    def compress(self, tensor):
        return tf.cast(tensor, self.wire), tensor.dtype

    def decompress(self, tensor, ctx):
        return tf.cast(tensor, ctx)


def tensors_to_round(rank, dtype):
    """Returns small and large tensors, and values at the limits of float16."""
    odd = np.array([0.0, -0.0, np.inf, 1e-7, 6e-8, 65519, 65520, 1 + 2**-11])
    return [
        tf.constant(values_of(rank, dtype, 40_009)),
        tf.constant(odd.astype(dtype)),
        tf.constant(values_of(rank, dtype, 1)[0]),
        tf.zeros([2, 0], dtype),
        tf.constant(values_of(rank, dtype, 5_003)),
    ]


def assert_as_cast_by_hand(results, expected, compression, size):
    """Results have the bits of a cast by hand on one or two ranks.

    On more ranks the order of additions depends on the other tensors in the
    message.
    """
    for result, other in zip(results, expected, strict=True):
        assert result.dtype == other.dtype
        if size <= 2:
            np.testing.assert_array_equal(result, other)
            continue
        finite = np.abs(other)[np.isfinite(other)]
        np.testing.assert_allclose(
            result,
            other,
            rtol=0,
            atol=8 * UNIT_ROUNDOFF[compression] * finite.max(initial=0),
        )


def test_is_a_cast_by_hand(compression, mode, rank, size):
    cases = [
        (tfring.Average, np.float32),
        (tfring.Sum, np.float64),
        (tfring.Max, np.float32),
        (tfring.Adasum, np.float64),
    ]
    factors = {"prescale_factor": 1 / 3, "postscale_factor": 0.7}
    own = [tensors_to_round(rank, dtype) for _, dtype in cases]
    own[-1] = [tf.where(tf.math.is_finite(t), t, 1) for t in own[-1]]

    def reduce(own, compression):
        results = []
        for (op, _), tensors in zip(cases, own, strict=True):
            options = {"op": op, "compression": compression, **factors}
            results += [
                tfring.allreduce(tensors[0], **options),
                *tfring.grouped_allreduce(tensors, **options),
            ]
        return results

    expected = reduce(own, ByHand(WIRES[compression]))
    results = mode(lambda own: reduce(own, compression))(own)
    if size > 1:
        assert_as_cast_by_hand(results, expected, compression, size)


@pytest.mark.parametrize(
    ("groups", "compression"), [(None, Compression.fp16), (2, Compression.bf16)]
)
def test_gradients_are_those_of_a_cast_by_hand(
    groups, compression, mode, rank, size
):
    own = tensors_to_round(rank, np.float32)
    weights = [tf.Variable(tf.zeros_like(tensor)) for tensor in own]

    def gradients(own, compression):
        with tfring.DistributedGradientTape(
            tf.GradientTape(),
            compression=compression,
            groups=groups,
            gradient_predivide_factor=3.0,
        ) as tape:
            loss = tf.add_n(
                [
                    tf.reduce_sum(weight * tf.stop_gradient(tensor))
                    for weight, tensor in zip(weights, own, strict=True)
                ]
            )
        return tape.gradient(loss, weights)

    expected = gradients(own, ByHand(WIRES[compression]))
    results = mode(lambda own: gradients(own, compression))(own)
    if size > 1:
        assert_as_cast_by_hand(results, expected, compression, size)


def test_group_of_many_dtypes(mode, rank, size):
    dtypes = [tf.float64, tf.int32, tf.float32, tf.bool, tf.int64, tf.float16]

    @mode
    def reduce(tensors):
        return tfring.grouped_allreduce(
            tensors, op=tfring.Sum, compression=Compression.bf16
        )

    # An int64 that no float can hold must not be cast.
    large = 2**53 + 1
    results = reduce(
        [
            tf.cast(large if dtype == tf.int64 else rank + 1, dtype)
            for dtype in dtypes
        ]
    )
    total = size * (size + 1) // 2
    expected = [total, total, total, True, large * size, total]
    assert [result.dtype for result in results] == dtypes
    assert [result.numpy() for result in results] == expected


def test_indexed_slices(compression, rank, size):
    slices = tf.IndexedSlices(
        tf.fill([1, 2], 1 + 2.0**-20), tf.constant([rank]), tf.constant([5, 2])
    )
    result = tfring.allreduce(slices, op=tfring.Sum, compression=compression)
    assert result.values.dtype == tf.float32
    assert result.indices.numpy().tolist() == list(range(size))
    expected = 1.0 if size > 1 else 1 + 2.0**-20
    np.testing.assert_array_equal(result.values, np.full([size, 2], expected))
