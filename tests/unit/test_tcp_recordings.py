"""Recordings of ranks in threads; one of the ranks is lost."""

import socket
import threading
import time

import pytest

from tfring._core import clocks, tcp_recordings
from tfring._core.job import Topology
from tfring._core.tcp_recordings import gather
from tfring.rendezvous import wire

EVENT = "bucket\tallreduce\t0\t0\t{}\t{}\t8\t8\tname\n"


class FakeJob:
    def __init__(self, rank, channels, *, is_beside=False):
        self.topology = Topology.of_nodes(rank, ["a", "b", "c"])
        self.is_beside = is_beside
        self._channels = channels

    def pair(self, other, seconds):
        if other not in self._channels:
            raise ConnectionError("it is lost")
        return wire.Channel(self._channels[other])

    def why_stopped(self):
        return None


@pytest.mark.parametrize("same_kernel", [True, False])
def test_rank_0_has_those_that_are_there(monkeypatch, same_kernel):
    own, others = socket.socketpair()
    monkeypatch.setattr(tcp_recordings, "_PART_CHARACTERS", 50)
    monkeypatch.setattr(
        clocks,
        "kernel",
        lambda: "same" if same_kernel else threading.current_thread().name,
    )
    text = "3\n" + "".join(EVENT.format(i, i + 1) for i in range(100))
    given = []
    thread = threading.Thread(
        target=lambda: given.append(gather(FakeJob(1, {0: others}), text))
    )
    thread.start()
    began_ns = time.monotonic_ns()
    rank_0, rank_1, rank_2 = gather(FakeJob(0, {1: own}), "0\n")
    thread.join(60)
    assert given == [None]
    assert rank_0.events == rank_2.events == []
    assert rank_2.host == "lost"
    assert rank_1.dropped == 3
    assert [event.begin_ns for event in rank_1.events] == list(range(100))
    # Their clocks are the same one.
    assert abs(rank_1.offset_ns) <= time.monotonic_ns() - began_ns
    assert (rank_1.offset_ns == 0) == same_kernel


def test_the_fastest_ping_pong_counts():
    now, asked = 0, []

    def ask():
        nonlocal now
        there, back = (7, 7) if len(asked) == 9 else (30, 10)
        asked.append(None)
        now += there + back
        return now - back + 1000

    assert clocks.offset_ns(ask, lambda: now) == 1000
    assert len(asked) == clocks.PING_PONGS


def test_all_ranks_together_have_a_minute():
    now, asked = 0.0, []

    class Waits(FakeJob):
        def pair(self, other, seconds):
            nonlocal now
            asked.append(seconds)
            now += 50.0
            raise TimeoutError("it does not come")

    found = gather(Waits(0, {}), "0\n", lambda: now)
    assert [each.host for each in found[1:]] == ["lost", "lost"]
    assert asked == [60, 10]


def test_who_builds_beside_writes_nothing():
    assert gather(FakeJob(0, {}, is_beside=True), "0\n") is None
