"""Chooses the members of a generation, and their order."""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

from tfring.launcher.elastic.host_table import HostTable
from tfring.launcher.elastic.workers import Limits, Worker


def count(limits: Limits, hosts: HostTable) -> int:
    """Returns how many members there may be.

    The slots of a host that is left out count, because its members stay; only
    new workers are not started there.
    """
    if limits.maximum is not None:
        return limits.maximum
    return max(limits.minimum, hosts.all_slots() - limits.spares)


def choose(
    members: Sequence[Worker],
    joiners: Sequence[Worker],
    hosts: HostTable,
    limits: Limits,
) -> list[Worker]:
    """Chooses the next members among the members and the waiting workers.

    Members leave if their host was taken away or has fewer slots now, or if
    they were asked to end. They stay if the newest state would be lost with
    them, or if too few would be left.
    """
    places = count(limits, hosts)
    both = sorted([*members, *joiners], key=_newest_first)
    staying: list[Worker] = []
    leaving: list[Worker] = []
    taken: collections.Counter[str] = collections.Counter()
    for worker in both:
        taken[worker.host] += 1
        has_slot = taken[worker.host] <= hosts.slots(worker.host)
        stays = has_slot and not worker.leaving
        (staying if stays else leaving).append(worker)
    if leaving and (not staying or _steps(staying[0]) < _steps(leaving[0])):
        # The only worker with the newest state stays for one more generation,
        # to pass it on. Any job may have two workers for that.
        staying.insert(0, leaving.pop(0))
        places = max(places + (limits.maximum is None), 2)
    missing = max(0, limits.minimum - len(staying))
    return (staying + leaving[:missing])[:places]


def _steps(worker: Worker) -> float:
    """Returns the commits in a worker's state; infinity while it trains."""
    return worker.steps if worker.ready else math.inf


def in_order(workers: Iterable[Worker]) -> list[Worker]:
    """Sorts by rank: the newest state first, and nodes together.

    Workers keep their rank if possible, so traced functions stay valid.
    """
    by_state = sorted(workers, key=_newest_first)
    if (kept := _in_their_places(by_state)) is not None:
        return kept
    nodes: dict[str, list[Worker]] = {}
    for worker in by_state:
        nodes.setdefault(worker.node, []).append(worker)
    return [worker for node in nodes.values() for worker in node]


def to_come(
    joiners: Iterable[Worker], workers: Iterable[Worker], places: int
) -> Iterator[tuple[Worker, int, list[str]]]:
    """Yields the places of workers once all that are starting have joined.

    Each item is a joiner, its rank, and the nodes by rank. `workers` are all
    workers of the job: the members first, then the others by age. The first
    `places` of them train. The others wait to replace a lost member, and are
    told the last rank.
    """
    chosen = list(dict.fromkeys(workers))[:places]
    ordered = in_order(chosen)
    for worker in joiners:
        own = ordered
        if worker not in chosen:
            own = in_order([*chosen[:-1], worker])
        yield worker, own.index(worker), [each.node for each in own]


def _in_their_places(workers: Sequence[Worker]) -> list[Worker] | None:
    """Keeps members at their ranks; None if that would separate nodes."""
    new = [each for each in workers if each.rank is None]
    old = {each.rank: each for each in workers if each.rank is not None}
    if len(new) + len(old) < len(workers) or max(old, default=0) >= len(
        workers
    ):
        return None
    places: list[Worker] = []
    for rank in range(len(workers)):
        worker = old.get(rank)
        if worker is None:
            # Take a new worker of the preceding rank's node if there is one.
            node = places[-1].node if places else ""
            worker = next((each for each in new if each.node == node), new[0])
            new.remove(worker)
        places.append(worker)
    # The first worker with the newest state has the first place.
    first = places.index(workers[0])
    if _steps(places[0]) < _steps(workers[0]):
        places[0], places[first] = places[first], places[0]
    nodes = [each.node for each in places]
    runs = 1 + sum(a != b for a, b in itertools.pairwise(nodes))
    return places if runs == len(set(nodes)) else None


def _newest_first(worker: Worker) -> tuple[float, float, int]:
    """Sorts by the newest state, then by the rank, then by age."""
    rank = math.inf if worker.rank is None else worker.rank
    return (-_steps(worker), rank, worker.number)
