"""Runs tfring-bench in several jobs, one after the other, and sums them up.

  .venv/bin/python benchmarks/starts.py --starts=10 allreduce --peers=mpi

The times of one job are alike, and those of the next may be others: threads
and memory lie elsewhere. So the figure of a contestant is the median of the
jobs' medians, with the least and the most of them. With --trees=../old,. there
are jobs of several versions, by turns, each built in place. A program of
benchmarks/, such as steps.py, may stand for tfring-bench's command.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import program

from tfring.bench.statistics import Spread, format_seconds


def medians(tree: Path, options: argparse.Namespace) -> list[dict]:
    """Returns the rows of one job of the version in `tree`."""
    command, *flags = options.command
    return program.rows_of_job(
        [f"benchmarks/{command}", *flags]
        if command.endswith(".py")
        else ["-m", "tfring.bench", command, *flags],
        launcher=["-np", str(options.ranks)],
        cwd=tree,
        env=program.environment_of(tree),
        stdout=subprocess.DEVNULL,
    )


def main() -> None:
    parser = program.parser(__doc__)
    program.add_versions(parser)
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, help="of tfring-bench"
    )
    options = parser.parse_args()
    found: dict[tuple[int, str, str, str], list[float]] = {}
    for start in range(options.starts):
        for tree in options.trees:
            for row in medians(Path(tree).resolve(), options):
                key = (row["count_bytes"], row["case"], tree, row["who"])
                found.setdefault(key, []).append(row["seconds"]["median"])
        print(f"{start + 1} of {options.starts}", file=sys.stderr, flush=True)
    rows = []
    for (count_bytes, case, tree, who), seconds in sorted(found.items()):
        spread = Spread.of(seconds)
        name = who if len(options.trees) == 1 else f"{who}, {tree}"
        print(
            f"{case:>9}  {name:30}{format_seconds(spread.median):>9} "
            f"({format_seconds(spread.least)} - {format_seconds(spread.most)})"
        )
        rows.append(
            {
                "case": case,
                "count_bytes": count_bytes,
                "who": name,
                "seconds": vars(spread),
            }
        )
    program.write_figures(options, rows=rows)


if __name__ == "__main__":
    main()
