"""join: a rank without more data lets the job continue without it."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfring._core import runtime
from tfring._ops import chains
from tfring._ops.autograph import not_converted


@not_converted
def join() -> Any:
    """Declares that this rank has no more data; returns when no rank has any.

    Use it if ranks have different amounts of data. Until all ranks have joined,
    collectives continue without this rank:

    - `allreduce` and `grouped_allreduce`, and so the gradients of an optimizer
      or a tape: it contributes nothing, and `Average` divides by the number of
      ranks that contribute.
    - `allgather`: it has no rows. `broadcast`: it receives nothing.
    - `barrier`: it does not wait for this rank.
    - `reducescatter`, `alltoall` and a `broadcast` from this rank have no
      result; they raise `tf.errors.FailedPreconditionError` on the ranks that
      call them, and the job continues.

    Afterwards the rank that joined last has the newest weights: broadcast them
    from there. `tfring.callbacks.JoinCallback` does all of that in `model.fit`.

    Collective: every rank must call it, when its own data ends. Not supported
    under `jit_compile=True`.

    Returns:
        The rank that joined last, which has taken part in every collective: an
        int, in a `tf.function` a scalar tensor of dtype int32.

    Raises:
        NotImplementedError: It is being traced for XLA.
        ValueError: `init` has not been called.

    Example:
    ```python
    import tensorflow as tf
    import tfring

    tfring.init()
    for batch in range(tfring.rank() + 1):
        mean = tfring.allreduce(tf.constant(float(batch)))
        assert mean == batch
    last = tfring.join()
    assert tfring.broadcast(tf.constant(batch), last) == tfring.size() - 1
    ```
    """
    runtime.check_joined()
    last_rank = tf.cast(chains.join(), tf.int32)
    return int(last_rank) if tf.executing_eagerly() else last_rank
