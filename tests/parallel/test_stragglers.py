"""A rank that the others wait for is named while they train."""

import re
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import compiled, job_with, thorough

import tfring

pytestmark = pytest.mark.usefixtures("several_ranks")

SLOW_SECONDS = 0.05
MOST_STEPS = 600


@pytest.fixture
def looks_each_second(rank):
    """A job that compares its ranks each second, as rank 0 asks for."""
    with job_with(**({"TFRING_STRAGGLERS": "1"} if rank == 0 else {})):
        yield


def dataset(seconds):
    """Returns a dataset that takes `seconds` for each row."""

    def rows():
        while True:
            time.sleep(seconds)
            yield np.ones((4, 3), "float32"), np.ones((4, 1), "float32")

    return tf.data.Dataset.from_generator(
        rows,
        output_signature=(tf.TensorSpec((4, 3)), tf.TensorSpec((4, 1))),
    )


class Until(keras.callbacks.Callback):
    """Ends a training when a condition holds; and keeps this rank."""

    def __init__(self, condition, seconds):
        super().__init__()
        self.condition, self.seconds = condition, seconds

    def on_train_batch_begin(self, batch, logs=None):
        time.sleep(self.seconds)

    def on_train_batch_end(self, batch, logs=None):
        if self.condition():
            self.model.stop_training = True


@pytest.mark.parametrize(
    ("cause", "jit_compile"),
    [
        ("input", True),
        ("computation", False),
        thorough("input", False),
        thorough("computation", True),
    ],
)
def test_a_slow_rank_is_named(
    rank, size, caplog, looks_each_second, cause, jit_compile
):
    slow = SLOW_SECONDS * (rank == size - 1)

    def is_named():
        """The job may be told of another rank before, on a busy machine."""
        expected = rf"rank {size - 1} \(.* is behind.* its {cause}"
        return re.search(expected, caplog.text) is not None

    model = compiled(
        tfring.DistributedOptimizer("sgd"),
        keras.Input((3,)),
        keras.layers.Dense(1),
        jit_compile=jit_compile,
    )
    model.fit(
        dataset(slow * (cause == "input")),
        steps_per_epoch=MOST_STEPS,
        verbose=0,
        callbacks=[
            tfring.callbacks.BroadcastGlobalVariablesCallback(0),
            Until(is_named, slow * (cause == "computation")),
        ],
    )
    assert is_named() == (rank == 0)
