"""Statistics of measured rounds, and how a table shows them."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Spread:
    """The median, the minimum and the maximum of some rounds."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


@dataclasses.dataclass(frozen=True)
class Row:
    """The measurements of one contestant in one case."""

    case: str  # the task: "4 MiB"
    count_bytes: int
    who: str  # the contestant: "tfring eager"
    seconds: Spread  # per call, on the slowest rank of each round
    cpu_seconds: float  # per call, of all threads; the mean over ranks
    # Bytes per second; 0 if no bytes are moved.
    algorithm_bandwidth: float = 0.0
    bus_bandwidth: float = 0.0
    # The bytes of messages per call, without negotiation, on the rank with the
    # most. 0 if tfring sends nothing.
    sent_bytes: float = 0.0
    # Growth of the memory in use from before the first call to the peak of a
    # call, including the result, on the rank with the most. Buffers that are
    # kept count for the contestant that needs them first. None if unknown.
    added_bytes: int | None = None


def format_seconds(seconds: float) -> str:
    """Formats a time in three digits of a unit that fits: 12.3 us, 4.56 ms."""
    if seconds < 1e-3:
        value, unit = seconds * 1e6, "us"
    elif seconds < 1:
        value, unit = seconds * 1e3, "ms"
    else:
        value, unit = seconds, "s"
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f} {unit}"


def format_bandwidth(bytes_per_second: float) -> str:
    """Formats a bandwidth in 1e9 bytes per second: 1.25 GB/s; "-" for 0."""
    if bytes_per_second == 0:
        return "-"
    return f"{bytes_per_second / 1e9:.2f} GB/s"
