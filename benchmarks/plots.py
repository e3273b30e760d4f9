"""Draws the documentation's plots again, from figures that were kept.

  .venv/bin/python benchmarks/plots.py     needs matplotlib

The figures are in benchmarks/results/. A new run draws its own plot by --plot.
"""

import json
import math
from pathlib import Path

import between_hosts

from tfring.bench import plots
from tfring.bench.statistics import Row, Spread

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"
PLOTS = ROOT / "docs/plots"
NOT_KEPT = math.nan


def main() -> None:
    kept = json.loads((RESULTS / "2026-11-28-allreduce.json").read_text())
    rows = [
        Row(**row | {"seconds": Spread(**row["seconds"])}, cpu_seconds=NOT_KEPT)
        for row in kept["rows"]
    ]
    plots.plot(PLOTS / "allreduce.svg", kept["title"], rows)
    kept = json.loads((RESULTS / "2026-11-22-between-hosts.json").read_text())
    figures = [
        between_hosts.Figure(
            **figure,
            median_seconds=NOT_KEPT,
            best_share=NOT_KEPT,
            cpu_seconds=NOT_KEPT,
        )
        for figure in kept["figures"]
    ]
    between_hosts.plot(PLOTS / "between_hosts.svg", figures)


if __name__ == "__main__":
    main()
