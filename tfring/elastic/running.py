"""run: a training function, started again until it has ended."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from absl import logging

from tfring._core import runtime
from tfring._core.errors import HorovodInternalError, HostsUpdatedInterrupt
from tfring._ops.barrier import barrier
from tfring.elastic.state import State
from tfring.elastic.termination import goes_with_a_commit


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator: a training function that goes on when a rank is lost.

    All ranks take rank 0's state, and call the function. Where a collective
    fails in it because a rank is lost, each rank that is still there goes back
    to its last commit, and they start again among themselves: new ranks and
    size, rank 0's state, the callbacks of `State.register_reset_callbacks`, the
    function once more. The function returns when it has ended on all ranks.

    After a start process sets are gone: the function adds them again.
    A `tf.function` keeps the `tfring.size()` of the time when it was traced;
    the functions of a `TensorFlowKerasState`'s model are traced anew.

    Under `tfringrun --elastic` lost ranks and machines do not end the job:
    others are started, and join with the state of a rank that has most commits.
    Who waits to join is let in at a commit, by a new start of all. A worker
    that gets SIGTERM leaves with its next commit. Until the function has ended
    on all ranks, a worker that ends is lost, whatever its exit status; after
    that nobody is replaced or killed. See the guide on elastic training.

    Collective: every rank must call the function.

    Args:
        func: Its first argument is a `State`; the others are passed on.

    Returns:
        A function that returns what `func` does.

    Example:

    ```python
    import tensorflow as tf
    import tfring

    tfring.init()
    weight = tf.Variable(0.0)
    state = tfring.elastic.TensorFlowState([weight], step=0)

    @tfring.elastic.run
    def train(state):
        while state.step < 10:
            weight.assign_add(tfring.allreduce(1.0))
            state.step += 1
            state.commit()

    train(state)
    assert weight == 10
    ```
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        runtime.tell_of_training("begun")
        try:
            with goes_with_a_commit():
                result = _run(lambda: func(state, *args, **kwargs), state)
        except Exception:  # not SystemExit, which ends in the training
            runtime.tell_of_training("left")
            raise
        runtime.tell_of_training("done")
        return result

    return wrapper


def _run(train: Callable[[], Any], state: State) -> Any:
    skip_sync = False
    is_new_start = runtime.is_beside()
    while True:
        try:
            if is_new_start:
                runtime.restart(state.commits)
                is_new_start = False
                state.on_reset()
            if not skip_sync:
                state.share()
            result = train()
            # Not to be gone when another rank needs this one to start.
            barrier()
            return result
        except HostsUpdatedInterrupt as interrupt:
            # Others may join, who have no state.
            skip_sync = interrupt.skip_sync and not runtime.may_grow()
        except Exception as error:
            if is_new_start or not _is_of_the_job(error):
                raise
            # TensorFlow's error is a page about the graph.
            reason = runtime.reason_of_end() or error
            logging.warning("tfring: back to the last commit: %s", reason)
            state.restore()
            skip_sync = False
        is_new_start = True


def _is_of_the_job(error: Exception) -> bool:
    """Returns True if the job has failed, and not `func`."""
    return isinstance(error, HorovodInternalError) or (
        runtime.is_initialized() and runtime.reason_of_end() is not None
    )
