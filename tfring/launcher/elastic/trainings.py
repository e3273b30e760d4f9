"""The functions of `tfring.elastic.run` that a job's workers go through."""

from __future__ import annotations

from tfring.launcher.elastic.workers import State, Worker


class Trainings:
    """The functions that were begun, and the results of the ended ones."""

    def __init__(self) -> None:
        # How many functions all members have ended.
        self._ended = 0
        # The most commits of any worker's state in the current one; -1 if none
        # has a state.
        self.newest_steps = -1
        # The members', as one of them has told.
        self.state: State | None = None
        self._functions: dict[int, str] = {}
        # By number, as JSON.
        self.results: dict[int, str] = {}

    def begin(self, worker: Worker, function: str) -> str:
        """Counts a worker's function; returns an error, or ""."""
        worker.run += 1
        others = self._functions.setdefault(worker.run, function)
        if function == others:
            return ""
        return (
            f"its training {worker.run} is '{function}', and the others' is "
            f"'{others}'"
        )

    def end(self, worker: Worker, result: str) -> None:
        """Notes that all have ended a worker's function."""
        if worker.run > self._ended:
            self._ended = worker.run
            self.results[worker.run] = result
            # The members start the next one with this state.
            self.newest_steps = 0

    def has_ended(self, worker: Worker) -> bool:
        """Returns True if the members have ended a worker's function."""
        return 0 < worker.run <= self._ended
