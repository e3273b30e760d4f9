"""broadcast_variables: every dtype, from any rank."""

from __future__ import annotations

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring
from tfring._core import runtime

# The engine does not know the last two dtypes: they travel as bytes.
DTYPES = [dtype.name for dtype in helpers.DTYPES]
DTYPES += ["complex64", "float8_e4m3fn"]


def values_of(rank, dtype):
    return [
        tf.cast(tf.constant(array, tf.float32) % 2 ** rank.bit_length(), dtype)
        for array in (rank + 1, [[rank, 1, 0], [1, 0, rank]], np.zeros((0, 2)))
    ]


@pytest.mark.parametrize("limit_bytes", [8, 64 << 20])
def test_every_dtype_from_the_last_rank(limit_bytes, rank, size, monkeypatch):
    monkeypatch.setattr(runtime, "fusion_threshold_bytes", lambda: limit_bytes)
    variables = [
        tf.Variable(value)
        for dtype in DTYPES
        for value in values_of(rank, dtype)
    ]
    tfring.broadcast_variables(variables, root_rank=size - 1)
    expected = [
        value for dtype in DTYPES for value in values_of(size - 1, dtype)
    ]
    for variable, value in zip(variables, expected, strict=True):
        assert variable.dtype == value.dtype
        assert variable.shape == value.shape
        np.testing.assert_array_equal(variable.numpy(), value.numpy())


def test_nothing_to_broadcast():
    tfring.broadcast_variables([])


def test_variables_that_differ_are_named_on_every_rank(
    rank, several_ranks, size
):
    units = 4 if rank == size - 1 else 3
    same = tf.Variable(float(rank), name="same")
    other = tf.Variable(tf.zeros([units]), name="head")
    with pytest.raises(tf.errors.FailedPreconditionError) as error:
        tfring.broadcast_variables([same, other])
    for part in ("head", "(3,)", "(4,)", f"ank {size - 1}"):
        assert part in str(error.value)
    # The job continues.
    tfring.broadcast_variables([same])
    assert same.numpy() == 0.0


def test_broadcast_in_place_and_returns(mode, rank, size):
    dtypes = ["float32", "int32", "bool", "complex64", "float32"]
    if mode is helpers.MODES["xla"]:
        dtypes.remove("complex64")  # which XLA casts to no bytes
        # TensorFlow keeps int32 variables on the host even with a GPU, and
        # XLA's GPU code cannot reach them there.
        dtypes[dtypes.index("int32")] = "int64"
    variables = [tf.Variable(values_of(rank, dtype)[1]) for dtype in dtypes]
    variables.append(keras.Variable([float(rank)]))

    @mode
    def broadcast():
        values = tfring.broadcast_(variables, size - 1, name="in_place")
        variables[0].assign_add(variables[0])
        return values

    values = broadcast()
    expected = [values_of(size - 1, dtype)[1] for dtype in dtypes]
    expected.append(tf.constant([size - 1.0]))
    for value, correct in zip(values, expected, strict=True):
        assert value.dtype == correct.dtype
        np.testing.assert_array_equal(value, correct)
    helpers.assert_each_equal(variables[1:], expected[1:])
    np.testing.assert_array_equal(variables[0], expected[0] * 2)
