"""size_op, rank_op and others: topology that a graph reads when it runs.

They serve graphs that are built before `tfring.init`, or outlive a `shutdown`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tfring._core import runtime
from tfring._core.process_sets import by_id
from tfring._ops.autograph import not_converted
from tfring._ops.ordering import traced_for_xla

# Horovod's answers of `process_set_included_op`, besides 0 and 1.
_NOT_INITIALIZED = -1
_UNKNOWN_SET = -3


@not_converted
def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Returns the number of ranks of the job or of a process set.

    Args:
        process_set_id: The id of a `tfring.ProcessSet`; 0 is the whole job.
        name: The operation's name.

    Returns:
        An int32 scalar: in a graph, the value of `size()` when the graph runs.
        Under `jit_compile=True` it is the value when the function is traced.

    Raises:
        ValueError: There is no such process set, or `init` has not been called.
        tf.errors.InvalidArgumentError: The same, where a graph is run.

    Example:

    ```python
    import tensorflow as tf
    import tfring

    tfring.init()

    @tf.function
    def share(total):
        return total // tfring.size_op()

    assert share(tf.constant(8 * tfring.size())) == 8
    ```
    """
    return _when_run(lambda: by_id(process_set_id).size(), name or "size")


@not_converted
def local_size_op(name: str | None = None) -> tf.Tensor:
    """Returns the number of ranks on this machine, as `size_op` does."""
    return _when_run(runtime.local_size, name or "local_size")


@not_converted
def rank_op(name: str | None = None) -> tf.Tensor:
    """Returns this process's number in the job, as `size_op` does."""
    return _when_run(runtime.rank, name or "rank")


@not_converted
def local_rank_op(name: str | None = None) -> tf.Tensor:
    """Returns this process's number on its machine, as `size_op` does."""
    return _when_run(runtime.local_rank, name or "local_rank")


@not_converted
def process_set_included_op(
    process_set_id: int = 0, name: str | None = None
) -> tf.Tensor:
    """Tells whether this process is in a process set, as `size_op` does.

    Args:
        process_set_id: The id of a `tfring.ProcessSet`; 0 is the whole job.
        name: The operation's name.

    Returns:
        An int32 scalar: 1 if it is, 0 if not, -1 before `init`, and -3 if there
        is no such process set.
    """

    def included() -> int:
        if not runtime.is_initialized():
            return _NOT_INITIALIZED
        try:
            return int(by_id(process_set_id).included())
        except ValueError:
            return _UNKNOWN_SET

    return _when_run(included, name or "process_set_included")


def _when_run(ask: Callable[[], int], name: str) -> tf.Tensor:
    if tf.executing_eagerly() or traced_for_xla():
        return tf.constant(ask(), tf.int32, name=name)
    answer = tf.numpy_function(lambda: np.int32(ask()), [], tf.int32, name=name)
    return tf.ensure_shape(answer, [])
