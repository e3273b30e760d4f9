"""The rendezvous' sockets: the connected peers, and their messages."""

from __future__ import annotations

import contextlib
import dataclasses
import selectors
import socket
import time
from collections.abc import Iterable
from typing import Any

from tfring.rendezvous import wire

_ROLES = {
    # For each role, the key in a hello under which the peer's name is.
    "supervisor": "host",
    "output": "host",
    "worker": "worker",
    "pulse": "worker",
}

# The most that the clock of the pulses advances in one `poll`.
_LONGEST_STEP_SECONDS = 0.25


@dataclasses.dataclass(frozen=True)
class Event:
    """Something that happened on a connection."""

    role: str  # `supervisor`, `output`, `worker` or `pulse`
    name: str  # the host, or the worker
    # The message; the first one is the hello. None: the connection has ended,
    # or, for a pulse, nothing was heard for too long. The end of a pulse's
    # connection is no event: the worker's last messages may still arrive.
    message: dict[str, Any] | None


@dataclasses.dataclass(eq=False)
class _Connection:
    role: str
    name: str
    sock: socket.socket
    channel: wire.Channel  # carries no messages for a pulse

    def is_dropped(self) -> bool:
        return self.sock.fileno() < 0


class Server:
    """Listens at this machine's addresses, for peers with the job's token."""

    def __init__(self, token: str, silence_seconds: float) -> None:
        self._token = token
        self._selector = selectors.DefaultSelector()
        # `wake` sends a byte by one socket, and the selector waits for the
        # other.
        self._wake, self._waker = socket.socketpair()
        for end in (self._wake, self._waker):
            end.setblocking(False)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._listeners: dict[str, wire.Listener] = {}
        self._connections: dict[tuple[str, str], _Connection] = {}
        self._silence_seconds = silence_seconds
        # When each worker's pulse was heard last. The clock advances little
        # while this process is stopped or busy, so that no pulse is late
        # because of that.
        self._heard: dict[str, float] = {}
        self._clock = 0.0
        self._looked = time.monotonic()
        self._paused = False
        # Connections with more messages than were read at once.
        self._unread: list[_Connection] = []

    def listen(self, address: str) -> wire.Address:
        """Listens at an address of this machine; returns it with its port.

        Raises:
            OSError: There is no such address here.
        """
        if address not in self._listeners:
            self.take_over(wire.Listener(address, self._token))
        return self._listeners[address].address

    def take_over(self, listener: wire.Listener) -> None:
        """Takes over a listener, at an address where there is no other."""
        self._listeners[listener.address[0]] = listener
        self._selector.register(listener, selectors.EVENT_READ, listener)

    def is_connected(self, role: str, name: str) -> bool:
        """Returns True if the peer of this role and name is connected."""
        return (role, name) in self._connections

    def connected(self, role: str) -> list[str]:
        """Returns the names of the connected peers of a role."""
        return [name for each, name in self._connections if each == role]

    def send(
        self, role: str, names: Iterable[str], message: dict[str, Any]
    ) -> None:
        """Sends a message, encoded once for all.

        A connection that cannot deliver the message ends.
        """
        frame = wire.encoded(message)
        for name in names:
            if (connection := self._connections.get((role, name))) is not None:
                self._send(connection, frame)

    def _send(self, connection: _Connection, frame: bytes = b"") -> None:
        """Sends what the socket takes at once; `poll` sends the rest."""
        events = selectors.EVENT_READ
        try:
            if not connection.channel.start_send(frame):
                events |= selectors.EVENT_WRITE
        except wire.ChannelClosedError:
            # `poll` then reads the end, and reports it.
            connection.channel.shutdown()
        self._selector.modify(connection.sock, events, connection)

    def drop(self, role: str, name: str) -> None:
        """Closes a connection, without an event."""
        connection = self._connections.pop((role, name), None)
        if connection is not None:
            if role == "worker":
                self._heard.pop(name, None)
            with contextlib.suppress(KeyError):  # Paused.
                self._selector.unregister(connection.sock)
            connection.sock.close()

    def pause_output(self, pause: bool) -> None:
        """Stops reading the workers' output, or resumes."""
        if pause == self._paused:
            return
        self._paused = pause
        for (role, _), connection in self._connections.items():
            if role == "output" and pause:
                self._selector.unregister(connection.sock)
            elif role == "output":
                self._selector.register(
                    connection.sock, selectors.EVENT_READ, connection
                )

    def wake(self) -> None:
        """Ends a wait in `poll`. Any thread may call it."""
        with contextlib.suppress(OSError):  # It is full, or closed.
            self._waker.send(b"\0")

    def poll(self, timeout_seconds: float) -> list[Event]:
        """Waits for events, and returns them."""
        events: list[Event] = []
        unread, self._unread = self._unread, []
        ready = self._selector.select(0 if unread else timeout_seconds)
        for connection in unread:
            self._read(connection, events)
        for key, mask in ready:
            if not isinstance(key.data, _Connection):
                continue
            if mask & selectors.EVENT_READ and key.data not in unread:
                self._read(key.data, events)
            if mask & selectors.EVENT_WRITE and not key.data.is_dropped():
                self._send(key.data)
        with contextlib.suppress(BlockingIOError):
            self._wake.recv(4096)
        # Even if nothing is readable, `accept` closes connections that are
        # slow.
        for listener in self._listeners.values():
            while (accepted := listener.accept(0)) is not None:
                self._add(*accepted, events)
        now = time.monotonic()
        self._clock += min(now - self._looked, _LONGEST_STEP_SECONDS)
        self._looked = now
        for name, heard in list(self._heard.items()):
            if self._clock - heard >= self._silence_seconds:
                self.drop("pulse", name)
                del self._heard[name]
                events.append(Event("pulse", name, None))
        return events

    def close(self) -> None:
        for role, name in list(self._connections):
            self.drop(role, name)
        for listener in self._listeners.values():
            self._selector.unregister(listener)
            listener.close()
        self._selector.close()
        self._wake.close()
        self._waker.close()

    def _add(
        self, sock: socket.socket, hello: dict[str, Any], events: list[Event]
    ) -> None:
        role = hello.get("role")
        name = hello.get(_ROLES.get(str(role), ""))
        if not (isinstance(role, str) and isinstance(name, str)):
            sock.close()
            return
        before = self._connections.get((role, name))
        if before is not None and role == "output":
            # The earlier connection was cut, and its end was not read yet.
            while self._read(before, events):
                pass
            self.drop(role, name)
        elif before is not None:
            if role == "supervisor":
                _refuse(sock, name)
            sock.close()
            return
        if role == "supervisor":
            # Drop an earlier output connection that has unread messages.
            self.drop("output", name)
        if role == "pulse":
            self._heard[name] = self._clock
        connection = _Connection(role, name, sock, wire.Channel(sock))
        self._connections[role, name] = connection
        if not (self._paused and role == "output"):
            self._selector.register(sock, selectors.EVENT_READ, connection)
        events.append(Event(role, name, {**hello, "kind": "hello"}))

    def _read(self, connection: _Connection, events: list[Event]) -> bool:
        """Reads some messages; returns True if there may be more."""
        role, name = connection.role, connection.name
        if connection.is_dropped():
            return False
        try:
            if role == "pulse":
                while connection.sock.recv(4096):
                    self._heard[name] = self._clock
                raise wire.ChannelClosedError("the pulse has ended.")
            # Read a bounded number, because other peers wait, too.
            for _ in range(16):
                message = connection.channel.receive(0)
                if message is None:
                    return False
                events.append(Event(role, name, message))
            self._unread.append(connection)
            return True
        except BlockingIOError:
            return False
        except OSError:
            self.drop(role, name)
            if role != "pulse":
                events.append(Event(role, name, None))
            return False


def _refuse(sock: socket.socket, host: str) -> None:
    why = (
        f"the job has a supervisor of host {host} already. Start one task on "
        "each machine, or give each another TFRING_ELASTIC_HOST."
    )
    with contextlib.suppress(wire.ChannelClosedError):
        wire.Channel(sock).send({"kind": "refused", "why": why}, 0)
