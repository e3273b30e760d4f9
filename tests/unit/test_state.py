"""broadcast_variables: what it refuses before anything is sent."""

import pytest
import tensorflow as tf

import tfring

pytestmark = pytest.mark.usefixtures("initialized")


def test_root_rank_must_exist():
    for root_rank in (-1, 1):
        with pytest.raises(ValueError, match=r"root_rank must be in \[0, 1\)"):
            tfring.broadcast_variables([tf.Variable(0.0)], root_rank)


def test_tensors_are_refused():
    with pytest.raises(TypeError, match="variables, got"):
        tfring.broadcast_variables([tf.constant(0.0)])


def test_strings_are_refused_by_name():
    with pytest.raises(TypeError, match="'label:0' holds strings"):
        tfring.broadcast_variables([tf.Variable("text", name="label")])


def test_broadcast_returns_the_values_also_on_one_rank():
    variable = tf.Variable([1.0, 2.0])
    [value] = tfring.broadcast_([variable], 0)
    assert value.numpy().tolist() == variable.numpy().tolist() == [1.0, 2.0]
