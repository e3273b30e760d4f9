"""run: a training function, started again until it has ended."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
from absl import logging

from tfring._core import runtime
from tfring._core.errors import HorovodInternalError, HostsUpdatedInterrupt
from tfring._core.launcher_link import Over
from tfring._ops.barrier import barrier
from tfring.elastic.state import LostStateError, State
from tfring.elastic.termination import goes_with_a_commit

# The longest result, as JSON, that the launcher keeps for later workers.
_LONGEST_RESULT_BYTES = 1 << 20
# Why later workers cannot have the result of an ended function; "" if they can.
_missing_result = ""


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a training function, which then survives lost ranks.

    All ranks take rank 0's state, and call the function. If a rank is lost,
    collectives fail in it. The remaining ranks then restore their last commit
    and start again: with new ranks and size, the callbacks of
    `State.register_reset_callbacks`, rank 0's state, and another call of the
    function. It returns when it has ended on all ranks.

    A start removes process sets, so the function must add them again. A
    `tf.function` keeps the `tfring.size()` of the time when it was traced; the
    functions of a `TensorFlowKerasState`'s model are traced again.

    Under `tfringrun --elastic` lost ranks and machines are replaced, as the
    guide on elastic training says. A new worker joins at a commit, and all
    ranks start again. A script may call several such functions in turn: a
    worker that joins later skips functions that are over; they return the
    result of the earlier ranks.

    Collective: every rank must call the function.

    Args:
        func: Its first argument is a `State`; all arguments are passed on. If
            the script has several such functions, it must return None or a
            value that JSON can hold in 1 MiB: a worker that joins in a later
            one needs it, and fails without.

    Returns:
        A function with the result of `func`.

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
        global _missing_result
        _warn_unless_elastic()
        _warn_of_missing_result()
        runtime.tell_of_training("begun", function=func.__qualname__)
        runtime.tell_of_state(state._describe)
        try:
            with goes_with_a_commit():
                result = _run(lambda: func(state, *args, **kwargs), state)
        except Exception:  # SystemExit ends the worker within the training.
            runtime.tell_of_training("left")
            raise
        answer, _missing_result = _as_json(result)
        runtime.tell_of_training("done", result=answer)
        return result

    return wrapper


def _warn_unless_elastic() -> None:
    if runtime.may_grow() or runtime.size() == 1 or runtime.rank() > 0:
        return
    logging.log_first_n(
        logging.WARNING,
        "tfring: this job is not elastic: it ends with a lost rank. Start it "
        "with tfringrun --elastic.",
        1,
    )


# 0 once this rank has ended a function. It then has the job's state at the
# start of the next function, although no commit contains that state.
_least_commits = -1


def _run(train: Callable[[], Any], state: State) -> Any:
    global _least_commits
    skip_sync = goes_back = has_ended = False
    is_new_start = runtime.is_beside()
    result = None
    while True:
        try:
            if is_new_start:
                over = runtime.restart(max(state._commits, _least_commits))
                if over is not None:
                    return result if has_ended else _result_of_others(over)
                is_new_start = False
                if goes_back:
                    state.restore()
                state.on_reset()
            if not skip_sync:
                state.share()
            has_ended = False
            result = train()
            has_ended, _least_commits = True, 0
            # A rank must not leave while another one needs it to start.
            barrier()
            return result
        except HostsUpdatedInterrupt as interrupt:
            # New ranks, which have no state, may join.
            skip_sync = interrupt.skip_sync and not runtime.may_grow()
            goes_back = False
        except Exception as error:
            if is_new_start or not _is_of_the_job(error):
                raise
            # TensorFlow's own error is a page of text about the graph.
            reason = runtime.reason_of_end() or error
            logging.warning("tfring: back to the last commit: %s", reason)
            goes_back = True
            skip_sync = False
        is_new_start = True


def _warn_of_missing_result() -> None:
    if _missing_result and runtime.may_grow() and runtime.rank() == 0:
        logging.warning(
            "tfring: workers that join from now on will fail: an earlier "
            "function of tfring.elastic.run has ended, and %s.",
            _missing_result,
        )


def _as_json(result: Any) -> tuple[str, str]:
    """Returns an answer to workers that join later, and why it has no result.

    The answer is JSON: `{"result": ...}`, or `{"missing": why}`.
    """
    try:
        text = json.dumps({"result": result}, default=_as_list)
        missing = (
            f"its result has {len(text)} bytes as JSON, more than "
            f"{_LONGEST_RESULT_BYTES}"
        )
    # Deeply nested lists raise RecursionError.
    except (TypeError, ValueError, RecursionError):
        text, missing = "", "JSON cannot hold its result"
    if 0 < len(text) <= _LONGEST_RESULT_BYTES:
        return text, ""
    return json.dumps({"missing": missing}), missing


def _as_list(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError


def _result_of_others(over: Over) -> Any:
    answer = json.loads(over.result)
    if "missing" in answer:
        raise RuntimeError(
            "tfring.elastic.run: the others have ended this function before "
            f"this worker came, and {answer['missing']}. Return None, numbers, "
            "strings, or lists and dicts of these, of at most 1 MiB."
        )
    return answer["result"]


def _is_of_the_job(error: Exception) -> bool:
    """Returns True if the error is the job's, and not one of `func`."""
    if isinstance(error, LostStateError):  # it is raised on every rank
        return False
    return isinstance(error, HorovodInternalError) or (
        runtime.is_initialized() and runtime.reason_of_end() is not None
    )
