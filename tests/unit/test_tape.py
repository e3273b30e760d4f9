"""DistributedGradientTape: what it wraps, and what it passes on."""

import pytest
import tensorflow as tf

import tfring

pytestmark = pytest.mark.usefixtures("initialized")


def test_wraps_a_tape_that_has_recorded():
    source = tf.Variable(3.0)
    with tf.GradientTape() as plain:
        target = source * source
    tape = tfring.DistributedGradientTape(plain)
    assert float(tape.gradient(target, source)) == 6.0


def test_passes_on_what_a_tape_can_do():
    source = tf.constant(3.0)
    variable = tf.Variable(1.0)
    with tfring.DistributedGradientTape(tf.GradientTape()) as tape:
        tape.watch(source)
        target = source * source * variable
        with tape.stop_recording():
            unseen = target + 1.0
    assert [v is variable for v in tape.watched_variables()] == [True]
    assert tape.gradient([target, unseen], source) == 6.0


def test_refuses_what_is_no_tape():
    with pytest.raises(TypeError, match=r"tf\.GradientTape, got"):
        tfring.DistributedGradientTape(tf.GradientTape)


def test_refuses_to_wrap_twice():
    tape = tfring.DistributedGradientTape(tf.GradientTape())
    with pytest.raises(ValueError, match="distributed already"):
        tfring.DistributedGradientTape(tape)
