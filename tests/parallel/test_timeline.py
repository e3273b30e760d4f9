"""A timeline has the events of every rank, on one clock."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import tensorflow as tf
from helpers import job_with
from mpi4py import MPI

import tfring
from tfring._core import timeline
from tfring.timeline import summary
from tfring.timeline.__main__ import main


def test_timeline(
    shared_path: Path, size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = shared_path / "timeline.json"
    tfring.allreduce(tf.ones([5]), name="before")
    tfring.start_timeline(str(path), mark_cycles=True)
    with pytest.raises(ValueError, match="stop_timeline first"):
        tfring.start_timeline("another.json")
    for _ in range(2):
        # To be scaled it has to be copied.
        tfring.allreduce(tf.ones([1000]), name="tab\there", prescale_factor=2.0)
    tfring.barrier()
    with tf.device("CPU:0"):  # A GPU may send no messages.
        tfring.allgather(tf.ones([10]), name="rows")
    tfring.stop_timeline()
    with pytest.raises(ValueError, match="no timeline"):
        tfring.stop_timeline()
    MPI.COMM_WORLD.Barrier()

    events = summary.read(path)
    assert {event["pid"] for event in events} == set(range(size))
    figures = summary.summarize(events)
    for of_rank in figures.ranks.values():
        assert of_rank.requests == of_rank.buckets == 4
        assert of_rank.count_bytes == 2 * 4000 + 40
        assert of_rank.seconds > 0
        assert 0 <= of_rank.overlap <= 1
    assert figures.kinds["allreduce"].buckets == 2
    # A rank's rows travel once to each further rank.
    assert figures.kinds["allgather"].sent_bytes == 40 * (size - 1)
    assert figures.kinds["allgather"].count_bytes == 40 * size
    for phase in ("pack", "ring", "unpack"):
        # Within their bucket, on the thread of the engine.
        [*parts] = [e for e in events if e.get("cat") == phase]
        assert len(parts) == 2 * size
        for part in parts:
            [around] = [
                event
                for event in events
                if event.get("cat") == "bucket"
                and (event["pid"], event["tid"]) == (part["pid"], part["tid"])
                and event["ts"] <= part["ts"]
                and part["ts"] + part["dur"] <= event["ts"] + event["dur"]
            ]
            assert around["args"]["request"] == r"tab\there"
    assert sum(event.get("cat") == "response" for event in events) >= 4 * size
    # On one clock: no rank ends before all have begun. Barriers have done so
    # as they were agreed on.
    spans = [
        [
            (event["ts"], event["ts"] + event["dur"])
            for event in sorted(events, key=lambda event: event.get("ts", 0))
            if event.get("cat") == "bucket"
            and event["pid"] == of_rank
            and event["args"]["kind"] != "barrier"
        ]
        for of_rank in range(size)
    ]
    for of_ranks in zip(*spans, strict=True):
        begins, ends = zip(*of_ranks, strict=True)
        assert max(begins) <= min(ends)
    assert main(["summarize", str(path)]) == 0
    assert f"slowest rank: {figures.slowest_rank}" in capsys.readouterr().out


def test_a_repeated_step_needs_no_response(
    shared_path: Path, rank: int, size: int
) -> None:
    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        for name in ("forth", "back"):
            x = tfring.allreduce(x, name=f"repeated/{name}")
        return x

    path = shared_path / "timeline.json"
    # A job that has often left cached schedules must repeat a step so often.
    for _ in range(70):
        step(tf.ones([10]))
    tfring.start_timeline(str(path), mark_cycles=True)
    for i in range(20):
        assert step(tf.fill([10], float(i + rank)))[0] == i + (size - 1) / 2
    tfring.stop_timeline()
    MPI.COMM_WORLD.Barrier()
    events = summary.read(path)
    assert sum(event.get("cat") == "bucket" for event in events) == 40 * size
    if size > 1:
        assert not any(event.get("cat") == "response" for event in events)


def test_from_init_to_shutdown(shared_path: Path, size: int) -> None:
    path = shared_path / "timeline.json"
    with job_with(TFRING_TIMELINE=str(path)):
        tfring.allreduce(tf.ones([5]))
    MPI.COMM_WORLD.Barrier()
    assert len(summary.summarize(summary.read(path)).ranks) == size
    assert timeline._running is None


def test_clock_offset(rank: int, size: int) -> None:
    """Between machines it is measured; here the clocks are the same one."""
    comm = MPI.COMM_WORLD
    assert timeline._clock_offset_ns(comm) == 0
    for other in range(1, size):
        if rank in (0, other):
            began_ns = time.monotonic_ns()
            offset_ns = timeline._measured_offset_ns(comm, other)
            assert abs(offset_ns) <= time.monotonic_ns() - began_ns
