"""The exceptions of tfring's own.

What goes wrong inside a collective is one of TensorFlow's errors:
`tf.errors.FailedPreconditionError` when the ranks did not agree, for example.
"""


class NotInitializedError(ValueError):
    """tfring was asked for something before `tfring.init()`."""
