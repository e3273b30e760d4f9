"""Lines that are shown later than they came.

Tracebacks of several ranks that fail together would mix, line by line. So a
rank's traceback is held until it is whole; that of the rank that failed first
comes last, where a user looks. An MPI launcher's own words about a failure come
from another process than the failed rank's, before them or behind, and say less
than they: they are held until it is known whether there is more to say.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable

# A traceback, with all that its rank writes behind it, is whole when its rank
# has been silent for so long,
TRACEBACK_SECONDS = 1.0
# or in any case after so long.
LONGEST_TRACEBACK_SECONDS = 3.0
# The launcher's words are shown after so long if no rank has failed.
LAUNCHER_SECONDS = 1.0

_TRACEBACK = re.compile(
    rb"[ +|]*(?:Exception Group )?Traceback \(most recent call last\):"
)
# The first line after a traceback's frames, which are indented.
_EXCEPTION = re.compile(
    rb"^Traceback \(most recent call last\):\n(?:[ ].*\n|\n)*(?P<line>\S.*)",
    re.MULTILINE,
)

Show = Callable[[int, int | None, bytes], None]


@dataclasses.dataclass
class _Block:
    """The lines of one rank, or of the launcher itself, on one stream."""

    begin: float
    end: float
    text: bytes = b""


class HeldLines:
    """Holds back whole lines, and shows them when it is their time."""

    def __init__(
        self,
        show: Show,
        *,
        verbose: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Makes one that holds nothing.

        Args:
            show: It gets a file descriptor, a rank and whole lines.
            verbose: Shows the launcher's words as they come.
            clock: Gives the time in seconds.
        """
        self._show = show
        self._verbose = verbose
        self._clock = clock
        self._blocks: dict[tuple[int, int | None], _Block] = {}
        # Each is of the latest traceback of a rank that has said no more since.
        self._exceptions: dict[int, str] = {}
        # The rank that failed first; its traceback waits for the end.
        self._failed: int | None = None
        self._job_failed = False

    def take(self, stream: int, rank: int | None, line: bytes) -> bool:
        """Takes a line, if it is one to be held back; says whether it is."""
        if self._verbose if rank is None else stream != 2:
            return False
        now = self._clock()
        block = self._blocks.get((stream, rank))
        if block is None:
            if rank is not None:
                self._exceptions.pop(rank, None)
                if not _TRACEBACK.match(line):
                    return False
            block = self._blocks[stream, rank] = _Block(now, now)
        block.text += line
        block.end = now
        if rank is not None and (found := exception_of(block.text)):
            self._exceptions[rank] = found
        return True

    def exception(self, rank: int) -> str:
        """The exception that `rank` wrote last: "ValueError: boom", or ""."""
        return self._exceptions.get(rank, "")

    def expect_failure(self) -> None:
        """Takes note that the job fails, though not by whom."""
        self._job_failed = True

    def heed_failure(self, rank: int) -> None:
        """Takes note that the job has failed by `rank`."""
        self._job_failed = True
        self._failed = rank

    def tick(self) -> float | None:
        """Shows what was held long enough.

        Returns:
            The seconds until the next tick is due, None if none is.
        """
        now = self._clock()
        waits = []
        for (stream, rank), block in list(self._blocks.items()):
            if rank is None:
                if self._job_failed:
                    continue
                due = block.end + LAUNCHER_SECONDS
            elif rank == self._failed:
                continue
            else:
                due = min(
                    block.end + TRACEBACK_SECONDS,
                    block.begin + LONGEST_TRACEBACK_SECONDS,
                )
            if due <= now:
                self._release(stream, rank)
            else:
                waits.append(due - now)
        return min(waits) if waits else None

    def close(self, *, explained: bool) -> None:
        """Shows the rest, at the end of the job.

        Args:
            explained: Says that there are better words than the launcher's for
                what happened; then those are dropped.
        """
        last = self._failed
        for stream, rank in sorted(
            self._blocks,
            key=lambda key: (key[1] == last, self._blocks[key].end),
        ):
            if rank is None and explained:
                del self._blocks[stream, rank]
            else:
                self._release(stream, rank)

    def _release(self, stream: int, rank: int | None) -> None:
        self._show(stream, rank, self._blocks.pop((stream, rank)).text)


def exception_of(text: bytes) -> str:
    """The line of a traceback that names its exception; "" if there is none."""
    found = list(_EXCEPTION.finditer(text))
    return found[-1]["line"].decode(errors="replace").strip() if found else ""
