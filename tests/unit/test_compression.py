"""Compression casts some tensors, and leaves all other tensors alone."""

import pytest
import tensorflow as tf

import tfring
from tfring import Compression
from tfring._ops.reductions import SUPPORTED_DTYPES

pytestmark = pytest.mark.usefixtures("initialized")
BUILT_IN = [Compression.none, Compression.fp16, Compression.bf16]


@pytest.mark.parametrize(
    ("compression", "wire"),
    [(Compression.fp16, tf.float16), (Compression.bf16, tf.bfloat16)],
)
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_larger_floats_are_cast_and_cast_back(compression, wire, dtype):
    tensor = tf.constant([1.0, 1 + 2**-5, 1 + 2**-20], dtype)
    compressed, before = compression.compress(tensor)
    assert compressed.dtype == wire
    again = compression.decompress(compressed, before)
    assert again.dtype == dtype
    assert again.numpy().tolist() == [1.0, 1 + 2**-5, 1.0]


@pytest.mark.parametrize("compression", BUILT_IN)
def test_all_others_are_left_alone(compression):
    larger = {tf.float32, tf.float64}
    for dtype in SUPPORTED_DTYPES:
        if dtype not in larger or compression is Compression.none:
            tensor = tf.cast(tf.constant([0, 1]), dtype)
            compressed, before = compression.compress(tensor)
            assert compressed is tensor
            assert compression.decompress(compressed, before) is tensor


@pytest.mark.parametrize("compression", BUILT_IN)
def test_one_rank_keeps_all_its_bits(compression):
    tensor = tf.constant([1 + 2**-20])
    result = tfring.allreduce(tensor, compression=compression)
    assert result.numpy()[0] == 1 + 2**-20


def test_what_is_no_compression_is_refused():
    for call, given in (
        (tfring.allreduce, tf.ones([1])),
        (tfring.grouped_allreduce, [tf.ones([1])]),
    ):
        match = f"^{call.__name__}: .*got 'fp16'"
        with pytest.raises(TypeError, match=match):
            call(given, compression="fp16")


def test_power_sgd_is_of_gradients_alone():
    for call in tfring.allreduce, tfring.reducescatter:
        match = f"^{call.__name__}: .*DistributedOptimizer"
        with pytest.raises(TypeError, match=match):
            call(tf.ones([1]), compression=tfring.PowerSGD())


@pytest.mark.parametrize(
    "arguments", [{"rank": 0}, {"rank": 1.5}, {"rank": True}, {"start": -1}]
)
def test_numbers_of_power_sgd(arguments):
    [name] = arguments
    with pytest.raises(ValueError, match=f"PowerSGD: {name} must be a whole"):
        tfring.PowerSGD(**arguments)
