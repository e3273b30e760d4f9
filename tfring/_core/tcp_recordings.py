"""Gathers the recordings of a timeline in an elastic job.

Ranks join and leave, so nothing is agreed on before the end. Then each
remaining rank sends its recording to rank 0, by a connection of its own. The
recordings of lost ranks are lost.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from typing import Any

from absl import logging

from tfring._core import clocks, trace
from tfring._core.tcp_job import TcpJob
from tfring.rendezvous import wire

# The longest time between two messages of a rank.
_ANSWER_SECONDS = 30.0
# How long a rank waits for rank 0, which may have to save first.
_FIRST_SECONDS = 600.0
# How long rank 0 waits for all ranks together: a rank that has joined later may
# have no recording.
_OTHERS_SECONDS = 60.0
_PART_CHARACTERS = 1 << 20


def gather(
    job: TcpJob,
    text: str,
    clock: Callable[[], float] = time.monotonic,
) -> list[trace.Recording] | None:
    """Returns all ranks' recordings on rank 0, None elsewhere. Collective.

    `text` is this rank's recording, as `trace.parse` takes it.
    """
    if job.is_beside:
        return None
    if job.topology.rank > 0:
        try:
            _give(job, text)
        except OSError as error:
            logging.warning(
                "tfring: rank 0 did not take this rank's timeline: %s", error
            )
        return None
    recordings = [trace.Recording(socket.gethostname(), 0, *trace.parse(text))]
    deadline = clock() + _OTHERS_SECONDS
    for rank in range(1, job.topology.size):
        try:
            recordings.append(_take(job, rank, max(0.0, deadline - clock())))
        except OSError as error:
            logging.warning(
                "tfring: the timeline lacks rank %d: %s", rank, error
            )
            recordings.append(trace.Recording("lost", 0, 0, []))
    return recordings


def _give(job: TcpJob, text: str) -> None:
    with contextlib.closing(job.pair(0, _FIRST_SECONDS)) as channel:
        # Send the recording only on request: unread bytes would be cut off.
        asked = _receive(job, channel, _FIRST_SECONDS)

        def ask() -> int:
            channel.send({"kind": "clock"})
            return int(_receive(job, channel)["now_ns"])

        offset_ns = 0
        if asked["kernel"] != clocks.kernel():
            offset_ns = clocks.offset_ns(ask)
        for begin in range(0, len(text), _PART_CHARACTERS):
            part = text[begin : begin + _PART_CHARACTERS]
            channel.send({"kind": "part", "text": part}, _ANSWER_SECONDS)
        channel.send(
            {
                "kind": "end",
                "host": socket.gethostname(),
                "offset_ns": offset_ns,
            }
        )
        _receive(job, channel)  # rank 0 has all of it


def _take(job: TcpJob, rank: int, seconds: float) -> trace.Recording:
    with contextlib.closing(job.pair(rank, seconds)) as channel:
        channel.send({"kind": "asked", "kernel": clocks.kernel()})
        text = ""
        while (message := _receive(job, channel))["kind"] != "end":
            if message["kind"] == "clock":
                channel.send({"now_ns": time.monotonic_ns()})
            else:
                text += message["text"]
        channel.send({"kind": "taken"})
        return trace.Recording(
            message["host"], message["offset_ns"], *trace.parse(text)
        )


def _receive(
    job: TcpJob, channel: wire.Channel, seconds: float = _ANSWER_SECONDS
) -> dict[str, Any]:
    """Returns the next message.

    Raises:
        OSError: No message came in time, or the generation is over.
    """
    deadline = time.monotonic() + seconds
    while (message := channel.receive(1.0)) is None:
        if (why := job.why_stopped()) is not None:
            raise ConnectionError(why)
        if time.monotonic() >= deadline:
            raise TimeoutError(f"it said nothing for {seconds:g} s")
    return message
