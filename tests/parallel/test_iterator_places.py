"""callbacks.Checkpoint: the iterator of a `tf.data.Dataset` is restored."""

import numpy as np
import pytest
import tensorflow as tf
from counted_rows import BATCH, EPOCHS, ROWS, count
from helpers import small_model, thorough

import tfring


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("unseeded", {"steps_per_execution": 2}),
        ("unseeded, repeated", {}),
        thorough("unseeded", {}),
        thorough("unseeded", {"jit_compile": True}),
        thorough("unseeded, unknown", {}),
        thorough("unseeded, repeated", {"steps_per_execution": 3}),
    ],
)
@pytest.mark.parametrize("epoch", [1, thorough(0)])
def test_an_order_without_a_seed_goes_on(
    rank, size, shared_path, caplog, kind, options, epoch
):
    """Rows would be repeated and left out if batches were read again."""
    count(kind, shared_path, (epoch, 6), rank, size, **options)
    counts = count(kind, shared_path, (EPOCHS, 0), rank, size, **options)
    if "repeated" in kind:
        # The rows are passed over, whatever the epochs of `fit` are. Keras ends
        # an epoch with a whole execution.
        executed = options.get("steps_per_execution", 1)
        steps = -(-(ROWS // size // BATCH) // executed) * executed
        assert counts.sum() == EPOCHS * steps * BATCH * size
        assert counts.max() - counts.min() <= 1
    else:
        np.testing.assert_array_equal(counts, EPOCHS)
    assert "read again" not in caplog.text


def test_an_iterator_without_a_state_reads_again(
    rank, size, shared_path, caplog
):
    count("unseeded, function", shared_path, (1, 6), rank, size)
    why = "its iterator has no state: PyFunc is stateful"
    assert caplog.text.count(why) == (rank == 0)
    counts = count("unseeded, function", shared_path, (EPOCHS, 0), rank, size)
    assert counts.sum() == EPOCHS * ROWS
    assert ("6 batches of the tf.data.Dataset are read" in caplog.text) == (
        rank == 0
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("unseeded, function", "is another than that of the checkpoint"),
        ("unseeded, smaller", "6 batches of the tf.data.Dataset are read"),
    ],
)
def test_another_dataset_reads_again(
    rank, size, shared_path, caplog, kind, why
):
    """For one, a shuffle with a smaller buffer could not take the state."""
    count("unseeded", shared_path, (1, 6), rank, size)
    counts = count(kind, shared_path, (EPOCHS, 0), rank, size)
    assert counts.sum() == EPOCHS * ROWS
    assert (why in caplog.text) == (rank == 0)


def draw(iterator, saved, steps):
    """Returns the next batches of an iterator, which it counts as steps."""
    drawn = []
    for _ in range(steps):
        drawn += next(iterator).numpy().tolist()
        saved.step()
    return drawn


def test_a_loop_goes_on_with_its_iterator(rank, size, shared_path):
    def begin():
        rows = tf.data.Dataset.range(40).shuffle(40).repeat().batch(4)
        iterator, model = iter(rows), small_model()
        saved = tfring.Checkpoint(
            shared_path, model, every_steps=1, iterator=iterator
        )
        return iterator, saved, saved.restore()

    iterator, saved, is_restored = begin()
    assert not is_restored
    drawn = draw(iterator, saved, 7)
    saved.close()
    rest = draw(iterator, saved, 6)
    saved.close()
    # No seed gives these batches again: only the saved state does.
    other, saved, is_restored = begin()
    assert is_restored
    assert saved.batch == 13
    assert sorted(drawn + rest[:12]) == list(range(40))
    following = draw(other, saved, 7)
    saved.close()
    assert sorted(rest[12:] + following) == list(range(40))


def test_iterators_that_are_refused(shared_path):
    model = small_model()
    draws = tf.data.Dataset.range(3).map(lambda each: tf.random.uniform([]))
    saved = tfring.Checkpoint(shared_path, model, iterator=iter(draws))
    with pytest.raises(NotImplementedError, match="RandomUniform is stateful"):
        saved.restore()
    with pytest.raises(TypeError, match="iterator must be the iterator"):
        tfring.Checkpoint(shared_path, model, iterator=draws)
    state = tfring.elastic.TensorFlowKerasState(model)
    with pytest.raises(ValueError, match="in a loop of tfring"):
        tfring.Checkpoint(shared_path, model, iterator=iter(draws), state=state)
