"""The reports of the ranks, and of the process around each of them.

MPI launchers mix the statuses of all ranks, and some let all ranks wait forever
if one ends before `MPI_Init`. So `rank_wrapper` writes reports into the rank's
stderr, where `output` reads them: `exit 3 node1`, between the control
characters RS and US. The rank writes its own reports into the same pipe (see
`tfring/_core/reports.py`), of which the wrapper keeps a copy open for it. The
reports are:

- `started 0 node1`: the rank gets signals from now on;
- `exit 3 node1`: it has ended with this status;
- `joining 0 node1`: it has come to its first `tfring.init`;
- `joined 0 node1`: it has come to the end of that;
- `failed 1 node1`: an exception is about to end the job;
- `leaving 3 node1`: its script has ended, and it will exit with this status.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from tfring.launcher import surroundings


def command_line(meanings: Mapping[int, int]) -> list[str]:
    """Returns the command that runs a rank's command, which follows it.

    Args:
        meanings: For each signal that the MPI launcher passes on, the signal
            that the rank gets for it.
    """
    program = Path(__file__).with_name("rank_wrapper.py")
    pairs = ",".join(f"{int(key)}={int(meanings[key])}" for key in meanings)
    # -I and -S save the time to read a user's variables and packages.
    return [sys.executable, "-I", "-S", str(program), pairs]


# The part of `output`'s pattern that matches a report.
REPORT_PATTERN = (
    rb"\x1e(?P<report>"
    rb"(?:started|joining|joined|exit|failed|leaving) \d+ [^\x1f]*)\x1f\n"
)


@dataclasses.dataclass(frozen=True)
class Report:
    """One report of a rank, or of the process around it."""

    rank: int
    word: str  # such as `started` or `exit`
    status: int
    host: str

    @classmethod
    def parse(cls, rank: int, text: bytes) -> Report:
        word, _, rest = text.decode(errors="replace").partition(" ")
        status, _, host = rest.partition(" ")
        return cls(rank, word, int(status), host)


class RankStates:
    """The states of all ranks, as their reports have told."""

    def __init__(self) -> None:
        self._leaving: dict[int, Report] = {}  # in the order of the reports
        self.first_failure: Report | None = None
        self.started: set[int] = set()
        # The exit statuses of the ranks that have ended.
        self.statuses: dict[int, int] = {}

    def take(self, report: Report) -> None:
        if report.word == "started":
            self.started.add(report.rank)
        elif report.word == "exit":
            self.statuses[report.rank] = report.status
            if report.status == 0:
                self._leaving.pop(report.rank, None)
        if report.status == 0:
            return
        if report.word == "leaving":
            # This is no failure yet: the rank may catch its SystemExit.
            self._leaving[report.rank] = report
        elif self.first_failure is None:
            # The other ranks fail once this rank leaves, perhaps before its
            # end.
            self.first_failure = next(iter(self._leaving.values()), report)


def describe(
    who: str, host: str, status: int, exception: str, last_line: str
) -> str:
    """Returns the last line of a failed job, about the rank that failed first.

    `who` is the rank in words, and `exception` the end of its traceback.
    Strings are "" if unknown.
    """
    where = f"{who} (host {host})" if host else who
    if status == os.EX_TEMPFAIL:  # `tfring.callbacks.Checkpoint` at a signal
        return (
            f"{where} has saved and asks for another start: exit status "
            f"{status}."
        )
    # 1 is Python's exit status for an uncaught exception. With another status
    # the rank has survived the exception in its traceback.
    if exception and status == 1:
        return f"{where} failed first: {exception}"
    how = killed_by(status) or f"exit status {status}"
    line = f"{where} failed first: {how}"
    return f"{line}; its last line: {last_line}" if last_line else f"{line}."


def killed_by(status: int) -> str:
    """Returns which signal ended a process, in words; "" if none has.

    For a SIGBUS, it names folders of this machine that are full.
    """
    name = signal_name(status)
    if name is None:
        return ""
    full = surroundings.full_folders() if name == "SIGBUS" else []
    why = f" for want of space in {' and '.join(full)}" if full else ""
    return f"killed by {name}{why}"


def signal_name(status: int) -> str | None:
    """Returns the signal that ended a process; None if it ended by itself."""
    try:
        return signal.Signals(status - 128).name
    except ValueError:
        return None
