"""Draws the contestants of a benchmark, each in one colour in all plots.

The ground is transparent and the text grey, so that a plot can be read on light
and on dark pages. Every function needs matplotlib.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from tfring.bench.sizes import format_bytes
from tfring.bench.statistics import Row

# By the first word of a contestant's name. They have a contrast of at least 3
# with white pages and with the documentation's dark ones.
COLOURS = {
    "tfring": "#e8590c",
    "mpi": "#3b82d6",
    "gloo": "#2a9a58",
    "empty": "#a06cd5",
}
TEXT_COLOUR = "#808080"
# By the rest of the name, up to a comma.
_DASHES = {"in place": "-", "function": "--", "jit": "-.", "eager": ":"}
_FONT_POINTS = 11


def canvas(width: float, height: float) -> tuple[Any, Any]:
    """Returns a figure of that size in inches, and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.patch.set_alpha(0)
    axes = figure.subplots()
    axes.patch.set_alpha(0)
    axes.tick_params(
        which="both", colors=TEXT_COLOUR, labelsize=_FONT_POINTS - 1
    )
    axes.spines[:].set_color(TEXT_COLOUR)
    axes.spines[["top", "right"]].set_visible(False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set(color=TEXT_COLOUR, fontsize=_FONT_POINTS)
    axes.grid(visible=True, which="major", color=TEXT_COLOUR, alpha=0.25)
    return figure, axes


def title(figure: Any, text: str) -> None:
    figure.suptitle(text, color=TEXT_COLOUR, fontsize=_FONT_POINTS - 3)


def colour(who: str) -> str:
    """The colour of a contestant; grey if it is none, such as a bare copy."""
    return COLOURS.get(who.split()[0], TEXT_COLOUR)


def line(
    axes: Any,
    who: str,
    x: Sequence[Any],
    y: Sequence[float],
    spread: tuple[Sequence[float], Sequence[float]] | None = None,
) -> None:
    """Draws a contestant's values, tfring's in front of its peers'."""
    contestant, _, mode = who.partition(" ")
    ours = contestant == "tfring"
    axes.plot(
        x,
        y,
        marker=".",
        color=colour(who),
        label=who,
        linestyle=_DASHES.get(mode.partition(",")[0], ":"),
        linewidth=2.6 if ours else 1.6,
        zorder=4 if ours else 3,
    )
    if spread:
        axes.fill_between(
            x, *spread, color=colour(who), alpha=0.12, linewidth=0
        )


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
    for who, height in apart(heights, 1.2 * _FONT_POINTS).items():
        axes.annotate(
            who,
            lines[who],
            xytext=(16, height - heights[who]),
            textcoords="offset points",
            color=colour(who),
            fontsize=_FONT_POINTS,
            fontweight="bold" if who.startswith("tfring") else "normal",
            verticalalignment="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": colour(who),
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


def plot(path: Path, heading: str, rows: Sequence[Row]) -> None:
    """Times by size as lines, or as bars if there is but one case."""
    figure, axes = canvas(6, 4.4)
    title(figure, heading)
    draw = _bars if len({row.case for row in rows}) == 1 else _lines_by_size
    draw(figure, axes, rows)
    figure.savefig(path)


def _bars(figure: Any, axes: Any, rows: Sequence[Row]) -> None:
    least = [row.seconds.median - row.seconds.least for row in rows]
    most = [row.seconds.most - row.seconds.median for row in rows]
    axes.barh(
        [row.who for row in rows],
        [row.seconds.median * 1e3 for row in rows],
        xerr=[[value * 1e3 for value in side] for side in (least, most)],
        color=[colour(row.who) for row in rows],
        ecolor=TEXT_COLOUR,
    )
    axes.invert_yaxis()
    axes.set_xlabel(f"ms, {rows[0].case}; median, min and max")


def _lines_by_size(figure: Any, axes: Any, rows: Sequence[Row]) -> None:
    from matplotlib.ticker import LogLocator

    by_who: dict[str, list[Row]] = {}
    for row in rows:
        by_who.setdefault(row.who, []).append(row)
    for who, of_who in by_who.items():
        line(
            axes,
            who,
            [row.count_bytes for row in of_who],
            [row.seconds.median for row in of_who],
            (
                [row.seconds.least for row in of_who],
                [row.seconds.most for row in of_who],
            ),
        )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(2, numticks=5))
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: format_bytes(int(value)))
    axes.yaxis.set_major_formatter(lambda value, _: _format_power(value))
    axes.set_ylabel("median, min and max")
    name_lines(figure, axes)


def _format_power(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= 0.99 * size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds * 1e6:g} us"
