"""The ranks' output, line by line, each with its rank in front: `[1] text`.

The MPI launcher marks every piece of output with its rank; here the marks
become prefixes. Lines of different ranks do not mix. A line that is not
finished yet is shown as it stands after a short while, or a progress bar, which
rewrites its one line with carriage returns, would appear only at its end. In a
file such a bar is whole lines, now and then (see `plain`).
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Iterator

from tfring.launcher import plain
from tfring.launcher.held import HeldLines
from tfring.launcher.wrapper import Report

# The longest that an unfinished line is held back.
HOLD_SECONDS = 0.1
_LONGEST_MARK_BYTES = 320
# Lines that do not tell why a rank has ended: Open MPI's account of a crash, in
# the name of the rank, and TensorFlow's logs below an error.
_NO_LAST_WORDS = re.compile(
    rb"\[\S+:\d+\] (?:\*\*\* |Signal|Failing at|\[ *\d+\] )"
    rb"|[IW]\d{4} |\d{4}-\d\d-\d\d [\d:.]+: [IW] |WARNING: All log messages"
)
_NEVER = re.compile(rb"(?!)")


@dataclasses.dataclass(frozen=True)
class Marks:
    """How an MPI launcher marks the output of the ranks; by default not at all.

    Attributes:
        pattern: Matches a mark; its group `rank` is the rank, or does not take
            part in the match where the launcher itself begins to speak. Its
            group `report` is what `wrapper` has a rank report.
        unfinished: Matches the end of a text that may be the start of a mark.
        every_line: Each line of a rank is marked, so that a line without a mark
            is the launcher's own. Else a mark holds until the next.
        failure: Matches a line of the launcher's own by which it gives the job
            up.
        noise: Matches a rank's line on stderr that says only that a process has
            ended, and was not written by the program; its group `of_mpi`, one
            that is as good as the launcher's own words.
    """

    pattern: re.Pattern[bytes] = _NEVER
    unfinished: re.Pattern[bytes] = _NEVER
    every_line: bool = False
    failure: re.Pattern[bytes] = _NEVER
    noise: re.Pattern[bytes] = _NEVER


@dataclasses.dataclass(frozen=True)
class View:
    """How the output of a job is shown.

    Attributes:
        terminals: The streams that are terminals, of 1 and 2: there a line may
            be rewritten.
        only_rank: The one rank that is shown, without its number in front; None
            shows all.
        verbose: The MPI launcher's words about a failed rank are shown.
    """

    terminals: frozenset[int] = frozenset((1, 2))
    only_rank: int | None = None
    verbose: bool = False


@dataclasses.dataclass
class _Line:
    """The unfinished line of one rank on one stream."""

    text: bytes = b""
    shown: bool = False
    since: float = 0.0
    # In a file: the state of a rewritten line that was shown last, and when.
    snapshot: bytes = b""
    snapshot_at: float = 0.0


class Screen:
    """Where all lines end up, and which of them is still open there."""

    def __init__(
        self,
        write: Callable[[int, bytes], None],
        view: View | None = None,
        name: Callable[[int], str] = str,
    ) -> None:
        """Makes an empty one.

        Args:
            write: It gets a file descriptor, 1 or 2, and bytes.
            view: How the output is shown.
            name: What stands for a rank before its lines.
        """
        self._write = write
        self._name = name
        self.view = view or View()
        self._open: tuple[int, int | None] | None = None

    def show(self, stream: int, rank: int | None, text: bytes) -> None:
        """Writes a text that stands at, or goes on with, `rank`'s line."""
        prefix = b"" if rank is None else f"[{self._name(rank)}] ".encode()
        if self.view.only_rank is not None and rank is not None:
            if rank != self.view.only_rank:
                return
            prefix = b""
        owner = (stream, rank)
        if self._open is not None and self._open != owner:
            self._write(self._open[0], b"\n")
            self._open = None
        if self._open is None:
            text = prefix + text
        # A rewritten line gets its prefix again, but not an empty rewrite.
        rewritten = b"\r" + prefix
        text = re.sub(rb"\r(?=[^\r\n\b])", lambda _: rewritten, text)
        self._write(stream, text)
        self._open = None if text.endswith(b"\n") else owner

    def show_lines(self, stream: int, rank: int | None, text: bytes) -> None:
        """Writes whole lines."""
        for line in _split_lines(text):
            self.show(stream, rank, line)

    def is_open(self, stream: int, rank: int | None) -> bool:
        return self._open == (stream, rank)

    def close(self) -> None:
        """Ends the line that is still open."""
        if self._open is not None:
            self._write(self._open[0], b"\n")
            self._open = None


class StreamReader:
    """Turns one stream of the MPI launcher into lines on the screen."""

    def __init__(
        self,
        stream: int,
        marks: Marks,
        screen: Screen,
        held: HeldLines,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._marks = marks
        self._screen = screen
        self._held = held
        self._clock = clock
        self._rest = b""  # Perhaps the start of a mark.
        self._rest_since = 0.0
        self._rank: int | None = None
        self._at_line_start = True
        self._lines: dict[int | None, _Line] = {}
        self._is_terminal = stream in screen.view.terminals
        # The ranks' reports, in order.
        self.reports: list[Report] = []
        # The last line of each rank that is not empty.
        self.last_lines: dict[int, bytes] = {}
        # The launcher's own words.
        self.launcher_lines: list[str] = []
        # Set when the launcher has said that the job has failed.
        self.job_failed = False
        # Set when any rank has said anything.
        self.heard_ranks = False

    def feed(self, data: bytes) -> None:
        """Takes what the launcher wrote."""
        # Open MPI ends some messages with a zero byte.
        data = self._rest + data.replace(b"\0", b"")
        unfinished = self._marks.unfinished.search(
            data, max(0, len(data) - _LONGEST_MARK_BYTES)
        )
        end = unfinished.start() if unfinished else len(data)
        self._rest = data[end:]
        self._rest_since = self._clock()
        self._take(data[:end])

    def feed_rank(self, rank: int, data: bytes) -> None:
        """Takes what a rank wrote, where that is known without marks."""
        self._rank = rank
        self._take_text(data)

    def tick(self) -> float | None:
        """Shows what was held back long enough.

        Returns:
            The seconds until the next tick is due, None if nothing is held.
        """
        now = self._clock()
        waits = []
        if self._rest:
            waits.append(self._rest_since + HOLD_SECONDS - now)
            if waits[-1] <= 0:
                waits.pop()
                self._take(self._rest)
                self._rest = b""
        for rank, line in self._lines.items():
            if not line.text:
                continue
            due = line.since + HOLD_SECONDS
            if not self._is_terminal and plain.is_rewritten(line.text):
                due = line.snapshot_at + plain.SNAPSHOT_SECONDS
            if due > now:
                waits.append(due - now)
            elif self._is_terminal or not plain.is_rewritten(line.text):
                self._show(rank, line)
            else:
                self._show_snapshot(rank, line)
        return min(waits) if waits else None

    def close(self) -> None:
        """Shows everything, at the end of the stream."""
        self._take(self._rest)
        self._rest = b""
        for rank, line in self._lines.items():
            if line.text:
                self._show(rank, line)

    def _take(self, data: bytes) -> None:
        position = 0
        for mark in self._marks.pattern.finditer(data):
            self._take_text(data[position : mark.start()])
            position = mark.end()
            groups = mark.groupdict()
            if groups["report"] is not None:
                if self._rank is not None:
                    self.reports.append(
                        Report.parse(self._rank, groups["report"])
                    )
                self._at_line_start = True
            elif groups["rank"] is not None:
                self._rank = int(groups["rank"])
                self._at_line_start = False
                self.heard_ranks = True
            else:
                self._rank = None
                self._take_text(mark.group())
        self._take_text(data[position:])

    def _take_text(self, text: bytes) -> None:
        for piece in _split_lines(text):
            if self._marks.every_line and self._at_line_start:
                self._rank = None
            self._at_line_start = piece.endswith(b"\n")
            line = self._lines.setdefault(self._rank, _Line())
            if not line.text:
                line.since = self._clock()
                if not line.snapshot:
                    line.snapshot_at = line.since
            line.text += piece
            if self._at_line_start:
                self._end_line(line)

    def _end_line(self, line: _Line) -> None:
        """Shows a whole line, or keeps it for later."""
        if self._rank is None:
            self._heed_launcher(line.text)
        elif noise := self._noise(line.text):
            if noise["of_mpi"]:
                self._held.take(self._stream, None, line.text)
            line.text = b""
            return
        elif not _NO_LAST_WORDS.match(line.text) and line.text.strip():
            self.last_lines[self._rank] = plain.text_of(line.text).strip()
        if not line.shown and self._held.take(
            self._stream, self._rank, line.text
        ):
            line.text = b""
            return
        self._show(self._rank, line)

    def _noise(self, text: bytes) -> re.Match[bytes] | None:
        if self._stream != 2 or self._screen.view.verbose:
            return None
        return self._marks.noise.match(text)

    def _heed_launcher(self, text: bytes) -> None:
        if self._marks.failure.match(text):
            self.job_failed = True
        self.launcher_lines.append(text.decode(errors="replace").rstrip())

    def _show(self, rank: int | None, line: _Line) -> None:
        if not self._is_terminal:
            self._show_plain(rank, line)
            return
        # The text behind a carriage return at the end is not known yet.
        text = line.text.removesuffix(b"\r")
        line.text = line.text[len(text) :]
        self._show_part(rank, line, text)

    def _show_plain(self, rank: int | None, line: _Line) -> None:
        rewritten = plain.is_rewritten(line.text)
        text = plain.text_of(line.text)
        line.text = b""
        if rewritten and line.shown:  # It began as any other line.
            self._show_part(rank, line, b"\n")
        if line.snapshot and line.snapshot == text.rstrip(b"\n"):
            text = b""
        line.snapshot = b""
        self._show_part(rank, line, text)

    def _show_snapshot(self, rank: int | None, line: _Line) -> None:
        """Shows a rewritten line as it stands, as a line of its own."""
        text = plain.text_of(line.text)
        line.text = plain.abridge(line.text)
        line.snapshot_at = self._clock()
        if text == line.snapshot:
            return
        if line.shown:
            self._show_part(rank, line, b"\n")
        line.snapshot = text
        self._show_part(rank, line, text + b"\n")

    def _show_part(self, rank: int | None, line: _Line, text: bytes) -> None:
        """Writes what comes next of a line."""
        if not text:
            return
        interrupted = line.shown and not self._screen.is_open(
            self._stream, rank
        )
        line.shown = not text.endswith(b"\n")
        # Another rank's line has already ended this one on the screen.
        if not (interrupted and text == b"\n"):
            self._screen.show(self._stream, rank, text)


def _split_lines(text: bytes) -> Iterator[bytes]:
    """Cuts after each newline, and nowhere else."""
    return (piece for piece in re.split(rb"(?<=\n)", text) if piece)
