"""A timeline's recordings of an elastic job.

Ranks come and go, and so nothing is agreed on before the end: then each rank
that is there gives rank 0 its recording, by a connection of its own with it.
What a lost rank has recorded is lost with it.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

from absl import logging

from tfring._core import clocks, trace
from tfring._core.tcp_job import TcpJob
from tfring.rendezvous import wire

# Between two messages of a rank that is there.
_ANSWER_SECONDS = 30.0
# Rank 0 may have something left to do before it ends, such as to save.
_FIRST_SECONDS = 600.0
# For all others together: one that has joined later may have nothing to give.
_OTHERS_SECONDS = 60.0
_PART_CHARACTERS = 1 << 20


class TcpRecordings:
    """The recordings of all ranks, wherever they are by then.

    Args:
        path: The attribute.
        job: The generation in which recording begins.
        clock: Returns seconds.

    Attributes:
        path: The file to write, if this is rank 0 at the end.
    """

    def __init__(
        self,
        path: str,
        job: TcpJob,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self._job = job
        self._clock = clock

    def go_on(self, job: TcpJob) -> None:
        """Takes the generation that has just begun."""
        self._job = job

    def gather(self, text: str) -> list[trace.Recording] | None:
        """Returns those of all ranks, on rank 0; None elsewhere. Collective.

        Args:
            text: This rank's, as `trace.parse` takes it.
        """
        if self._job.is_beside:
            return None
        topology = self._job.topology
        channel = self._job.next_pair_name("timeline")
        if topology.rank > 0:
            try:
                self._give(channel, text)
            except OSError as error:
                logging.warning(
                    "tfring: rank 0 did not take this rank's timeline: %s",
                    error,
                )
            return None
        recordings = [
            trace.Recording(socket.gethostname(), 0, *trace.parse(text))
        ]
        deadline = self._clock() + _OTHERS_SECONDS
        for rank in range(1, topology.size):
            left = max(0.0, deadline - self._clock())
            try:
                recordings.append(self._take(channel, rank, left))
            except OSError as error:
                logging.warning(
                    "tfring: the timeline lacks rank %d: %s", rank, error
                )
                recordings.append(trace.Recording("lost", 0, 0, []))
        return recordings

    def _give(self, name: str, text: str) -> None:
        channel = self._job.pair(name, 0, _FIRST_SECONDS)
        try:
            # Not before it is asked for: what nobody reads is cut off.
            asked = self._receive(channel, _FIRST_SECONDS)

            def ask() -> int:
                channel.send({"kind": "clock"})
                return int(self._receive(channel)["now_ns"])

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
            self._receive(channel)  # It has all.
        finally:
            channel.close()

    def _take(self, name: str, rank: int, seconds: float) -> trace.Recording:
        channel = self._job.pair(name, rank, seconds)
        try:
            channel.send({"kind": "asked", "kernel": clocks.kernel()})
            parts = []
            while True:
                message = self._receive(channel)
                if message["kind"] == "clock":
                    channel.send({"now_ns": time.monotonic_ns()})
                elif message["kind"] == "part":
                    parts.append(message["text"])
                else:
                    channel.send({"kind": "taken"})
                    return trace.Recording(
                        message["host"],
                        message["offset_ns"],
                        *trace.parse("".join(parts)),
                    )
        finally:
            channel.close()

    def _receive(
        self, channel: wire.Channel, seconds: float = _ANSWER_SECONDS
    ) -> dict[str, Any]:
        """Returns the next message.

        Raises:
            OSError: There is none in this time, or the generation is over.
        """
        deadline = self._clock() + seconds
        while (message := channel.receive(1.0)) is None:
            if (why := self._job.why_stopped()) is not None:
                raise ConnectionError(why)
            if self._clock() >= deadline:
                raise TimeoutError(f"it said nothing for {seconds:g} s")
        return message
