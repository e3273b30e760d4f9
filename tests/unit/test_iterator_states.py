"""The states of iterators of `tf.data`."""

import numpy as np
import pytest
import tensorflow as tf

from tfring._checkpoint.files import Files
from tfring._keras import iterator_states


def shuffled():
    return tf.data.Dataset.range(40).shuffle(40).batch(4).prefetch(1)


def test_the_rest_of_an_order_without_a_seed(tmp_path):
    iterator = iter(shuffled())
    begin = [next(iterator).numpy().tolist() for _ in range(3)]
    state = iterator_states.state_of(iterator)
    files = Files()
    files.write_tensors(tmp_path / "part", {"iterator": state, "x": tf.ones(3)})
    # What else is in the file can be read without tfring.
    reader = tf.train.load_checkpoint(str(tmp_path / "part"))
    assert list(reader.get_tensor("x")) == [1, 1, 1]
    rest = [batch.numpy().tolist() for batch in iterator]
    other = iter(shuffled())
    iterator_states.restore(
        other, files.read_variant(tmp_path / "part", "iterator")
    )
    assert [batch.numpy().tolist() for batch in other] == rest
    assert sorted(np.concatenate(begin + rest)) == list(range(40))
    with pytest.raises(OSError, match="part, 'y'"):
        files.read_variant(tmp_path / "part", "y")


def test_an_iterator_of_another_dataset():
    state = iterator_states.state_of(iter(shuffled()))
    with pytest.raises(ValueError, match="dataset definition has not changed"):
        iterator_states.restore(iter(tf.data.Dataset.range(3)), state)


@pytest.mark.parametrize(
    ("dataset", "reason"),
    [
        (
            tf.data.Dataset.from_generator(
                lambda: iter([1, 2]),
                output_signature=tf.TensorSpec([], "int32"),
            ),
            "^PyFunc is stateful$",
        ),
        (
            tf.data.Dataset.range(3).map(lambda each: tf.random.uniform([])),
            "^RandomUniform is stateful$",
        ),
        ([1, 2], "a list_iterator is no tf.data.Iterator"),
    ],
)
def test_what_has_no_state(dataset, reason):
    with pytest.raises(NotImplementedError, match=reason):
        iterator_states.state_of(iter(dataset))


def test_a_state_outside_of_the_iterator_is_left_to_the_user():
    """The policy IGNORE, an option of TensorFlow's, allows such a state."""
    options = tf.data.Options()
    policy = tf.data.experimental.ExternalStatePolicy.IGNORE
    options.experimental_external_state_policy = policy
    draws = tf.data.Dataset.range(9).map(lambda each: tf.random.uniform([]))
    iterator = iter(draws.with_options(options))
    next(iterator)
    assert iterator_states.state_of(iterator).dtype == tf.variant
