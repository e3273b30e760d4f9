"""The ranks' output: whole lines, each with its rank in front, `[1] text`.

The MPI launcher marks every piece of output with its rank; here the marks
become prefixes. A progress bar, which rewrites its line, becomes a line when it
ends. Rank 0's bar is also shown before that: a terminal shows each change, a
file gets a line now and then.

Two kinds of lines are held for a while. Tracebacks of ranks that fail together
would mix, line by line. The traceback of the rank that failed first is held
until the end, where a user looks. An MPI launcher's own words about a failure
say less than the failed rank's words, and are dropped if the rank's words are
known.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable

from tfring.launcher.reason import last_exception, reason
from tfring.launcher.wrapper import Report

HOLD_SECONDS = 2.0
# How often a bar that moves gets a line in a file.
BAR_SECONDS = 10.0
_LONGEST_MARK_BYTES = 320
# A control sequence of ECMA-48, a colour for example.
_SEQUENCE = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")
_TRACEBACK = re.compile(
    rb"[ +|]*(?:Exception Group )?Traceback \(most recent call last\):"
)
# Lines that do not tell why a rank has ended: Open MPI's account of a crash, in
# the name of the rank, and TensorFlow's logs below an error.
_NO_LAST_WORDS = re.compile(
    rb"\[\S+:\d+\] (?:\*\*\* |Signal|Failing at|\[ *\d+\] )"
    rb"|[IW]\d{4} |\d{4}-\d\d-\d\d [\d:.]+: [IW] |WARNING: All log messages"
    rb"|\s*\Z"
)
# TensorFlow's words at import, twice from each rank, which TF_CPP_MIN_LOG_LEVEL
# does not leave out.
_IMPORT = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called"
    rb"|I\d{4} .* port\.cc:\d+\] oneDNN custom operations are on\."
)
# Open MPI's words when it gives up a job.
_FAILURE = re.compile(
    rb"(?:\w+ (?:has exited due to process rank|noticed that process rank"
    rb"|detected that one or more processes exited)"
    rb"|(?:PRTE|ORTE) has lost communication with a remote daemon"
    rb"|A daemon failed to report back after being spawned)"
)
# MPICH's words about an MPI_Abort, in the name of the rank.
_ABORT = re.compile(
    rb"(?:Abort\(-?\d+\) on node \d+ \(rank .*\): )?"
    rb"application called MPI_Abort\("
)


@dataclasses.dataclass(frozen=True)
class Marks:
    """How an MPI launcher marks the output of the ranks.

    Attributes:
        pattern: Matches a mark. Its group `rank` is the rank; it does not take
            part in the match if the launcher's own output begins. Its group
            `report` is a rank's report, see `wrapper`.
        unfinished: Matches the end of a text that may be the start of a mark.
        every_line: Each line of a rank is marked, so that a line without a mark
            is the launcher's own. Else a mark is valid until the next one.
    """

    pattern: re.Pattern[bytes]
    unfinished: re.Pattern[bytes]
    every_line: bool


@dataclasses.dataclass(frozen=True)
class View:
    """How the output of a job is shown.

    Attributes:
        terminals: The streams, 1 or 2, that are terminals: a line there may be
            rewritten.
        only_rank: The one rank that is shown, without its number in front; None
            shows all.
        verbose: The MPI launcher's words are shown immediately, those of
            TensorFlow at import are shown, and at the end the seconds of the
            job's stages.
        caller: What has started the job. Its name is in front of the
            launcher's own lines.
    """

    terminals: frozenset[int] = frozenset((1, 2))
    only_rank: int | None = None
    verbose: bool = False
    caller: str = "tfringrun"


class Screen:
    """Shows whole lines of all ranks, and the progress bar of rank 0."""

    def __init__(
        self,
        write: Callable[[int, bytes], None],
        view: View,
        name: Callable[[int], str] = str,
    ) -> None:
        """Makes an empty screen.

        Args:
            write: It gets a file descriptor, 1 or 2, and bytes.
            view: How the output is shown.
            name: Returns the text to put before the lines of a rank.
        """
        self._write = write
        self._view = view
        self._name = name
        # By stream and rank, None for the launcher itself: when it was begun or
        # last shown, and the text.
        self._unfinished: dict[tuple[int, int | None], tuple[float, bytes]] = {}
        # The stream and the rank of the bar in a terminal's last line, which
        # has no newline yet.
        self._bar: tuple[int, int | None] | None = None
        # By rank: since when, and lines with their streams.
        self._held: dict[int | None, tuple[float, list[tuple[int, bytes]]]] = {}
        # The last line of each rank on stderr; or its last traceback, with the
        # lines held after it.
        self._words: dict[int, list[bytes]] = {}
        # The rank that failed first.
        self.failed: int | None = None
        # The launcher's own words, by stream.
        self.launcher_lines: dict[int, list[str]] = {1: [], 2: []}
        # Set when the launcher has said that the job has failed.
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
        """Writes a line; without an end it is a bar that may change."""
        prefix = b"" if rank is None else f"[{self._name(rank)}] ".encode()
        if self._view.only_rank is not None and rank is not None:
            if self._name(rank) != str(self._view.only_rank):
                return
            prefix = b""
        if stream not in self._view.terminals:
            # Shorter states of a bar are padded, to cover longer ones.
            text = _SEQUENCE.sub(b"", text).rstrip(b" ")
        if self._bar == (stream, rank):
            prefix = b"\r" + prefix
        elif self._bar is not None:
            self._write(self._bar[0], b"\n")
        self._write(stream, prefix + text + end)
        self._bar = None if end else (stream, rank)

    def say(self, text: str) -> None:
        """Shows a line of this launcher's own."""
        line = f"{self._view.caller}: {text}"
        self.show(2, None, line.encode(errors="replace"))

    def last_words(self, rank: int) -> tuple[str, str]:
        """A rank's last exception and last line on stderr, each or ""."""
        words = _SEQUENCE.sub(b"", b"\n".join(self._words.get(rank, [])))
        text = words.decode(errors="replace")
        return reason(last_exception(text)), text.rpartition("\n")[2].strip()

    def tick(self, *, ending: bool = False) -> None:
        """Shows lines that were held long enough.

        Args:
            ending: True if the job is about to end: the launcher's words wait
                for that.
        """
        due = time.monotonic() - HOLD_SECONDS
        for rank, (since, _) in list(self._held.items()):
            waits = ending if rank is None else rank == self.failed
            if since <= due and not waits:
                self._release(rank)

    def close(self, *, explained: bool) -> None:
        """Shows the rest, at the end of the job.

        Args:
            explained: True if there is a better explanation than the launcher's
                words, which are then dropped.
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
        """Makes one for stream 1 or 2; `report` gets the ranks' reports."""
        self._stream = stream
        self._marks = marks
        self._screen = screen
        self._report = report
        self._rest = b""  # Perhaps the start of a mark.
        self._rank: int | None = None
        # Set when any rank has said anything.
        self.heard_ranks = False

    def feed(self, data: bytes) -> None:
        """Takes output of the launcher."""
        # Open MPI ends some messages with a zero byte.
        data = self._rest + data.replace(b"\0", b"")
        unfinished = self._marks.unfinished.search(
            data, max(0, len(data) - _LONGEST_MARK_BYTES)
        )
        end = unfinished.start() if unfinished else len(data)
        self._rest = data[end:]
        self._take(data[:end])

    def close(self) -> None:
        """Takes the rest, at the end of the stream."""
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
    """Cuts overwritten text from a line, but keeps one sign of it."""
    written = line.rstrip(b"\r\b")
    return line[max(written.rfind(b"\r"), written.rfind(b"\b"), 0) :]
