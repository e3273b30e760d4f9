"""When a checkpoint is due, by steps, by time and by signals."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

# Ranks agree about as often as this, and not in each step of a fast training.
_VOTE_SECONDS = 0.1
_MOST_STEPS_BETWEEN_VOTES = 1000


class Schedule:
    """When this rank wants a checkpoint; the ranks then agree.

    Args:
        every_steps: The number of steps between checkpoints, or None.
        every_minutes: The time between checkpoints, or None.
        clock: Returns the time in seconds.

    Attributes:
        last_step: The step of the last checkpoint, or the first counted step.
    """

    def __init__(
        self,
        every_steps: int | None,
        every_minutes: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._every_steps = every_steps
        self._every_minutes = every_minutes
        self._clock = clock
        self.last_step = 0
        self._last_at = clock()
        self._voted_at = (0, self._last_at)

    def begin(self, step: int) -> None:
        """Counts from this step and this time on."""
        self.last_step, self._last_at = step, self._clock()
        self._voted_at = (step, self._last_at)

    def go_on(self, step: int, last_step: int) -> None:
        """Goes on at a step with other ranks, which have the same last step.

        The time since the last checkpoint remains each rank's own.
        """
        self.last_step = last_step
        self._voted_at = (step, self._clock())

    def is_due_by_steps(self, step: int) -> bool:
        """Tells if a checkpoint is due; all ranks get the same result."""
        return (
            self._every_steps is not None
            and step - self.last_step >= self._every_steps
        )

    def is_due_by_time(self) -> bool:
        """Tells if a checkpoint is due by this rank's clock."""
        return (
            self._every_minutes is not None
            and self._clock() - self._last_at >= 60 * self._every_minutes
        )

    def steps_until_vote(self, step: int) -> int:
        """Returns after how many steps the ranks should agree again."""
        before, began = self._voted_at
        now = self._clock()
        self._voted_at = (step, now)
        seconds = (now - began) / max(step - before, 1)
        steps = math.ceil(_VOTE_SECONDS / max(seconds, 1e-9))
        return min(max(steps, 1), _MOST_STEPS_BETWEEN_VOTES)


class Signals:
    """Notes the signals that ask a job to save and to end.

    Args:
        names: The signals' names, such as "SIGUSR1".

    Raises:
        ValueError: There is no such signal, or it cannot be handled.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._numbers = [_number(name) for name in names]
        self._before: dict[int, Any] = {}
        self.received = 0

    def install(self) -> None:
        """Handles the signals from now on, in the main thread alone."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in self._numbers:
            self._before.setdefault(number, signal.signal(number, self._note))

    def restore(self) -> None:
        """Restores the signals' previous handlers."""
        for number, handler in self._before.items():
            signal.signal(
                number, signal.SIG_DFL if handler is None else handler
            )
        self._before.clear()

    def pass_on(self, number: int) -> None:
        """Passes a signal that this process has got to the previous handler."""
        if self.received != number:
            return
        self.received = 0
        handler = self._before.get(number)
        if callable(handler):
            handler(number, None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = number


def _number(name: str) -> int:
    number = getattr(signal, str(name), None)
    uncaught = (signal.SIGKILL, signal.SIGSTOP)
    if not isinstance(number, signal.Signals) or number in uncaught:
        raise ValueError(
            f"Checkpoint: on_signal names {name!r}, which is no signal that a "
            "program can handle. Pass names such as 'SIGTERM' and 'SIGUSR1'."
        )
    return int(number)
