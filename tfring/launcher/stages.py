"""Tells where a job's start and end spend time: `tfringrun --verbose`."""

from __future__ import annotations

import enum
import os
import time
from collections.abc import Callable

from tfring.launcher import processes


class Stage(enum.Enum):
    """The stages of a job, in order. The value is the user's text."""

    LOADED = "tfringrun was loaded"
    PREPARED = "the job was prepared"
    STARTED = "the last rank was started"
    JOINING = "the last rank was in tfring.init"
    JOINED = "the last rank had joined the job"
    ENDING = "the last rank's script had ended"
    ENDED = "the last rank had ended"
    OVER = "the programs that started the ranks had ended"


# The stages that reports of ranks announce, see `wrapper`.
STAGE_OF_REPORT = {
    "started": Stage.STARTED,
    "joining": Stage.JOINING,
    "joined": Stage.JOINED,
    "leaving": Stage.ENDING,
    "exit": Stage.ENDED,
}


class Stages:
    """When a job reached its stages, by the clock of this process."""

    def __init__(
        self,
        age_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """The first stage begins with the start of this process.

        `age_seconds` is how long ago this process started; None asks the
        kernel.
        """
        if age_seconds is None:
            age_seconds = process_age_seconds()
        self._clock = clock
        self._began_at = clock() - age_seconds
        self._reached_at: dict[Stage, float] = {}
        self.reach(Stage.LOADED)

    def __contains__(self, stage: Stage) -> bool:
        return stage in self._reached_at

    def reach(self, stage: Stage) -> None:
        """Notes that a stage is reached now; a later call replaces the time."""
        self._reached_at[stage] = self._clock()

    def lines(self) -> list[str]:
        """Returns the table: the seconds that each stage took.

        Stages that no rank reached, as without `tfring.init`, are left out.
        """
        lines = []
        before = self._began_at
        for stage in Stage:
            if stage in self._reached_at:
                # One rank may reach a stage before another rank reaches the
                # stage before it.
                at = max(before, self._reached_at[stage])
                lines.append(f"{at - before:8.2f} s until {stage.value}")
                before = at
        lines.append(f"{before - self._began_at:8.2f} s in all")
        return lines


def process_age_seconds() -> float:
    """Returns how long ago this process was started, within 10 ms."""
    ticks = int(processes.stat_fields("self")[19])
    started_at = ticks / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_at
