"""Runs tfring-bench in several jobs, one after the other, and sums them up.

  .venv/bin/python benchmarks/starts.py --starts=10 allreduce --peers=mpi

The times of one job are alike, and those of the next may be others: threads
and memory lie elsewhere. So the figure of a contestant is the median of the
jobs' medians, with the least and the most of them. With --trees=../old,. there
are jobs of several versions, by turns, each built in place.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from absl import app, flags

from tfring.bench.statistics import Spread, format_seconds

STARTS = flags.DEFINE_integer("starts", 10, "Jobs of each version.")
RANKS = flags.DEFINE_integer("ranks", 2, "Ranks of a job.")
TREES = flags.DEFINE_list("trees", ".", "Source trees of the versions.")
SECONDS = flags.DEFINE_integer("seconds", 300, "What a job may take.")
JSON = flags.DEFINE_string("json", None, "A file for all figures.")


def medians(tree: Path, arguments: list[str]) -> list[dict]:
    """Returns the rows of one job of the version in `tree`."""
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder) / "figures.json"
        paths = [str(tree), os.environ.get("PYTHONPATH", "")]
        job = subprocess.run(
            [
                *(sys.executable, "-m", "tfring.run", "-np", str(RANKS.value)),
                *(sys.executable, "-m", "tfring.bench", *arguments),
                f"--json={figures}",
            ],
            cwd=tree,
            env=os.environ | {"PYTHONPATH": ":".join(filter(None, paths))},
            capture_output=True,
            text=True,
            timeout=SECONDS.value,
        )
        if job.returncode != 0:
            raise SystemExit(f"{tree}: {job.stdout}{job.stderr}")
        return json.loads(figures.read_text())["rows"]


def main(arguments: list[str]) -> None:
    found: dict[tuple[int, str, str, str], list[float]] = {}
    for start in range(STARTS.value):
        for tree in TREES.value:
            for row in medians(Path(tree).resolve(), arguments[1:]):
                key = (row["count_bytes"], row["case"], tree, row["who"])
                found.setdefault(key, []).append(row["seconds"]["median"])
        print(f"{start + 1} of {STARTS.value}", file=sys.stderr, flush=True)
    rows = []
    for (count_bytes, case, tree, who), seconds in sorted(found.items()):
        spread = Spread.of(seconds)
        name = who if len(TREES.value) == 1 else f"{who}, {tree}"
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
    if JSON.value:
        content = {
            "command": " ".join(sys.argv),
            "starts": STARTS.value,
            "rows": rows,
        }
        Path(JSON.value).write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    # The words and flags behind tfring-bench's command are its own.
    flags.FLAGS.set_gnu_getopt(False)
    app.run(main)
