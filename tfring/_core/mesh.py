"""Connections between the workers of an elastic job, by generation and channel.

Each worker listens at one address for as long as it lives. Of two members the
one with the higher rank connects: in a channel of control at once, and in one
for data when it first needs the other. A hello says the generation, the channel
and the ranks, and proves that it is of this job; all else is refused.

A worker that is still to join probes the others: it connects to each, which
connects back.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from tfring._core.launcher_link import Form
from tfring.rendezvous import descriptors, wire

# A connection of a lost generation is given up so soon.
_LOOK_SECONDS = 0.2
# The first attempt may meet a machine that is busy, the next one less so.
_ATTEMPT_SECONDS = 2.0
_CONNECT_SECONDS = 30.0

_Key = tuple[int, str, int]  # generation, channel, rank


class UnreachableError(ConnectionError):
    """A member of the generation cannot be reached.

    Attributes:
        rank: The member.
    """

    def __init__(self, rank: int, why: str) -> None:
        super().__init__(f"rank {rank} cannot be reached: {why}")
        self.rank = rank


class Mesh:
    """What this worker listens to, and its connections with others.

    Attributes:
        address: Where it listens.
    """

    def __init__(self, interface: str, worker: str, token: str) -> None:
        """Listens at an address of this machine.

        Raises:
            OSError: There is no such address here.
        """
        self._worker = worker
        self._token = token
        self._listener = wire.Listener(interface, token)
        self.address = self._listener.address
        self._state = threading.Condition()
        self._generation = 1  # Earlier ones are refused.
        # Of members that were faster than this worker.
        self._came: dict[_Key, tuple[str, socket.socket]] = {}
        threading.Thread(
            target=self._accept, name="tfring mesh", daemon=True
        ).start()

    def begin(self, generation: int) -> None:
        """Refuses connections of earlier generations from here on."""
        with self._state:
            self._generation = generation
            for key in [k for k in self._came if k[0] < generation]:
                self._came.pop(key)[1].close()

    def connect(
        self,
        form: Form,
        channel: str,
        ranks: Sequence[int],
        why_stopped: Callable[[], str | None],
        seconds: float = _CONNECT_SECONDS,
    ) -> list[int]:
        """Connects this worker with all others of one channel.

        Collective over `ranks`.

        Args:
            form: The generation.
            channel: Its name, used once in a generation.
            ranks: The members in it, of which this worker is one.
            why_stopped: Says why the generation is over, None while it is not.
            seconds: How long the others may take.

        Returns:
            The connected sockets' descriptors, the caller's, in the order of
            `ranks`; -1 for this worker itself.

        Raises:
            UnreachableError: A member cannot be reached.
            ConnectionError: The generation is over.
            RuntimeError: So many connections are over this process's limit.
        """
        descriptors.check(
            len(ranks) - 1,
            f"to connect rank {form.rank} with {len(ranks) - 1} others; each "
            "process set takes as many again",
        )
        deadline = time.monotonic() + seconds
        connected: dict[int, socket.socket] = {}

        def check(rank: int, error: object) -> None:
            why = why_stopped()
            if why is not None:
                raise ConnectionError(why)
            if time.monotonic() > deadline:
                raise UnreachableError(rank, str(error))

        try:
            # The nearest first: all begin at another rank.
            for rank in reversed(ranks):
                if rank < form.rank:
                    connected[rank] = self._connect(form, channel, rank, check)
            for rank in ranks:
                while rank > form.rank and rank not in connected:
                    came = self._take(form, channel, rank, _LOOK_SECONDS)
                    if came is not None:
                        connected[rank] = came
                    else:
                        check(rank, "it has not connected")
        except BaseException:
            for each in connected.values():
                each.close()
            raise
        return [
            connected[rank].detach() if rank in connected else -1
            for rank in ranks
        ]

    def connect_when_needed(
        self,
        form: Form,
        channel: str,
        rank: int,
        why_stopped: Callable[[], str | None],
    ) -> int | None:
        """Connects this worker with another one, which need not wait for it.

        Returns:
            As `connect`; None if the other one has the higher rank, and has
            not connected yet.

        Raises:
            UnreachableError: See `connect`.
            ConnectionError: See `connect`.
            RuntimeError: See `connect`.
        """
        if rank < form.rank:
            pair = [rank, form.rank]
            return self.connect(form, channel, pair, why_stopped)[0]
        came = self._take(form, channel, rank, 0)
        return None if came is None else came.detach()

    def _connect(
        self,
        form: Form,
        channel: str,
        rank: int,
        check: Callable[[int, object], None],
    ) -> socket.socket:
        hello = {
            "role": "data",
            "generation": form.generation,
            "channel": channel,
            "rank": form.rank,
            "worker": self._worker,
            "to": form.members[rank].worker,
        }
        while True:
            try:
                return wire.connect(
                    form.members[rank].address,
                    self._token,
                    hello,
                    _ATTEMPT_SECONDS,
                )
            except OSError as error:
                check(rank, error)
                time.sleep(_LOOK_SECONDS)

    def _take(
        self, form: Form, channel: str, rank: int, seconds: float
    ) -> socket.socket | None:
        """The connection that a higher rank has made, if it has."""
        key = (form.generation, channel, rank)
        with self._state:
            self._state.wait_for(lambda: key in self._came, seconds)
            worker, sock = self._came.pop(key, ("", None))
        if sock is not None and worker != form.members[rank].worker:
            sock.close()
            return None
        return sock

    def probe(self, worker: str, address: wire.Address) -> str:
        """Connects to another worker, and has it connect to this one.

        Returns:
            Why one of them cannot, after many attempts; "" if both can.
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
            "worker": self._worker,
            "to": worker,
            "address": list(self.address),
        }
        try:
            sock = wire.connect(address, self._token, hello, _ATTEMPT_SECONDS)
            channel = wire.Channel(sock)
            answer = channel.receive(2 * _ATTEMPT_SECONDS)
            channel.close()
        except OSError as error:
            return f"it cannot reach {worker}: {error}"
        return f"{worker} does not answer" if answer is None else answer["why"]

    def _answer(self, sock: socket.socket, hello: dict[str, Any]) -> None:
        why = ""
        host, port = hello["address"]
        # The other one's listener takes the proof, and closes the connection.
        back = {"role": "answer", "worker": self._worker}
        try:
            wire.connect(
                (host, port), self._token, back, _ATTEMPT_SECONDS
            ).close()
        except OSError as error:
            why = f"{self._worker} cannot reach it: {error}"
        channel = wire.Channel(sock)
        with contextlib.suppress(wire.ChannelClosedError):
            channel.send({"why": why})
        channel.close()

    def _accept(self) -> None:
        while True:
            with contextlib.suppress(OSError):
                accepted = self._listener.accept(60.0)
                if accepted is not None:
                    self._admit(*accepted)

    def _admit(self, sock: socket.socket, hello: dict[str, Any]) -> None:
        if hello.get("role") == "probe" and hello.get("to") == self._worker:
            threading.Thread(
                target=self._answer, args=(sock, hello), daemon=True
            ).start()
            return
        generation = hello.get("generation")
        channel, rank = hello.get("channel"), hello.get("rank")
        worker = hello.get("worker")
        is_ours = (
            hello.get("role") == "data"
            and hello.get("to") == self._worker
            and isinstance(generation, int)
            and isinstance(channel, str)
            and isinstance(rank, int)
            and isinstance(worker, str)
        )
        if not is_ours:
            sock.close()
            return
        assert isinstance(generation, int)
        key = (generation, str(channel), int(str(rank)))
        with self._state:
            if generation < self._generation:
                sock.close()
                return
            # A member that has given an attempt up makes another.
            old = self._came.pop(key, None)
            if old is not None:
                old[1].close()
            self._came[key] = (str(worker), sock)
            self._state.notify_all()
