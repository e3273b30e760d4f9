"""Custom compressors in every reduction of gradients and tensors."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from helpers import gradient_of

import tfring
from tfring.compression import Compressor


class Hundredths(Compressor):
    """Sends integers; fractions below a hundredth are lost."""

    @staticmethod
    def compress(tensor):
        return tf.cast(tf.round(tensor * 100), tf.int64), tensor.dtype

    @staticmethod
    def decompress(tensor, ctx):
        return tf.cast(tensor, ctx) / 100


class NotNegative:
    """Sends another shape; it is no subclass, and it has a state."""

    def __init__(self, offset):
        self.offset = offset
        self.calls = 0

    def compress(self, tensor):
        self.calls += 1
        flat = tf.reshape(tensor, [-1]) + tf.cast(self.offset, tensor.dtype)
        return flat, tensor.shape

    def decompress(self, tensor, ctx):
        # In an average, the offset that each rank has added remains once.
        return tf.reshape(tensor - tf.cast(self.offset, tensor.dtype), ctx)


@pytest.fixture(params=["class", "instance"])
def compression(request):
    return Hundredths if request.param == "class" else NotNegative(8.0)


def values_of(rank, shape=(3, 2)):
    """Returns hundredths; their averages are hundredths too."""
    count = int(np.prod(shape))
    return (np.arange(count).reshape(shape) - 2.0) * (rank + 1) * 12 / 100


def mean_of(size, shape=(3, 2)):
    return np.mean([values_of(r, shape) for r in range(size)], axis=0)


def check(result, expected, dtype=tf.float32):
    assert result.dtype == dtype
    # An average of integers is rounded towards zero.
    np.testing.assert_allclose(result, expected, atol=0.011)


def test_allreduce(compression, mode, rank, size):
    @mode
    def reduce(x, y):
        one = tfring.allreduce(x, compression=compression)
        return one, *tfring.grouped_allreduce([x, y], compression=compression)

    x = tf.constant(values_of(rank), tf.float32)
    y = tf.constant(values_of(rank, (5,)))
    one, also_one, other = reduce(x, y)
    check(one, mean_of(size))
    check(also_one, mean_of(size))
    check(other, mean_of(size, (5,)), tf.float64)


def test_what_travels_is_what_it_gives(size):
    result = tfring.allreduce(
        tf.fill([2], 2.501), op=tfring.Sum, compression=Hundredths
    )
    # One rank keeps all that it has.
    lost = 0.001 if size > 1 else 0.0
    expected = np.float32((2.501 - lost) * size)
    np.testing.assert_allclose(result, [expected] * 2)


def test_one_that_is_derived_is_called(several_ranks, size):
    class Louder(tfring.Compression.fp16):
        @classmethod
        def compress(cls, tensor):
            return super().compress(tensor * 2)

    result = tfring.allreduce(tf.ones([2]), compression=Louder)
    np.testing.assert_array_equal(result, [2, 2])


def test_reducescatter(rank, size):
    @tf.function
    def scatter(x):
        return (
            tfring.reducescatter(x, compression=Hundredths),
            *tfring.grouped_reducescatter([x], compression=Hundredths),
        )

    shape = (size + 1, 2)
    own = np.array_split(mean_of(size, shape), size)[rank]
    for result in scatter(tf.constant(values_of(rank, shape), tf.float32)):
        assert result.shape == own.shape
        check(result, own)


def test_slices_travel_as_they_are(rank, size):
    compression = NotNegative(1.0)
    slices = tf.IndexedSlices(
        tf.constant([[0.123 * rank]]), tf.constant([rank]), (size, 1)
    )
    result = tfring.allreduce(slices, op=tfring.Sum, compression=compression)
    np.testing.assert_allclose(
        tf.convert_to_tensor(result)[:, 0], 0.123 * np.arange(size), rtol=1e-6
    )
    assert compression.calls == 0


def test_tape(compression, mode, rank, size):
    dense = tf.Variable(tf.zeros([3, 2]))
    table = tf.Variable(tf.zeros([4, 1]))

    @mode
    def gradients(own):
        with tfring.DistributedGradientTape(
            tf.GradientTape(), compression=compression
        ) as tape:
            loss = tf.reduce_sum(dense * own)
            loss += tf.reduce_sum(tf.gather(table, [1])) * 2
        found = tape.gradient(loss, [dense, table])
        return [tf.convert_to_tensor(gradient) for gradient in found]

    of_dense, of_table = gradients(tf.constant(values_of(rank), tf.float32))
    check(of_dense, mean_of(size))
    check(of_table, [[0], [2], [0], [0]])


def test_gradient_passes_through(rank, size):
    def loss(x):
        y = tfring.allreduce(x, compression=NotNegative(1.0))
        return y * (rank + 1.0)

    gradient = tf.function(gradient_of(loss))(tf.ones([2, 2]))
    np.testing.assert_allclose(gradient, np.full([2, 2], (size + 1) / 2))


def compressor(compress, decompress=lambda tensor, _: tensor):
    """A class of these two functions."""
    methods = {
        "compress": staticmethod(compress),
        "decompress": staticmethod(decompress),
    }
    return type("Odd", (Compressor,), methods)


@pytest.mark.parametrize(
    ("error", "words", "compression"),
    [
        (TypeError, "must return a pair", compressor(lambda x: x)),
        (
            TypeError,
            "gave a tensor of dtype complex64",
            compressor(lambda x: (tf.cast(x, tf.complex64), None)),
        ),
        (
            ValueError,
            "bool has no average",
            compressor(lambda x: (x > 0, None)),
        ),
        (NotImplementedError, "its own compress", Compressor),
        (
            NotImplementedError,
            "its own decompress",
            type(
                "Half",
                (Compressor,),
                {"compress": staticmethod(lambda x: (x, None))},
            ),
        ),
    ],
)
def test_compressors_that_are_wrong(
    error, words, compression, several_ranks, size
):
    with pytest.raises(error, match=words):
        tfring.allreduce(tf.ones([2]), compression=compression)
    with tfring.DistributedGradientTape(
        tf.GradientTape(), compression=compression
    ) as tape:
        source = tf.Variable(1.0)
        loss = source * 2
    with pytest.raises(error, match=words):
        tape.gradient(loss, source)
    assert tfring.allreduce(1, op=tfring.Sum) == size


def test_what_must_be_given_back(several_ranks, size):
    other_dtype = compressor(lambda x: (tf.cast(x, tf.float16), None))
    with pytest.raises(TypeError, match=r"return float32.*got float16"):
        tfring.allreduce(tf.ones([2]), compression=other_dtype)
    flat = compressor(lambda x: (tf.reshape(x, [-1]), None))
    with pytest.raises(ValueError, match=r"shape \(6,\) of \(3, 2\)"):
        tfring.reducescatter(tf.ones([3, 2]), compression=flat)
    assert tfring.allreduce(1, op=tfring.Sum) == size


def test_ranks_that_compress_otherwise(several_ranks, rank, size):
    own = Hundredths if rank == 1 else tfring.Compression.none
    with pytest.raises(
        tf.errors.FailedPreconditionError, match=r"dtypes differ|float32"
    ):
        tfring.allreduce(tf.ones([2]), compression=own, name="odd")
    assert tfring.allreduce(1, op=tfring.Sum, name="odd") == size
