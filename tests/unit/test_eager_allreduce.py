"""An eager allreduce of one tensor, which is one operation where it can be."""

import numpy as np
import pytest
import tensorflow as tf

import tfring
from tfring._ops import chains
from tfring._ops.reductions import SUPPORTED_DTYPES

IN_ONE = "TfringAllreduce"


@pytest.fixture(autouse=True)
def joined():
    tfring.init()
    yield
    tfring.shutdown()


@pytest.fixture
def operations(monkeypatch):
    """The operations of tfring's that have run, by their names."""
    ran = []
    ops = chains.native.ops()

    class Recorded:
        def __getattr__(self, name):
            ran.append("".join(map(str.capitalize, name.split("_"))))
            return getattr(ops, name)

    monkeypatch.setattr(chains.native, "ops", Recorded)
    return ran


class Halved(tfring.compression.Compressor):
    __hash__ = None

    def compress(self, tensor):
        return tensor / 2, None

    def decompress(self, tensor, ctx):
        return tensor * 2


def test_is_one_operation(operations):
    for dtype in sorted(SUPPORTED_DTYPES, key=str):
        x = tf.cast([0, 1, 1], dtype)
        for options in (
            {"op": tfring.Max},
            {"op": tfring.Sum, "name": "x"},
            {"op": tfring.Sum, "compression": tfring.Compression.fp16},
        ):
            for _ in range(2):
                result = tfring.allreduce(x, **options)
                assert result.dtype == dtype
                np.testing.assert_array_equal(result, x)
    assert set(operations) == {IN_ONE}


@pytest.mark.parametrize(
    "call",
    [
        lambda x: tfring.allreduce(tf.cast(x, tf.int32)),
        lambda x: tfring.allreduce(x, device_dense="/cpu:0"),
        lambda x: tfring.allreduce(x, average=True),
        lambda x: tfring.allreduce(tf.IndexedSlices(x, tf.range(2))).values,
        lambda x: tf.function(tfring.allreduce)(x),
    ],
)
@pytest.mark.filterwarnings("ignore:allreduce. average")
def test_is_more_where_there_is_more_to_do(operations, call):
    x = tf.constant([4.0, 6.0])
    for _ in range(2):
        np.testing.assert_array_equal(call(x), x)
    assert operations
    assert IN_ONE not in operations


def test_a_compressor_that_is_no_key():
    x = tf.constant([4.0, 6.0])
    for _ in range(2):
        result = tfring.allreduce(x, compression=Halved())
        np.testing.assert_array_equal(result, x)


def test_factors_and_their_types(operations):
    x = tf.constant([4.0, 6.0])
    for factor in (2, np.float32(2), 2.0):
        result = tfring.allreduce(x, op=tfring.Sum, prescale_factor=factor)
        np.testing.assert_array_equal(result, 2 * x)
    # All 64 bits arrive.
    third = tfring.allreduce(
        tf.constant([3.0], tf.float64), postscale_factor=1 / 3
    )
    assert third.numpy() == 3.0 * (1 / 3)
    assert set(operations) == {IN_ONE}


def test_after_the_job():
    assert tfring.allreduce(tf.ones([])) == 1.0
    tfring.shutdown()
    with pytest.raises(tfring.NotInitializedError):
        tfring.allreduce(tf.ones([]))
    tfring.init()
    assert tfring.allreduce(tf.ones([])) == 1.0
