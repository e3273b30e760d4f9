"""Tells losses when Keras evaluates a model, on however many ranks.

Ranks validate on as much data as each has, and one rank may evaluate alone. So
a loss that counts the elements of all ranks in training, `tfring.global_mean`,
must count this rank's alone there.
"""

from __future__ import annotations

import functools
from typing import Any

import keras

from tfring._ops.global_mean import counting_own_elements
from tfring._training.undistributed import trainer_class


@functools.cache
def watch_evaluations() -> None:
    """Makes losses count a rank's own elements where Keras evaluates."""
    if keras.backend.backend() != "tensorflow":
        return
    trainer = trainer_class()
    keras_make = trainer.make_test_function

    @functools.wraps(keras_make)
    def make_test_function(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = self.test_function
        result = keras_make(self, *args, **kwargs)
        if self.test_function is not before:
            self.test_function = _evaluating(self.test_function)
        return result

    trainer.make_test_function = make_test_function


def _evaluating(test_function: Any) -> Any:
    @functools.wraps(test_function)
    def evaluate(*args: Any, **kwargs: Any) -> Any:
        with counting_own_elements():  # while it is traced, or runs eagerly
            return test_function(*args, **kwargs)

    return evaluate
