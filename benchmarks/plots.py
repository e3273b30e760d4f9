"""Draws the documentation's plots again, from figures that were kept.

  .venv/bin/python benchmarks/plots.py     needs matplotlib

The figures are in benchmarks/results/. A new run draws its own plot by --plot.
"""

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import program

from tfring.bench import plots
from tfring.bench.sizes import format_bytes
from tfring.bench.statistics import Row, Spread

RESULTS = program.ROOT / "benchmarks/results"
PLOTS = program.ROOT / "docs/plots"


def plot_sizes(path: Path, heading: str, rows: Sequence[Row]) -> None:
    """Draws the times of each contestant by size."""
    figure, axes = plots.canvas(6, 4.4, heading)
    plots.draw_lines_by_size(axes, rows)
    name_lines(figure, axes)
    figure.savefig(path)


def plot_shares(path: Path, shares: Sequence[tuple[int, str, float]]) -> None:
    """Draws the shares of a link's bandwidth: hosts, contestant, share."""
    figure, axes = plots.canvas(6, 3.6)
    for who in dict.fromkeys(each for _, each, _ in shares):
        own = [
            (str(hosts), 100 * of) for hosts, each, of in shares if each == who
        ]
        plots.line(axes, who, *zip(*own, strict=True))
    axes.set_xlabel("hosts")
    axes.set_ylabel("% of the bound, by the median time")
    axes.set_ylim(0, 100)
    name_lines(figure, axes)
    figure.savefig(path)


def plot_ranks(path: Path, figures: Sequence[Mapping[str, Any]]) -> None:
    """Draws simulated times by the number of ranks, a group for each size."""
    figure, axes = plots.canvas(7, 4.8)
    kinds = {
        "ring": ("ring_ms", plots.COLOURS["mpi"], "--"),
        "auto": ("auto_ms", plots.COLOURS["tfring"], "-"),
        "bound": ("bound_ms", plots.TEXT_COLOUR, ":"),
    }
    sizes = list(dict.fromkeys(each["bytes"] for each in figures))
    for size in sizes:
        own = [each for each in figures if each["bytes"] == size]
        ranks = [str(each["ranks"]) for each in own]
        for kind, (key, colour, style) in kinds.items():
            axes.plot(
                ranks,
                [each[key] for each in own],
                color=colour,
                linestyle=style,
                linewidth=2.6 if kind == "auto" else 1.6,
                label=kind if size == sizes[0] else None,
            )
        axes.annotate(
            format_bytes(size),
            (ranks[-1], own[-1]["auto_ms"]),
            xytext=(6, 0),
            textcoords="offset points",
            color=plots.TEXT_COLOUR,
            fontsize=plots.FONT_POINTS,
            verticalalignment="center",
            annotation_clip=False,
        )
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} ms")
    axes.set_xlabel("ranks, 8 on each node")
    axes.legend(frameon=False, labelcolor="linecolor")
    figure.savefig(path)


def name_lines(figure: Any, axes: Any) -> None:
    """Writes each line's name at its right end; close ones move apart."""
    figure.draw_without_rendering()
    pixels_per_point = figure.dpi / 72
    lines = {
        each.get_label(): (each.get_xdata()[-1], each.get_ydata()[-1])
        for each in axes.lines
    }
    heights = {
        who: axes.transData.transform((axes.convert_xunits(x), y))[1]
        / pixels_per_point
        for who, (x, y) in lines.items()
    }
    for who, height in apart(heights, 1.2 * plots.FONT_POINTS).items():
        axes.annotate(
            who,
            lines[who],
            xytext=(16, height - heights[who]),
            textcoords="offset points",
            color=plots.colour(who),
            fontsize=plots.FONT_POINTS,
            fontweight="bold" if who.startswith("tfring") else "normal",
            verticalalignment="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": plots.colour(who),
                "linewidth": 0.6,
                "relpos": (0, 0.5),
                "shrinkB": 3,
            },
        )


def apart(heights: Mapping[str, float], gap: float) -> dict[str, float]:
    """Moves labels by as little as leaves `gap` between each two of them.

    The least squares are an isotonic regression: labels that would meet are a
    block about the mean of their own heights.
    """
    names = sorted(heights, key=heights.__getitem__)
    blocks: list[list[float]] = []
    for number, name in enumerate(names):
        blocks.append([heights[name] - number * gap])
        while len(blocks) > 1 and fmean(blocks[-2]) > fmean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    bases = [fmean(block) for block in blocks for _ in block]
    return {
        name: base + number * gap
        for number, (name, base) in enumerate(zip(names, bases, strict=True))
    }


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    kept = json.loads((RESULTS / "2026-11-28-allreduce.json").read_text())
    rows = [
        Row(**row | {"seconds": Spread(**row["seconds"])}, cpu_seconds=math.nan)
        for row in kept["rows"]
    ]
    plot_sizes(PLOTS / "allreduce.svg", kept["title"], rows)
    kept = json.loads((RESULTS / "2026-11-22-between-hosts.json").read_text())
    plot_shares(
        PLOTS / "between_hosts.svg",
        [
            (figure["hosts"], figure["who"], figure["median_share"])
            for figure in kept["figures"]
        ],
    )
    kept = json.loads((RESULTS / "2026-11-29-scale.json").read_text())
    plot_ranks(PLOTS / "scaling.svg", kept["figures"])


if __name__ == "__main__":
    main()
