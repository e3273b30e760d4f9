"""The ranks' output: whole lines, each with its rank in front, `[1] text`.

The MPI launcher marks every piece of output with its rank, and the marks become
prefixes here. A progress bar, which rewrites its line, becomes a line when it
ends. Rank 0's bar is also shown while it moves: a terminal shows each change,
and a file gets a line every few seconds.

Two kinds of lines are held for a while. Tracebacks are held because those of
ranks that fail together would mix line by line; the traceback of the rank that
failed first is shown at the end, where a user looks. The MPI launcher's
messages about a failure are held because they say less than the failed rank's
own, and are dropped if those are known.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable

from tfring.launcher.reason import last_exception, reason
from tfring.launcher.wrapper import Report

HOLD_SECONDS = 2.0
# How often a moving progress bar gets a line in a file.
BAR_SECONDS = 10.0
_LONGEST_MARK_BYTES = 320
# A control sequence of ECMA-48, a colour for example.
_SEQUENCE = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")
_TRACEBACK = re.compile(
    rb"[ +|]*(?:Exception Group )?Traceback \(most recent call last\):"
)
# Lines of a rank that do not tell why it has ended: Open MPI's account of a
# crash, and TensorFlow's logs below an error.
_NO_LAST_WORDS = re.compile(
    rb"\[\S+:\d+\] (?:\*\*\* |Signal|Failing at|\[ *\d+\] )"
    rb"|[IW]\d{4} |\d{4}-\d\d-\d\d [\d:.]+: [IW] |WARNING: All log messages"
    rb"|\s*\Z"
)
# TensorFlow's messages at import, which each rank writes twice and
# TF_CPP_MIN_LOG_LEVEL does not suppress.
_IMPORT = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called"
    rb"|I\d{4} .* port\.cc:\d+\] oneDNN custom operations are on\."
)
# Open MPI's messages when it gives up a job.
_FAILURE = re.compile(
    rb"(?:\w+ (?:has exited due to process rank|noticed that process rank"
    rb"|detected that one or more processes exited)"
    rb"|(?:PRTE|ORTE) has lost communication with a remote daemon"
    rb"|A daemon failed to report back after being spawned)"
)
# MPICH's message about an MPI_Abort, which is marked as the rank's.
_ABORT = re.compile(
    rb"(?:Abort\(-?\d+\) on node \d+ \(rank .*\): )?"
    rb"application called MPI_Abort\("
)


@dataclasses.dataclass(frozen=True)
class Marks:
    """How an MPI launcher marks the output of the ranks.

    Attributes:
        pattern: Matches a mark. The group `rank` has the rank, or None where
            the launcher's own output begins. The group `report` has a rank's
            report, see `wrapper`.
        unfinished: Matches the end of a text that may be the start of a mark.
        every_line: Each line of a rank is marked, and a line without a mark is
            the launcher's own. Otherwise a mark is valid until the next one.
    """

    pattern: re.Pattern[bytes]
    unfinished: re.Pattern[bytes]
    every_line: bool


@dataclasses.dataclass(frozen=True)
class View:
    """How the output of a job is shown.

    Attributes:
        terminals: The streams, 1 or 2, that are terminals, on which a line may
            be rewritten.
        only_rank: The one rank to show, without prefixes; None shows all ranks.
        verbose: Show the MPI launcher's messages immediately, TensorFlow's
            messages at import, and at the end the seconds of the job's stages.
        caller: The name of what has started the job, which precedes the
            launcher's own lines.
        shows_hosts: The prefix of an elastic job's lines has the host, too.
    """

    terminals: frozenset[int] = frozenset((1, 2))
    only_rank: int | None = None
    verbose: bool = False
    caller: str = "tfringrun"
    shows_hosts: bool = False


class Screen:
    """Shows whole lines of all ranks, and the progress bar of rank 0."""

    def __init__(self, write: Callable[[int, bytes], None], view: View) -> None:
        """Makes an empty screen; `write` writes to descriptor 1 or 2."""
        self._write = write
        self._view = view
        # Unfinished lines by stream and rank (None: the launcher): when the
        # line was begun or last shown, and its text.
        self._unfinished: dict[tuple[int, int | None], tuple[float, bytes]] = {}
        # The stream and the rank of the progress bar in a terminal's last line,
        # which has no newline yet.
        self._bar: tuple[int, int | None] | None = None
        # Held lines by rank: since when they are held, and the lines with their
        # streams.
        self._held: dict[int | None, tuple[float, list[tuple[int, bytes]]]] = {}
        # The last line of each rank on stderr, or its last traceback with the
        # lines held after it.
        self._words: dict[int, list[bytes]] = {}
        # The rank that failed first.
        self.failed: int | None = None
        # The lines of the MPI launcher itself, by stream.
        self.launcher_lines: dict[int, list[str]] = {1: [], 2: []}
        # True once the MPI launcher has said that the job has failed.
        self.job_failed = False

    def take(self, stream: int, rank: int | None, text: bytes) -> None:
        """Takes output of a rank, or of the launcher itself as rank None."""
        now = time.monotonic()
        since, begin = self._unfinished.pop((stream, rank), (now, b""))
        *lines, rest = (begin + text).split(b"\n")
        for line in lines:
            self._take_line(stream, rank, line)
            since = now
        rest = _last_state(rest)
        state = rest.strip(b"\r\b")
        is_bar = state not in (b"", rest)
        if is_bar and rank is not None and self._name(rank) == "0":
            if stream in self._view.terminals:
                self.show(stream, rank, state, end=b"")
            elif now >= since + BAR_SECONDS:
                self.show(stream, rank, state)
                since = now
        if rest:
            self._unfinished[stream, rank] = since, rest

    def show(
        self, stream: int, rank: int | None, text: bytes, end: bytes = b"\n"
    ) -> None:
        """Writes a line; without `end` it is a bar, which may change."""
        prefix = b"" if rank is None else self._prefix(rank).encode()
        if self._view.only_rank is not None and rank is not None:
            if self._name(rank) != str(self._view.only_rank):
                return
            prefix = b""
        if stream not in self._view.terminals:
            # Drop the padding with which a bar covers its longer states.
            text = _SEQUENCE.sub(b"", text).rstrip(b" ")
        if self._bar == (stream, rank):
            prefix = b"\r" + prefix
        elif self._bar is not None:
            self._write(self._bar[0], b"\n")
        self._write(stream, prefix + text + end)
        self._bar = None if end else (stream, rank)

    def _name(self, rank: int) -> str:
        """Returns the rank as it is shown."""
        return str(rank)

    def _prefix(self, rank: int) -> str:
        return f"[{self._name(rank)}] "

    def say(self, text: str) -> None:
        """Shows a line of this launcher's own."""
        line = f"{self._view.caller}: {text}"
        self.show(2, None, line.encode(errors="replace"))

    def last_words(self, rank: int) -> tuple[str, str]:
        """Returns a rank's last exception and last line on stderr, or ""."""
        words = _SEQUENCE.sub(b"", b"\n".join(self._words.get(rank, [])))
        text = words.decode(errors="replace")
        return reason(last_exception(text)), text.rpartition("\n")[2].strip()

    def tick(self, *, ending: bool = False) -> None:
        """Shows the lines that were held long enough.

        If the job is `ending`, the launcher's messages stay held.
        """
        due = time.monotonic() - HOLD_SECONDS
        for rank, (since, _) in list(self._held.items()):
            waits = ending if rank is None else rank == self.failed
            if since <= due and not waits:
                self._release(rank)

    def close(self, *, explained: bool) -> None:
        """Shows the rest, at the end of the job.

        If the failure is `explained`, the launcher's messages are dropped.
        """
        for (stream, rank), (_, rest) in self._unfinished.items():
            self._take_line(stream, rank, rest)
        self._unfinished.clear()
        if explained:
            self._held.pop(None, None)
        for rank in sorted(self._held, key=lambda rank: rank == self.failed):
            self._release(rank)
        if self._bar is not None:
            self._write(self._bar[0], b"\n")

    def _take_line(self, stream: int, rank: int | None, line: bytes) -> None:
        line = _last_state(line).strip(b"\r\b")
        if rank is None or _ABORT.match(line):
            text = line.decode(errors="replace").rstrip()
            self.launcher_lines[stream].append(text)
            self.job_failed |= _FAILURE.match(line) is not None
            if not self._view.verbose:
                self._hold(None, stream, line)
                return
        elif stream == 2:
            goes_on = rank in self._held
            if not _NO_LAST_WORDS.match(line):
                if not goes_on:
                    self._words[rank] = []
                self._words[rank].append(line)
            elif _IMPORT.match(line) and not self._view.verbose:
                return
            if goes_on or _TRACEBACK.match(line):
                self._hold(rank, stream, line)
                return
        self.show(stream, rank, line)

    def _hold(self, rank: int | None, stream: int, line: bytes) -> None:
        _, lines = self._held.setdefault(rank, (time.monotonic(), []))
        lines.append((stream, line))

    def _release(self, rank: int | None) -> None:
        for stream, line in self._held.pop(rank)[1]:
            self.show(stream, rank, line)


class StreamReader:
    """Reads one stream of the MPI launcher, by its marks."""

    def __init__(
        self,
        stream: int,
        marks: Marks,
        screen: Screen,
        report: Callable[[Report], None],
    ) -> None:
        """Makes a reader of stream 1 or 2; `report` takes reports."""
        self._stream = stream
        self._marks = marks
        self._screen = screen
        self._report = report
        self._rest = b""  # perhaps the start of a mark
        self._rank: int | None = None
        # True once any rank has written anything.
        self.heard_ranks = False

    def feed(self, data: bytes) -> None:
        """Takes output of the launcher."""
        # Remove the zero bytes with which Open MPI ends some messages.
        data = self._rest + data.replace(b"\0", b"")
        unfinished = self._marks.unfinished.search(
            data, max(0, len(data) - _LONGEST_MARK_BYTES)
        )
        end = unfinished.start() if unfinished else len(data)
        self._rest = data[end:]
        self._take(data[:end])

    def close(self) -> None:
        """Takes what is left at the end of the stream."""
        self._take(self._rest)

    def _take(self, data: bytes) -> None:
        position = 0
        for mark in self._marks.pattern.finditer(data):
            self._take_text(data[position : mark.start()])
            position = mark.end()
            groups = mark.groupdict()
            if groups["report"] is not None:
                if self._rank is not None:
                    self._report(Report.parse(self._rank, groups["report"]))
                self._end_line()
            elif groups["rank"] is not None:
                self._rank = int(groups["rank"])
                self.heard_ranks = True
            else:
                self._rank = None
                self._take_text(mark.group())
        self._take_text(data[position:])

    def _take_text(self, text: bytes) -> None:
        line, newline, rest = text.partition(b"\n")
        if self._marks.every_line and newline:
            self._screen.take(self._stream, self._rank, line + newline)
            self._end_line()
            text = rest
        if text:
            self._screen.take(self._stream, self._rank, text)

    def _end_line(self) -> None:
        if self._marks.every_line:
            self._rank = None


def _last_state(line: bytes) -> bytes:
    """Cuts the overwritten text of a line, and keeps a mark of it."""
    written = line.rstrip(b"\r\b")
    return line[max(written.rfind(b"\r"), written.rfind(b"\b"), 0) :]
