"""Shows rows as a table and as JSON."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tfring
from tfring.bench.statistics import Row, format_bandwidth, format_seconds

_HEADINGS = (
    *("", "", "median", "min", "max", "algbw", "busbw", "CPU", "sent"),
    "memory",
)


def table(rows: Sequence[Row]) -> str:
    """Returns headings and a line for each row, without empty columns.

    CPU is the busy time of all threads of a rank. Sent is the size of a rank's
    messages. Memory is the peak that calls have added to the memory in use,
    including results.
    """
    lines = [list(_HEADINGS)]
    for row in rows:
        lines.append(
            [
                row.case,
                row.who,
                format_seconds(row.seconds.median),
                format_seconds(row.seconds.least),
                format_seconds(row.seconds.most),
                format_bandwidth(row.algorithm_bandwidth),
                format_bandwidth(row.bus_bandwidth),
                format_seconds(row.cpu_seconds),
                _format_sent(row.sent_bytes),
                _format_memory(row.added_bytes),
            ]
        )
    columns = [
        column for column in zip(*lines, strict=True) if set(column[1:]) - {"-"}
    ]
    widths = [max(map(len, column)) for column in columns]
    shown = []
    for cells in zip(*columns, strict=True):
        # Align words to the left, and figures to the right.
        aligned = [
            cell.ljust(width) if number < 2 else cell.rjust(width)
            for number, (cell, width) in enumerate(
                zip(cells, widths, strict=True)
            )
        ]
        shown.append("  ".join(aligned).rstrip())
    return "\n".join(shown)


def _format_sent(count_bytes: float) -> str:
    return "-" if count_bytes == 0 else f"{count_bytes / 1e6:.3g} MB"


def _format_memory(count_bytes: int | None) -> str:
    return "-" if count_bytes is None else f"{count_bytes / 2**20:.1f} MiB"


def machine(ranks: int) -> dict[str, Any]:
    """Describes the machine and the versions that were measured."""
    import keras
    import tensorflow as tf

    return {
        "host": socket.gethostname(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "ranks": ranks,
        "tfring": tfring.__version__,
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "python": platform.python_version(),
    }


def describe(machine: dict[str, Any]) -> str:
    """Returns `machine` in one line."""
    return (
        f"{machine['ranks']} ranks, {machine['host']}: {machine['processor']}, "
        f"{machine['cores']} cores, load {machine['load_before']:.1f}; "
        f"TensorFlow {machine['tensorflow']}, tfring {machine['tfring']}"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def write_json(
    path: Path,
    machine: dict[str, Any],
    command: Sequence[str],
    rows: Sequence[Row],
) -> None:
    """Writes all figures: seconds, bytes, and bytes per second."""
    content = {
        "machine": machine,
        "command": list(command),
        "rows": [dataclasses.asdict(row) for row in rows],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")
