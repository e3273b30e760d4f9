"""Statistics of measured rounds, and how a table shows them."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Spread:
    """The median of some rounds, with the least and the most."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


@dataclasses.dataclass(frozen=True)
class Row:
    """The measurements of one contestant in one case."""

    case: str  # what is done: "4 MiB"
    count_bytes: int
    who: str  # and by whom: "tfring eager"
    seconds: Spread  # a call, on the slowest rank of each round
    cpu_seconds: float  # a call, of all of a rank's threads; the ranks' mean
    # Bytes by second; 0 where no bytes are moved.
    algorithm_bandwidth: float = 0.0
    bus_bandwidth: float = 0.0
    # The bytes of a rank's messages for a call, without negotiation; the most
    # of all ranks. 0 where tfring sends nothing.
    sent_bytes: float = 0.0
    # Growth of the memory in use from before the very first call to the
    # peak of a call, the result included; the largest of the ranks. Buffers
    # that are kept count for the first who needs them. None if not known.
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
    """Formats a bandwidth in 1e9 bytes by second: 1.25 GB/s; "-" for none."""
    if bytes_per_second == 0:
        return "-"
    return f"{bytes_per_second / 1e9:.2f} GB/s"
