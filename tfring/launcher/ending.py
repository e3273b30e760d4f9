"""The rules by which signals, failures and time end a job that MPI launched."""

from __future__ import annotations

import signal

from tfring.launcher import processes
from tfring.launcher.wrapper import RankStates

# How long the other ranks have after a failure to end and to write their
# output, if the MPI launcher does nothing about the failure.
FAILURE_GRACE_SECONDS = 3.0
# How long the MPI launcher has to end after it has reported a failure.
LAUNCHER_GRACE_SECONDS = 5.0
# How long the MPI launcher has to end the ranks on all hosts once it is told
# to.
STOP_GRACE_SECONDS = 5.0
# A signal that comes within this time of the first one is not a second one:
# `timeout`, and a terminal that closes, signal the process and then its group.
REPEAT_SECONDS = 0.5
# How long the reader of the output may block it after a signal.
READER_GRACE_SECONDS = 1.0


def is_second(number: int, now: float, first_at: float) -> bool:
    """Tells whether a signal is a second one, which ends a job at once."""
    return number != signal.SIGHUP and now >= first_at + REPEAT_SECONDS


def announce(number: int, grace_seconds: float) -> str:
    """Returns the line for the user after the first signal."""
    return (
        f"{signal.Signals(number).name}: the ranks have {grace_seconds:g} s to "
        "end; a second signal ends them at once."
    )


def describe_write_error(stream: int, error: OSError) -> str:
    """Returns the last line of a job whose output cannot be written."""
    name = {1: "standard output", 2: "standard error"}[stream]
    return f"{name} cannot be written, which ends the job: {error.strerror}."


class Ending:
    """Decides when to signal, stop and kill a job. Callers pass the time."""

    def __init__(
        self, states: RankStates, ranks: int, grace_seconds: float
    ) -> None:
        """Makes the rules of a job that runs.

        The caller keeps the ranks' states up to date.
        """
        self._states = states
        self._ranks = ranks
        self._grace_seconds = grace_seconds
        # The first signal that asked the job to end, and when it came.
        self._stop_signal: int | None = None
        self._signalled_at = float("inf")
        self._undelivered: list[int] = []
        self._stop_at = float("inf")
        self._kill_at = float("inf")
        self._stopping = False
        # False once the ranks had to be stopped.
        self._ended_by_themselves = True
        # The error of an output that cannot be written.
        self._write_error: OSError | None = None

    def take_signal(self, number: int, now: float) -> str:
        """Takes a signal to this process; returns a line for the user or ""."""
        if number in processes.FORWARDED:
            self._undelivered.append(number)
        elif self._stop_signal is None:
            return self._ask_to_end(number, now)
        elif is_second(number, now, self._signalled_at):
            if self._stopping:
                self._kill_at = now
            self._stop_at = now
        return ""

    def _ask_to_end(self, number: int, now: float) -> str:
        self._stop_signal = number
        self._signalled_at = self._stop_at = now
        under_way = self._all_started and self._states.first_failure is None
        if not under_way or self._grace_seconds == 0:
            return ""
        self._stop_at += self._grace_seconds
        is_interrupt = number == signal.SIGINT
        self._undelivered.append(
            signal.SIGINT if is_interrupt else signal.SIGTERM
        )
        return f"tfringrun: {announce(number, self._grace_seconds)}"

    def take_write_error(self, error: OSError, now: float) -> None:
        """Ends the job because its output cannot be written."""
        if self._write_error is None and self._stop_signal is None:
            self._write_error = error
            self._stop_at = min(self._stop_at, now)

    def signals_for_ranks(self) -> list[int]:
        """Returns the signals to deliver now; none before all ranks run."""
        if not self._all_started:
            return []
        numbers, self._undelivered = self._undelivered, []
        return numbers

    def is_stop_due(self, now: float, *, launcher_failed: bool) -> bool:
        """Returns True, once, when the MPI launcher must end the ranks.

        `launcher_failed`: the launcher has said that the job has failed.
        """
        if self._stop_signal is not None:
            # All ranks have ended, and the wrappers wait for this.
            if self._all_ended:
                self._stop_at = min(self._stop_at, now)
        elif self._states.first_failure is not None:
            self._stop_at = min(self._stop_at, now + FAILURE_GRACE_SECONDS)
        # Open MPI 5 would wait forever for the daemon of a lost host.
        if launcher_failed:
            self._stop_at = min(self._stop_at, now + LAUNCHER_GRACE_SECONDS)
        if now < self._stop_at or self._stopping:
            return False
        self._stopping = True
        self._ended_by_themselves = self._all_ended
        self._kill_at = min(self._kill_at, now + STOP_GRACE_SECONDS)
        return True

    def is_kill_due(self, now: float) -> bool:
        """Returns True when all processes must be killed, and again later."""
        if now < self._kill_at:
            return False
        self._kill_at = now + STOP_GRACE_SECONDS
        return True

    def is_by_request(self) -> bool:
        """Returns True if a signal, or a closed output, asked for the end."""
        return self._stop_signal is not None or isinstance(
            self._write_error, BrokenPipeError
        )

    def is_soon(self) -> bool:
        """Returns True if the job is about to end."""
        return self._stop_at < float("inf")

    def is_reader_late(self, now: float) -> bool:
        """Returns True if the output is to be discarded after a signal."""
        return now > self._signalled_at + READER_GRACE_SECONDS

    def status(self, launcher_status: int, *, launcher_failed: bool) -> int:
        """Returns the job's exit status; see `RunningJob.run`."""
        if self._stop_signal is not None:
            statuses = {*self._states.statuses.values()}
            if self._ended_by_themselves and len(statuses) == 1:
                return statuses.pop()
            return 128 + self._stop_signal
        if self._write_error is not None:
            # `tfringrun ... | head` is no error.
            is_closed = isinstance(self._write_error, BrokenPipeError)
            return 128 + signal.SIGPIPE if is_closed else 1
        if self._states.first_failure is not None:
            return self._states.first_failure.status
        if launcher_failed and (launcher_status == 0 or self._stopping):
            # The launcher's status 0 is wrong: Open MPI 5 returns it after a
            # lost host. Its other statuses may only say that it was stopped
            # here.
            return 1
        return (
            launcher_status if launcher_status >= 0 else 128 - launcher_status
        )

    @property
    def _all_started(self) -> bool:
        return len(self._states.started) == self._ranks

    @property
    def _all_ended(self) -> bool:
        return len(self._states.statuses) == self._ranks
