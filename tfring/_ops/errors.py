"""Errors of arguments that belong to TensorFlow's kinds and to Python's."""

from __future__ import annotations

import tensorflow as tf


class InvalidArgumentError(tf.errors.InvalidArgumentError, ValueError):
    """An argument that no collective can take, found before it starts.

    It is a `ValueError`. It is also a `tf.errors.InvalidArgumentError`, because
    Horovod's operations raise that for such an argument.

    Args:
        message: The text of the error.
    """

    def __init__(self, message: str) -> None:
        super().__init__(None, None, message)
