"""Runs a command after it has fragmented free memory.

    benchmarks/fragmented.py [--leave_gib=N] COMMAND...

A machine that has been up for long has few huge pages left. A program that
asks for one waits until the kernel has moved small pages away, or gets small
ones. So this program takes nearly all free memory in small pages, and gives
back seven of each eight. It prints how much memory is free, and how much of
that is in pieces of 2 MiB or more. It frees the rest when the command has
ended. It needs Linux without other work, and no root.
"""

from __future__ import annotations

import argparse
import mmap
import subprocess
import sys
from pathlib import Path

_KEPT_OF = 8
_GIB = 1 << 30
_PIECE = 64 << 20
_MADV_POPULATE_WRITE = 23
# From this order on, free blocks are of huge pages.
_HUGE_ORDER = 9


def free_bytes() -> tuple[int, int]:
    """Returns the free bytes, and those in blocks of 2 MiB or more."""
    total = huge = 0
    for line in Path("/proc/buddyinfo").read_text().splitlines():
        for order, count in enumerate(line.split()[4:]):
            size = int(count) * mmap.PAGESIZE << order
            total += size
            huge += size if order >= _HUGE_ORDER else 0
    return total, huge


def fragment(leave: int) -> list[mmap.mmap]:
    """Returns memory between all free memory, except for `leave` bytes."""
    pieces = []
    # Small pages are taken from small blocks as long as there are any.
    while free_bytes()[1] > leave:
        piece = mmap.mmap(
            -1, _PIECE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        )
        piece.madvise(mmap.MADV_NOHUGEPAGE)
        piece.madvise(_MADV_POPULATE_WRITE)
        pieces.append(piece)
    step = _KEPT_OF * mmap.PAGESIZE
    for piece in pieces:
        for begin in range(0, _PIECE, step):
            piece.madvise(
                mmap.MADV_DONTNEED, begin + mmap.PAGESIZE, step - mmap.PAGESIZE
            )
    return pieces


def main() -> int:
    """Fragments memory, runs the command, and returns its status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--leave_gib", type=float, default=0.25, help="memory left as it is"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    say("before", free_bytes())
    kept = fragment(int(arguments.leave_gib * _GIB))
    say("after", free_bytes())
    status = subprocess.run(arguments.command, check=False).returncode
    say("at the end", free_bytes())
    del kept
    return status


def say(when: str, free: tuple[int, int]) -> None:
    """Prints the figures of `free_bytes`."""
    total, huge = (each / _GIB for each in free)
    print(
        f"{when}: {total:.1f} GiB are free, of which {huge:.2f} in pieces of "
        "2 MiB or more",
        file=sys.stderr,
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
