"""The recordings of all ranks, as one file in Chrome's trace format.

In the trace a rank is a process, an engine one or more threads, and a request
an async track.

Reference: "Trace Event Format", which Perfetto reads as well.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Kinds of events on an engine's thread. The other three are parts of a bucket.
_OF_THREADS = ("bucket", "pack", "ring", "unpack")


@dataclasses.dataclass(frozen=True)
class Event:
    """See `Timeline::Event` in tfring_ops/engine/timeline.h."""

    phase: str
    kind: str
    process_set: int
    thread: int
    begin_ns: int
    end_ns: int
    count_bytes: int
    sent_bytes: int
    name: str


@dataclasses.dataclass(frozen=True)
class Recording:
    """The recording of one rank."""

    host: str
    offset_ns: int  # rank 0's clock minus the rank's
    dropped: int
    events: list[Event]


def parse(text: str) -> tuple[int, list[Event]]:
    """Parses the result of `tfring_timeline_stop`: dropped and kept events."""
    dropped, *lines = text.splitlines()
    events = []
    for line in lines:
        phase, kind, *numbers, name = line.split("\t", maxsplit=8)
        fields: list[Any] = [phase, kind, *map(int, numbers), name]
        events.append(Event(*fields))
    return int(dropped), events


def write(path: Path, recordings: Sequence[Recording]) -> None:
    """Writes all ranks' recordings, in the order of the ranks."""
    path.write_text(json.dumps({"traceEvents": chrome_events(recordings)}))


def chrome_events(recordings: Sequence[Recording]) -> list[dict[str, Any]]:
    """Returns all events by rank 0's clock, from 0 on."""
    start_ns = min(
        (
            event.begin_ns + recording.offset_ns
            for recording in recordings
            for event in recording.events
        ),
        default=0,
    )
    result: list[dict[str, Any]] = []
    for rank, recording in enumerate(recordings):
        name = f"rank {rank}, {recording.host}"
        result.append(
            {"ph": "M", "pid": rank, "name": "process_name"}
            | {"args": {"name": name}}
        )
        shift_ns = recording.offset_ns - start_ns
        for number, event in enumerate(recording.events):
            result += _chrome(event, f"{rank}.{number}", rank, shift_ns)
    return result


def _chrome(
    event: Event, identity: str, rank: int, shift_ns: int
) -> list[dict[str, Any]]:
    begin_us = (event.begin_ns + shift_ns) / 1e3
    end_us = (event.end_ns + shift_ns) / 1e3
    args = {
        "request": event.name,
        "kind": event.kind,
        "bytes": event.count_bytes,
        "process_set": event.process_set,
    }
    if event.phase == "bucket":
        args["sent_bytes"] = event.sent_bytes
    common = {
        "name": f"{event.phase} {event.name}".rstrip(),
        "cat": event.phase,
        "pid": rank,
        "tid": event.thread,
        "ts": begin_us,
        "args": args,
    }
    if event.phase in _OF_THREADS:
        return [common | {"ph": "X", "dur": end_us - begin_us}]
    if event.phase == "response":
        return [common | {"ph": "i", "s": "p"}]
    # Requests overlap, so each has a track of its own.
    return [
        common | {"ph": "b", "id": identity},
        common | {"ph": "e", "id": identity, "ts": end_us},
    ]
