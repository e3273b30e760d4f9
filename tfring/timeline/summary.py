"""Sums up the file of a timeline, in figures and as a picture."""

from __future__ import annotations

import dataclasses
import itertools
import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tfring.bench.kinds import KINDS

# The beginning and the end, in microseconds.
Span = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class OfRank:
    requests: int
    buckets: int
    count_bytes: int
    seconds: float  # while a bucket ran
    # The part of `seconds` in which no operation waited for a result.
    overlap: float
    # The mean delay of the rank's submissions after the first rank's.
    late_seconds: float


@dataclasses.dataclass(frozen=True)
class OfKind:
    buckets: int
    count_bytes: int  # of a rank
    sent_bytes: int  # of a rank
    seconds: float  # of a rank
    bus_bandwidth: float


@dataclasses.dataclass(frozen=True)
class Summary:
    ranks: dict[int, OfRank]
    kinds: dict[str, OfKind]

    @property
    def slowest_rank(self) -> int:
        """The rank for which the others wait most."""
        return max(self.ranks, key=lambda rank: self.ranks[rank].late_seconds)


def read(path: Path) -> list[dict[str, Any]]:
    """Returns the events of a file.

    Raises:
        ValueError: The file is no timeline.
    """
    try:
        events = json.loads(path.read_text())["traceEvents"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no timeline: {error!r}.") from None
    return list(events)


def summarize(events: Sequence[dict[str, Any]]) -> Summary:
    """Returns the figures of all ranks.

    Raises:
        ValueError: There is no rank in the events.
    """
    size = len({event["pid"] for event in events})
    if size == 0:
        raise ValueError("The timeline is empty: no rank has recorded it.")
    late = _lateness(events, size)
    ranks = {}
    for rank in range(size):
        mine = [event for event in events if event["pid"] == rank]
        buckets = [event for event in mine if event.get("cat") == "bucket"]
        running = _union(_span(event) for event in buckets)
        waiting = _union(_async_spans(mine, "wait"))
        run_us = _length(running)
        exposed_us = _length(_intersection(running, waiting))
        ranks[rank] = OfRank(
            sum(_is_begin(event, "request") for event in mine),
            len(buckets),
            sum(event["args"]["bytes"] for event in buckets),
            run_us / 1e6,
            1 - exposed_us / run_us if run_us else 0.0,
            late[rank],
        )
    return Summary(ranks, _by_kind(events, size))


def _by_kind(events: Sequence[dict[str, Any]], size: int) -> dict[str, OfKind]:
    by_kind: dict[str, list[dict[str, Any]]] = {}
    ranks_of_set: dict[int, set[int]] = {}
    for event in events:
        if event.get("cat") == "bucket":
            by_kind.setdefault(event["args"]["kind"], []).append(event)
            of_set = ranks_of_set.setdefault(
                event["args"]["process_set"], set()
            )
            of_set.add(event["pid"])
    kinds = {}
    for kind, buckets in by_kind.items():
        count_bytes, sent_bytes, bus_bytes = 0, 0, 0.0
        for event in buckets:
            ranks = len(ranks_of_set[event["args"]["process_set"]])
            moved_bytes = event["args"]["bytes"]
            if kind == "allgather":
                # As nccl-tests does, count the result, which is from all ranks.
                moved_bytes *= ranks
            count_bytes += moved_bytes
            sent_bytes += event["args"]["sent_bytes"]
            if kind in KINDS:
                bus_bytes += moved_bytes * KINDS[kind].bus_factor(ranks)
        # Several buckets of a rank may run at once.
        seconds = sum(
            _length(_union(_span(e) for e in buckets if e["pid"] == rank)) / 1e6
            for rank in range(size)
        )
        kinds[kind] = OfKind(
            len(buckets) // size,
            count_bytes // size,
            sent_bytes // size,
            seconds / size,
            bus_bytes / seconds if seconds else 0.0,
        )
    return kinds


def _lateness(events: Sequence[dict[str, Any]], size: int) -> list[float]:
    """Returns each rank's mean delay in seconds, over all requests."""
    # The n-th request of a name is the same collective on all ranks.
    submitted: dict[tuple[str, int, int], dict[int, float]] = {}
    seen: dict[tuple[int, str, int], int] = {}
    for event in sorted(events, key=lambda event: event.get("ts", 0)):
        if not _is_begin(event, "request"):
            continue
        name, rank = event["args"]["request"], event["pid"]
        of_set = event["args"]["process_set"]
        number = seen.get((rank, name, of_set), 0)
        seen[rank, name, of_set] = number + 1
        submitted.setdefault((name, of_set, number), {})[rank] = event["ts"]
    late_us: list[list[float]] = [[] for _ in range(size)]
    for times in submitted.values():
        first = min(times.values())
        for rank, moment in times.items():
            late_us[rank].append(moment - first)
    return [
        statistics.fmean(of_rank) / 1e6 if of_rank else 0.0
        for of_rank in late_us
    ]


def _is_begin(event: dict[str, Any], phase: str) -> bool:
    return bool(event["ph"] == "b" and event["cat"] == phase)


def _span(event: dict[str, Any]) -> Span:
    return event["ts"], event["ts"] + event["dur"]


def _async_spans(
    events: Iterable[dict[str, Any]], phase: str
) -> Iterable[Span]:
    begun: dict[str, float] = {}
    for event in events:
        if _is_begin(event, phase):
            begun[event["id"]] = event["ts"]
        elif event["ph"] == "e" and event["id"] in begun:
            yield begun[event["id"]], event["ts"]


def _union(spans: Iterable[Span]) -> list[Span]:
    """Returns the union of spans, as sorted spans that do not touch."""
    result: list[Span] = []
    for begin, end in sorted(spans):
        if result and begin <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], end))
        else:
            result.append((begin, end))
    return result


def _intersection(a: Sequence[Span], b: Sequence[Span]) -> list[Span]:
    result: list[Span] = []
    i = j = 0
    while i < len(a) and j < len(b):
        begin, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if begin < end:
            result.append((begin, end))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return result


def _length(spans: Iterable[Span]) -> float:
    return sum(end - begin for begin, end in spans)


def plot(path: Path, events: Sequence[dict[str, Any]]) -> None:
    """Draws a line for each rank's engine, and one for its waiting operations.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    ranks = sorted({event["pid"] for event in events})
    figure = Figure(figsize=(12, 1 + len(ranks)), layout="constrained")
    axes = figure.subplots()
    lines = list(itertools.product(ranks, ("bucket", "wait")))
    for number, (rank, phase) in enumerate(lines):
        mine = [event for event in events if event["pid"] == rank]
        spans = (
            (_span(event) for event in mine if event.get("cat") == phase)
            if phase == "bucket"
            else _async_spans(mine, phase)
        )
        axes.broken_barh(
            [
                (begin / 1e3, (end - begin) / 1e3)
                for begin, end in _union(spans)
            ],
            (number - 0.4, 0.8),
            color=f"C{0 if phase == 'bucket' else 1}",
        )
    axes.set_yticks(
        range(len(lines)),
        [
            f"rank {rank} {'runs' if phase == 'bucket' else 'waits'}"
            for rank, phase in lines
        ],
    )
    axes.invert_yaxis()
    axes.set_xlabel("ms")
    figure.savefig(path)
