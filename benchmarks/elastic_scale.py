"""Elastic jobs of hundreds of ranks in simulated time: a host is lost.

  .venv/bin/python benchmarks/elastic_scale.py [--ranks 64 512 1024]

The launcher's rules and messages are real. What the launcher computes takes the
CPU time that it takes here, and so does what a worker does with a message or a
connection; those times are measured first, with the real handshake. The network
is a model: a latency for each message, and a node's link for its bytes.

It ends when the last rank has all its connections. What follows is in
docs/scaling.md: the measurement of costs, the first step's negotiation, and the
broadcast of the state, which depends on the model.
"""

import argparse
import dataclasses
import heapq
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from tfring.launcher.elastic.host_table import HostTable
from tfring.launcher.elastic.membership import Membership
from tfring.launcher.elastic.workers import Limits, Send
from tfring.rendezvous import handshake, wire

RANKS_PER_HOST = 8
LATENCY_SECONDS = 20e-6
BYTES_PER_SECOND = 12.5e9
# The message by which a rank introduces itself to the rank it connects to.
HELLO = {
    "role": "data",
    "generation": 2,
    "channel": "control",
    "worker": "w1023",
    "to": "w512",
}
# A connection takes TCP's handshake, which counts as one message, a greeting,
# the hello and a proof. Each waits for the one before.
CONNECTION_MESSAGES = 4


@dataclasses.dataclass(frozen=True)
class ConnectionCosts:
    """The CPU seconds of one connection, on each of its sides."""

    connecting: float
    accepting: float


def measure_connections(count: int = 1000) -> ConnectionCosts:
    """Measures connections of this machine with itself."""
    token = handshake.make_token()
    listener = wire.Listener("127.0.0.1", token)
    accepting = 0.0

    def accept() -> None:
        nonlocal accepting
        begin = time.thread_time()
        for _ in range(count):
            while (accepted := listener.accept(1.0)) is None:
                pass
            accepted[0].close()
        accepting = time.thread_time() - begin

    thread = threading.Thread(target=accept)
    thread.start()
    begin = time.thread_time()
    for _ in range(count):
        wire.connect(listener.address, token, HELLO).close()
    connecting = time.thread_time() - begin
    thread.join()
    listener.close()
    return ConnectionCosts(connecting / count, accepting / count)


def seconds_of(call: Callable[[], Any], times: int = 5) -> float:
    """Returns the least CPU seconds of several calls."""
    least = float("inf")
    for _ in range(times):
        begin = time.thread_time()
        call()
        least = min(least, time.thread_time() - begin)
    return least


def seconds_to_send(frame: bytes) -> float:
    """Returns the CPU seconds of a send of this many bytes."""
    part = frame[: 64 << 10]  # fits the buffer, so that no send waits
    sender, receiver = socket.socketpair()
    with sender, receiver:

        def send() -> None:
            sender.sendall(part)
            left = len(part)
            while left > 0:
                left -= len(receiver.recv(left))

        # This thread also receives, which takes half of the time.
        return seconds_of(send) / 2 * len(frame) / len(part)


class Launcher:
    """The rules of a job, on a clock that their own CPU time moves."""

    def __init__(self, hosts: int) -> None:
        self.now = 0.0
        table = HostTable(lambda: self.now)
        names = [f"host{i}" for i in range(hosts)]
        table.update(dict.fromkeys(names, RANKS_PER_HOST))
        limits = Limits(minimum=RANKS_PER_HOST)
        self._rules = Membership(limits, table, lambda: self.now)
        for name in names:
            table.came_up(name)
        started = [
            action.message["worker"]
            for action in self.act()
            if action.message["kind"] == "start"
        ]
        self.hear(started, "ready", generation=0, **_ready(-1))
        self.act()
        self.hear(started, "formed", generation=1)
        self.act()

    def act(self) -> list[Send]:
        """Returns what the rules send."""
        actions = self._timed(self._rules.take_actions)
        return [each for each in actions if isinstance(each, Send)]

    def hear(self, workers: list[str], kind: str, **more: Any) -> None:
        """Takes the same message of all these workers."""
        frame = json.dumps({"kind": kind, **more})

        def take() -> None:
            for worker in workers:
                self._rules.heard(worker, json.loads(frame))

        self._timed(take)

    def lose(self, host: str) -> None:
        """Loses a host."""
        self._timed(lambda: self._rules.host_lost(host, f"{host} was lost"))

    def send(self, action: Send) -> list[float]:
        """Sends a message; returns when each worker has it."""
        begin = time.thread_time()
        frame = wire.encoded(action.message)
        self.now += time.thread_time() - begin
        each = max(seconds_to_send(frame), len(frame) / BYTES_PER_SECOND)
        sent = []
        for _ in action.names:
            self.now += each
            sent.append(self.now + LATENCY_SECONDS)
        return sent

    def _timed(self, call: Callable[[], Any]) -> Any:
        begin = time.thread_time()
        result = call()
        self.now += time.thread_time() - begin
        return result


def _ready(steps: int) -> dict[str, Any]:
    return {"address": ("10.0.12.34", 40000), "steps": steps, "building": False}


def connect_all(begins: list[float], costs: ConnectionCosts) -> float:
    """Connects each rank with all others, as `Mesh.connect` does.

    A rank connects to the lower ones in turn, the nearest first, and accepts
    the higher ones meanwhile; its two threads share a core.

    Returns:
        The time at which the last rank has all its connections, if the ranks
        begin at the times `begins`.
    """
    ranks = len(begins)
    # Each message has a part of the work of the side that gets it, and the
    # connecting side begins.
    connecting, accepting = costs.connecting / 3, costs.accepting / 2
    free = list(begins)
    missing = [ranks - 1] * ranks
    last = 0.0
    # Messages: when each arrives, the connecting rank, the other one, and the
    # number of the message.
    events = [(begins[rank], rank, rank - 1, 0) for rank in range(1, ranks)]
    heapq.heapify(events)
    while events:
        now, rank, other, number = heapq.heappop(events)
        at = rank if number % 2 == 0 else other
        free[at] = max(free[at], now) + (connecting, accepting)[number % 2]
        if number < CONNECTION_MESSAGES:
            trips = 3 if number == 0 else 1
            event = (free[at] + trips * LATENCY_SECONDS, rank, other)
            heapq.heappush(events, (*event, number + 1))
            continue
        for each in (rank, other):
            missing[each] -= 1
            if missing[each] == 0:
                last = max(last, free[each])
        if other > 0:
            heapq.heappush(events, (free[at], rank, other - 1, 0))
    return last


def lose_a_host(hosts: int, costs: ConnectionCosts) -> dict[str, float]:
    """Returns the seconds of each stage from the loss to the connections."""
    launcher = Launcher(hosts)
    begin = launcher.now
    launcher.lose("host1")
    [stop] = [a for a in launcher.act() if a.message["kind"] == "stop"]
    stopped = launcher.send(stop)
    launcher.now = max(launcher.now, stopped[0] + LATENCY_SECONDS)
    launcher.hear(list(stop.names), "ready", generation=1, **_ready(100))
    left = launcher.now
    [form] = [a for a in launcher.act() if a.message["kind"] == "form"]
    received = launcher.send(form)
    frame = json.dumps(form.message)
    reading = seconds_of(lambda: json.loads(frame))
    formed = max(received)
    connected = connect_all([time + reading for time in received], costs)
    return {
        "stopped": left - begin,
        "formed": formed - left,
        "connected": connected - formed,
        "in all": connected - begin,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", nargs="*", type=int, default=[64, 512, 1024])
    costs = measure_connections()
    print(
        f"a connection: {costs.connecting * 1e6:.0f} us of CPU where it is "
        f"made, {costs.accepting * 1e6:.0f} us where it is accepted"
    )
    for ranks in parser.parse_args().ranks:
        stages = lose_a_host(ranks // RANKS_PER_HOST, costs)
        print(
            f"{ranks} ranks: "
            + ", ".join(f"{name} {at:.3f} s" for name, at in stages.items())
        )


if __name__ == "__main__":
    main()
