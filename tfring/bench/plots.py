"""Draws the contestants of a benchmark, each in one colour in all plots.

The background is transparent and the text is grey, so that plots can be read on
light and on dark pages. Every function needs matplotlib.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfring.bench.sizes import format_bytes
from tfring.bench.statistics import Row

# The keys are the first words of contestants' names. The colours have a
# contrast of at least 3 with the documentation's white pages and dark pages.
COLOURS = {
    "tfring": "#e8590c",
    "mpi": "#3b82d6",
    "gloo": "#2a9a58",
    "empty": "#a06cd5",
}
TEXT_COLOUR = "#808080"
# The keys are the second words of contestants' names, up to a comma.
_DASHES = {"in place": "-", "function": "--", "jit": "-.", "eager": ":"}
FONT_POINTS = 11


def canvas(width: float, height: float, heading: str = "") -> tuple[Any, Any]:
    """Returns a figure of that size in inches, and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.patch.set_alpha(0)
    if heading:
        figure.suptitle(heading, color=TEXT_COLOUR, fontsize=FONT_POINTS - 3)
    axes = figure.subplots()
    axes.patch.set_alpha(0)
    axes.tick_params(
        which="both", colors=TEXT_COLOUR, labelsize=FONT_POINTS - 1
    )
    axes.spines[:].set_color(TEXT_COLOUR)
    axes.spines[["top", "right"]].set_visible(False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set(color=TEXT_COLOUR, fontsize=FONT_POINTS)
    axes.grid(visible=True, which="major", color=TEXT_COLOUR, alpha=0.25)
    return figure, axes


def colour(who: str) -> str:
    """Returns the colour of a contestant; grey for others, such as a copy."""
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


def plot(path: Path, heading: str, rows: Sequence[Row]) -> None:
    """Draws times by size as lines, or as bars if there is only one case."""
    figure, axes = canvas(7, 4.4, heading)
    if len({row.case for row in rows}) == 1:
        _draw_bars(axes, rows)
    else:
        draw_lines_by_size(axes, rows)
        figure.legend(
            loc="outside right upper", frameon=False, labelcolor="linecolor"
        )
    figure.savefig(path)


def _draw_bars(axes: Any, rows: Sequence[Row]) -> None:
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


def draw_lines_by_size(axes: Any, rows: Sequence[Row]) -> None:
    """Draws the times of each contestant over the size; see `plot`."""
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


def _format_power(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= 0.99 * size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds * 1e6:g} us"
