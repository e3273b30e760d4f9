"""Which workers become the members of a generation, and in which order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from tfring.launcher.elastic.hosts import HostTable
from tfring.launcher.elastic.workers import Worker


def newest_steps(workers: Iterable[Worker]) -> int:
    """Returns the newest state that any of the workers has; -1 for none."""
    return max(
        (each.ready["steps"] for each in workers if each.ready), default=-1
    )


def choose(
    members: Sequence[Worker],
    joiners: Sequence[Worker],
    hosts: HostTable,
    *,
    minimum: int,
    places: int,
) -> list[Worker]:
    """Chooses who trains on; all of them are ready.

    Members whose host has been taken away leave, unless the newest state would
    go with them, or too few would be left.

    Args:
        members: Of the generation that has ended.
        joiners: Who else waits for a place.
        hosts: The hosts that there are.
        minimum: How many there should be at least.
        places: How many there may be.
    """
    both = sorted([*members, *joiners], key=_newest_first)
    staying = [each for each in both if each.host in hosts]
    leaving = [each for each in both if each.host not in hosts]
    if leaving and newest_steps(staying) < newest_steps(leaving):
        # It gives the others its state, and leaves the next time.
        staying.insert(0, leaving.pop(0))
    missing = max(0, minimum - len(staying))
    return (staying + leaving[:missing])[:places]


def in_order(workers: Iterable[Worker]) -> list[Worker]:
    """Sorts by rank: the newest state first, and nodes together."""
    nodes: dict[Any, list[Worker]] = {}
    for worker in sorted(workers, key=_newest_first):
        nodes.setdefault((worker.ready or {}).get("node"), []).append(worker)
    return [worker for node in nodes.values() for worker in node]


def _newest_first(worker: Worker) -> tuple[int, float, int]:
    """Then those that had a place, by their ranks."""
    rank = math.inf if worker.rank is None else worker.rank
    return (-newest_steps([worker]), rank, worker.number)
