"""The hosts of an elastic job: which may take workers, and which are left out.

There are no sockets here, and the caller passes the clock.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable, Mapping

# A host gets no new workers after this many failures, unless one of its workers
# has trained in between. Once a generation has trained, the host is tried again
# after the first of these times, then after twice that, ...
MOST_STRIKES = 3
FIRST_COOL_DOWN_SECONDS = 20.0
LONGEST_COOL_DOWN_SECONDS = 600.0
# A lost host is retried after this time, then after twice that, ..., and then
# left out.
FIRST_RETRY_SECONDS = 1.0


@dataclasses.dataclass
class _Host:
    slots: int
    # The machine: workers of hosts with the same node share memory.
    node: str
    order: int = 0
    # Such a host is forgotten when it is lost, and is new when it joins again.
    has_come_by_itself: bool = False
    up: bool = False  # its supervisor is connected
    leaving: bool = False  # its supervisor has been asked to end
    strikes: int = 0
    struck_at: float = -math.inf
    # How long the host was left out last. The time doubles each time.
    cool_down_seconds: float = FIRST_COOL_DOWN_SECONDS / 2
    retry_at: float = 0.0

    @property
    def left_out(self) -> bool:
        return self.strikes >= MOST_STRIKES


class HostTable:
    """All hosts that the job has been given."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._hosts: dict[str, _Host] = {}
        # The results of `slots_of_node`; empty after a change of the hosts.
        self._slots_of_nodes: dict[str, tuple[int, int]] = {}
        # True once a generation has trained. Before, a failure may be the
        # script's fault, and hosts that are left out are not retried.
        self._has_trained = False

    def update(self, slots: Mapping[str, int]) -> bool:
        """Takes the present hosts; returns True if anything has changed.

        A host that leaves and returns begins without strikes.
        """
        self._slots_of_nodes = {}
        before = {name: host.slots for name, host in self._hosts.items()}
        for name in before.keys() - slots.keys():
            del self._hosts[name]
        for name, count in slots.items():
            self._hosts.setdefault(name, _Host(count, name)).slots = count
        return before != dict(slots)

    def add(
        self, name: str, slots: int, node: str | None = None, order: int = 0
    ) -> None:
        """Takes a host that has joined by itself.

        `node` is the machine that the host is a part of; None if the host is a
        whole machine. Hosts with a smaller `order` come first in
        `slots_by_node`.
        """
        self._slots_of_nodes = {}
        self._hosts[name] = _Host(
            slots, node or name, order, has_come_by_itself=True
        )

    def __contains__(self, name: str) -> bool:
        return name in self._hosts

    def slots(self, name: str) -> int:
        """Returns how many workers a host takes; 0 if there is no such host."""
        return self._hosts[name].slots if name in self._hosts else 0

    def node(self, name: str) -> str:
        """Returns the node of a host; its name if there is no such host."""
        return self._hosts[name].node if name in self._hosts else name

    def slots_of_node(self, name: str) -> tuple[int, int]:
        """Counts the slots of a host's node: those before the host's, and all.

        Without such a host, both are 0.
        """
        if not self._slots_of_nodes:
            counted = collections.Counter[str]()
            before = {}
            for each, host in self._hosts.items():
                before[each] = counted[host.node]
                counted[host.node] += host.slots
            self._slots_of_nodes = {
                each: (before[each], counted[host.node])
                for each, host in self._hosts.items()
            }
        return self._slots_of_nodes.get(name, (0, 0))

    def slots_by_node(self) -> list[str]:
        """Returns the host of each slot that can be used now, node by node."""
        nodes: dict[str, list[str]] = {}
        hosts = sorted(self._hosts.items(), key=lambda each: each[1].order)
        for name, host in hosts:
            if host.up and not host.leaving:
                nodes.setdefault(host.node, []).extend([name] * host.slots)
        return [name for of_node in nodes.values() for name in of_node]

    def missing(self) -> list[str]:
        """Returns the hosts that should have a supervisor, and have none."""
        now = self._clock()
        return [
            name
            for name, host in self._hosts.items()
            if not (host.up or host.left_out) and now >= host.retry_at
        ]

    def tick(self) -> None:
        """Takes hosts back on trial when their cool-down is over."""
        if not self._has_trained:
            return
        now = self._clock()
        for host in self._hosts.values():
            if host.left_out and now >= host.struck_at + host.cool_down_seconds:
                host.strikes = MOST_STRIKES - 1

    def came_up(self, name: str) -> None:
        """Notes that a host's supervisor is connected."""
        if name in self._hosts:
            self._hosts[name].up = True

    def lost(self, name: str) -> str:
        """Notes that a host's supervisor is gone, or cannot be started.

        Returns for how long the host is left out, as `strike` does.
        """
        host = self._hosts.get(name)
        if host is None:
            return ""
        if host.has_come_by_itself:
            self._slots_of_nodes = {}
            del self._hosts[name]
            return ""
        host.up = host.leaving = False
        now = self._clock()
        host.retry_at = now + FIRST_RETRY_SECONDS * 2**host.strikes
        return self.strike(name, now)

    def strike(self, name: str, started: float) -> str:
        """Counts a failure on a host.

        A failure of a worker that was started before the last counted failure
        does not count: the workers of a host often fail together.

        Returns for how long the host is left out from now on, in words; "" if
        it is not left out, or was left out before.
        """
        host = self._hosts.get(name)
        if host is None or host.leaving or started < host.struck_at:
            return ""
        before = host.left_out
        host.strikes += 1
        host.struck_at = self._clock()
        if not host.left_out or before:
            return ""
        host.cool_down_seconds = min(
            2 * host.cool_down_seconds, LONGEST_COOL_DOWN_SECONDS
        )
        if not self._has_trained:
            return "until a generation has trained"
        return f"for {host.cool_down_seconds:g} s"

    def generation_trained(self) -> None:
        """Notes that a generation has trained for a while."""
        self._has_trained = True

    def worker_trained(self, name: str) -> None:
        """Clears a host of failures: a worker of it has trained for a while."""
        host = self._hosts.get(name)
        if host is not None and not host.left_out:
            host.strikes = 0
            host.cool_down_seconds = FIRST_COOL_DOWN_SECONDS / 2

    def leave(self, name: str) -> None:
        """Notes that a host's supervisor is about to end."""
        if name in self._hosts:
            self._hosts[name].leaving = True

    def free(self, occupied: Mapping[str, int], count: int) -> list[str]:
        """Returns the hosts of up to `count` new workers, one for each."""
        free = sorted(
            (host.strikes, -left, number, name)
            for number, (name, host) in enumerate(self._hosts.items())
            if host.up and not host.left_out and not host.leaving
            for left in range(1, host.slots - occupied.get(name, 0) + 1)
        )
        return [name for *_, name in free[: max(count, 0)]]

    def cools_down(self) -> bool:
        """Returns True if a host that is left out will be tried again."""
        return self._has_trained and any(
            host.left_out for host in self._hosts.values()
        )

    def all_slots(self) -> int:
        """Returns the slots of all hosts, including those left out."""
        return sum(host.slots for host in self._hosts.values())

    def capacity(self, occupied: Mapping[str, int]) -> int:
        """Returns how many workers may be started beside the occupied slots."""
        return sum(
            max(0, host.slots - occupied.get(name, 0))
            for name, host in self._hosts.items()
            if not host.left_out
        )
