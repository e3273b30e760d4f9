"""Connections between the ranks of a job, by generation and channel.

Each worker listens at one address for as long as it lives. The member with the
higher rank connects: at once in a control channel, and in a data channel when
it first needs its peer. The hello names the generation, the channel and the
workers, and the handshake proves that the peer is of this job; other
connections are refused.

A joiner probes the members: it connects to each of them, and each connects
back.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from tfring.rendezvous import descriptors, wire

# How often a worker that connects checks whether the generation is over.
_LOOK_SECONDS = 0.2
# The limit of one attempt. A busy machine may answer the next one sooner.
_ATTEMPT_SECONDS = 2.0
_CONNECT_SECONDS = 30.0


@dataclasses.dataclass(frozen=True)
class Member:
    """A worker of a generation."""

    worker: str
    address: wire.Address
    node: str


@dataclasses.dataclass(frozen=True)
class Form:
    """The members of a generation, by rank; `rank` is this worker's."""

    generation: int
    rank: int
    members: tuple[Member, ...]


class UnreachableError(ConnectionError):
    """A member of the generation, `rank`, cannot be reached."""

    def __init__(self, rank: int, why: str) -> None:
        super().__init__(f"rank {rank} cannot be reached: {why}")
        self.rank = rank


class Mesh:
    """This worker's listener, and its connections with other workers."""

    def __init__(
        self,
        interface: str,
        worker: str,
        token: str,
        why_stopped: Callable[[int], str | None],
    ) -> None:
        """Listens at `interface`, an address of this machine.

        `why_stopped` says why a generation is over, and None while it is not.

        Raises:
            OSError: There is no such address here.
        """
        self._worker = worker
        self._token = token
        self._why_stopped = why_stopped
        self._listener = wire.Listener(interface, token)
        self.address = self._listener.address
        self._state = threading.Condition()
        self._generation = 1  # earlier ones are refused
        # Connections that other members have made before this worker asked for
        # them, by generation, channel and worker.
        self._came: dict[tuple[int, str, str], socket.socket] = {}
        self._is_closed = False
        threading.Thread(
            target=self._accept, name="tfring mesh", daemon=True
        ).start()

    def begin(self, generation: int) -> None:
        """Refuses connections of earlier generations from here on."""
        with self._state:
            self._generation = generation
            for key in [k for k in self._came if k[0] < generation]:
                self._came.pop(key).close()

    def connect(
        self,
        form: Form,
        channel: str,
        ranks: Sequence[int],
        seconds: float = _CONNECT_SECONDS,
    ) -> list[int]:
        """Connects this worker with all members of one channel.

        Collective over `ranks`; this worker is one of them. A channel's name is
        used once in a generation.

        Returns:
            The connected sockets' descriptors, the caller's, in the order of
            `ranks`; -1 for this worker itself.

        Raises:
            UnreachableError: A member cannot be reached.
            ConnectionError: The generation is over.
            RuntimeError: The connections exceed this process's limit of
                descriptors.
        """
        descriptors.check(
            len(ranks) - 1,
            f"to connect rank {form.rank} with {len(ranks) - 1} others; each "
            "process set takes as many again",
        )
        deadline = time.monotonic() + seconds
        # The nearest rank first, so that all begin with another peer.
        lower = [rank for rank in reversed(ranks) if rank < form.rank]
        higher = [rank for rank in ranks if rank > form.rank]
        connected: dict[int, socket.socket] = {}
        with contextlib.ExitStack() as closing:
            for rank in (*lower, *higher):
                connected[rank] = closing.enter_context(
                    self._connect(form, channel, rank, deadline)
                )
            closing.pop_all()
        return [
            connected[rank].detach() if rank in connected else -1
            for rank in ranks
        ]

    def connect_when_needed(
        self, form: Form, channel: str, rank: int
    ) -> int | None:
        """Connects this worker with another one, which does not wait for it.

        Returns:
            The descriptor, as from `connect`; None if the peer has the higher
            rank, and has not connected yet.
        """
        if rank < form.rank:
            return self.connect(form, channel, [rank, form.rank])[0]
        came = self._take(form, channel, rank, 0)
        return None if came is None else came.detach()

    def _connect(
        self, form: Form, channel: str, rank: int, deadline: float
    ) -> socket.socket:
        other = form.members[rank]
        hello = {
            "role": "data",
            "generation": form.generation,
            "channel": channel,
            "worker": self._worker,
            "to": other.worker,
        }
        why_not = "it has not connected"
        while True:
            if rank > form.rank:
                came = self._take(form, channel, rank, _LOOK_SECONDS)
                if came is not None:
                    return came
            else:
                try:
                    return wire.connect(
                        other.address, self._token, hello, _ATTEMPT_SECONDS
                    )
                except OSError as error:
                    why_not = str(error)
                    time.sleep(_LOOK_SECONDS)
            if (why := self._why_stopped(form.generation)) is not None:
                raise ConnectionError(why)
            if time.monotonic() > deadline:
                raise UnreachableError(rank, why_not)

    def _take(
        self, form: Form, channel: str, rank: int, seconds: float
    ) -> socket.socket | None:
        """Returns the connection that a higher rank has made, or None."""
        key = (form.generation, channel, form.members[rank].worker)
        with self._state:
            self._state.wait_for(lambda: key in self._came, seconds)
            return self._came.pop(key, None)

    def probe(self, worker: str, address: wire.Address) -> str:
        """Connects to another worker, and has it connect to this one.

        Returns why one of the two cannot, after many attempts; "" if both can.
        """
        deadline = time.monotonic() + _CONNECT_SECONDS
        while (why := self._probe_once(worker, address)) and (
            time.monotonic() < deadline
        ):
            time.sleep(_LOOK_SECONDS)
        return why

    def _probe_once(self, worker: str, address: wire.Address) -> str:
        hello = {
            "role": "probe",
            "to": worker,
            "address": list(self.address),
        }
        try:
            sock = wire.connect(address, self._token, hello, _ATTEMPT_SECONDS)
            with contextlib.closing(wire.Channel(sock)) as channel:
                answer = channel.receive(2 * _ATTEMPT_SECONDS)
        except OSError as error:
            return f"it cannot reach {worker}: {error}"
        return f"{worker} does not answer" if answer is None else answer["why"]

    def _answer(self, sock: socket.socket, address: list[Any]) -> None:
        why = ""
        host, port = address
        try:
            # The peer's listener checks the handshake, and closes the
            # connection.
            hello = {"role": "answer"}
            wire.connect(
                (host, port), self._token, hello, _ATTEMPT_SECONDS
            ).close()
        except OSError as error:
            why = f"{self._worker} cannot reach it: {error}"
        with (
            contextlib.closing(wire.Channel(sock)) as channel,
            contextlib.suppress(wire.ChannelClosedError),
        ):
            channel.send({"why": why})

    def close(self) -> None:
        """Stops accepting connections, within a second."""
        self._is_closed = True

    def _accept(self) -> None:
        while not self._is_closed:
            with contextlib.suppress(OSError):
                accepted = self._listener.accept(1.0)
                if accepted is not None:
                    self._admit(*accepted)
        self._listener.close()
        self.begin(self._generation + 1)

    def _admit(self, sock: socket.socket, hello: dict[str, Any]) -> None:
        with self._state:
            match hello:
                case {
                    "role": "probe",
                    "to": self._worker,
                    "address": list(address),
                }:
                    threading.Thread(
                        target=self._answer, args=(sock, address), daemon=True
                    ).start()
                case {
                    "role": "data",
                    "to": self._worker,
                    "generation": int(generation),
                    "channel": str(channel),
                    "worker": str(worker),
                } if generation >= self._generation:
                    key = (generation, channel, worker)
                    # A second connection follows an attempt that the member
                    # gave up.
                    if key in self._came:
                        self._came[key].close()
                    self._came[key] = sock
                    self._state.notify_all()
                case _:
                    sock.close()
