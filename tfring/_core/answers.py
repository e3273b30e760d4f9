"""What functions have been told of the job while they were traced.

Note [Traces that outlive a job]: what a function asks while it is traced, such
as `size()`, is a constant of its graph. In the next job that graph is right if
all that was asked is answered there as before; then there is no need to trace
it again, which may take longer than all else that a new start takes. So what
tells of the job is `noted`, also where it is asked eagerly in the middle of a
trace. By what the engine knows when a graph runs, such as the number by which
it divides an average, nothing is noted: that is in no graph. And who needs to
know less asks for less: `is_alone()` has the same answer for all sizes but one,
and where ranks may join for that, too.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

_Answer = TypeVar("_Answer", bound=Hashable)

# Questions, and their answers at that time.
_noted: set[tuple[Callable[[], Hashable], Hashable]] = set()
_times_outdated = 0


def noted(question: Callable[[], _Answer]) -> Callable[[], _Answer]:
    """A decorator: a question about the job, whose answers in traces count."""

    @functools.wraps(question)
    def ask() -> _Answer:
        answer = question()
        if is_traced():
            _noted.add((question, answer))
        return answer

    return ask


def is_traced() -> bool:
    """Tells if the caller may leave constants in a graph.

    Also in an `init_scope` of a function that is being traced, which is eager.
    """
    tf: Any = sys.modules.get("tensorflow")
    if tf is None:
        return False
    return bool(
        not tf.executing_eagerly()
        or tf.compat.v1.get_default_graph().building_function
    )


def compare() -> None:
    """Asks all questions again, in a new job: `times_outdated` tells more."""
    global _times_outdated
    if any(question() != answer for question, answer in list(_noted)):
        _noted.clear()
        _times_outdated += 1


def times_outdated() -> int:
    """In how many new jobs some answer was another than in a trace.

    What was traced before such a job is to be traced again.
    """
    return _times_outdated
