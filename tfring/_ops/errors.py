"""Errors of arguments that are both TensorFlow's and Python's."""

from __future__ import annotations

import tensorflow as tf


class InvalidArgumentError(tf.errors.InvalidArgumentError, ValueError):
    """An invalid argument that is found before a collective starts.

    It is a `ValueError`. It is also a `tf.errors.InvalidArgumentError`, because
    Horovod's operations raise that for such an argument.

    Args:
        message: The text of the error.
    """

    def __init__(self, message: str) -> None:
        super().__init__(None, None, message)
