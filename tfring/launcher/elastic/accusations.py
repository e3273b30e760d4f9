"""Finds the guilty worker if members of a generation cannot connect."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tfring.launcher.elastic.workers import Worker

# The number of a generation, and two members of it that could not connect.
Accusation = tuple[int, frozenset[str]]


def to_blame(
    members: Sequence[Worker], unconnected: Iterable[Accusation]
) -> Worker | None:
    """Returns the worker to give up, or None if the accusations blame nobody.

    A new worker is blamed before one that has been connected. Any other worker
    needs two accusations: by two members, or in two generations. The last
    member that has the state is never blamed. All members must be ready.
    """
    by_name = {each.name: each for each in members}
    with_state = [each for each in members if each.steps >= 0]
    accused: dict[Worker, set[tuple[int, Worker]]] = {}
    for generation, pair in unconnected:
        if pair <= by_name.keys():
            one, other = (by_name[name] for name in pair)
            accused.setdefault(one, set()).add((generation, other))
            accused.setdefault(other, set()).add((generation, one))
    guilty = []
    for worker, found in accused.items():
        others = {other for _, other in found}
        is_newer = not worker.connected and any(
            other.connected for other in others
        )
        if (is_newer or len(found) > 1) and with_state != [worker]:
            guilty.append((is_newer, len(others), worker.number, worker))
    return max(guilty)[-1] if guilty else None
