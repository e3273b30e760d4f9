"""The command line of `python -m tfring.timeline`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tfring.bench.sizes import format_bytes
from tfring.bench.statistics import format_bandwidth, format_seconds
from tfring.timeline import summary


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tfring.timeline",
        description="Shows what tfring.start_timeline, or TFRING_TIMELINE=FILE "
        "of a job, has recorded.",
    )
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser(
        "summarize", help="overlap, bytes, bandwidth, and the slowest rank"
    )
    command.add_argument("file", type=Path, help="the timeline's")
    command.add_argument(
        "--plot", type=Path, metavar="PICTURE", help="draw it, as PNG or SVG"
    )
    options = parser.parse_args(arguments)
    try:
        events = summary.read(options.file)
        print(describe(summary.summarize(events)))
        if options.plot:
            summary.plot(options.plot, events)
    except ImportError:
        print(
            "tfring.timeline: no plot, as matplotlib is not installed: pip "
            "install matplotlib.",
            file=sys.stderr,
        )
        return 1
    except (OSError, ValueError) as error:
        print(f"tfring.timeline: {error}", file=sys.stderr)
        return 2
    return 0


def describe(of_all: summary.Summary) -> str:
    """Returns the figures as text."""
    lines = []
    for rank, figures in of_all.ranks.items():
        lines.append(
            f"rank {rank}: {figures.requests} requests in {figures.buckets} "
            f"buckets, {format_bytes(figures.count_bytes)} in "
            f"{format_seconds(figures.seconds)}, overlap "
            f"{figures.overlap:.0%}, late by "
            f"{format_seconds(figures.late_seconds)} on average"
        )
    for kind, of_kind in of_all.kinds.items():
        lines.append(
            f"{kind}: {of_kind.buckets} buckets, "
            f"{format_bytes(of_kind.count_bytes)} in "
            f"{format_seconds(of_kind.seconds)} a rank, bus bandwidth "
            f"{format_bandwidth(of_kind.bus_bandwidth)}, sent "
            f"{format_bytes(of_kind.sent_bytes)}"
        )
    lines.append(f"slowest rank: {of_all.slowest_rank}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
