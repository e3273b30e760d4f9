"""Statistics of measured rounds, and how a table shows them."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

# Seconds, CPU seconds and sent bytes of a call.
Costs = tuple[float, float, float]


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

    @classmethod
    def of_turns(
        cls,
        case: str,
        count_bytes: int,
        who: str,
        turns: Sequence[Sequence[Costs]],
        **others: Any,
    ) -> Row:
        """Sums up a contestant's turns, each with the costs on every rank."""
        return cls(
            case,
            count_bytes,
            who,
            Spread.of(seconds_of(turns)),
            statistics.median(
                statistics.mean(cpu for _, cpu, _ in turn) for turn in turns
            ),
            sent_bytes=statistics.median(
                max(sent for _, _, sent in turn) for turn in turns
            ),
            **others,
        )


def seconds_of(turns: Sequence[Sequence[Costs]]) -> list[float]:
    """Returns the seconds of each turn's slowest rank."""
    return [max(seconds for seconds, _, _ in turn) for turn in turns]


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
