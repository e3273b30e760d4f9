"""The functions of `tfring.elastic.run` that a job's workers go through."""

from __future__ import annotations

from tfring.launcher.elastic.workers import State, Worker


class Trainings:
    """The functions that workers have begun, and the results of ended ones."""

    def __init__(self) -> None:
        # How many functions the members have ended.
        self._ended = 0
        # The most commits in any worker's state of the current function; -1 if
        # no worker has a state.
        self.newest_steps = -1
        # The state of the members, as one of them has told.
        self.state: State | None = None
        self._functions: dict[int, str] = {}
        # The results of ended functions, by their number, as JSON.
        self.results: dict[int, str] = {}

    def begin(self, worker: Worker, function: str) -> str:
        """Counts a function that a worker begins; returns an error or ""."""
        worker.run += 1
        others = self._functions.setdefault(worker.run, function)
        if function == others:
            return ""
        return (
            f"its training {worker.run} is '{function}', and the others' is "
            f"'{others}'"
        )

    def end(self, worker: Worker, result: str) -> None:
        """Notes that all members have ended the function of a worker."""
        if worker.run > self._ended:
            self._ended = worker.run
            self.results[worker.run] = result
            # The members begin the next function with a state, and 0 commits.
            self.newest_steps = 0

    def has_ended(self, worker: Worker) -> bool:
        """Returns True if the members have ended the function of a worker."""
        return 0 < worker.run <= self._ended
