"""Sockets between the processes of an elastic job: authenticated or closed.

    listener = wire.Listener("127.0.0.1", token)
    socket = wire.connect(listener.address, token, {"role": "worker"})
    accepted = listener.accept(timeout_seconds=5)  # a socket and the hello
    channel = wire.Channel(socket)
    channel.send({"kind": "ready"})

All sockets are closed in programs that this process starts, as a child that
holds one would hide the death of its parent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import math
import select
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from tfring.rendezvous import frames
from tfring.rendezvous.handshake import (
    NONCE_BYTES,
    PROOF_BYTES,
    Accepting,
    Connecting,
    HandshakeError,
)

Address = tuple[str, int]

# All of a handshake takes at most so long.
HANDSHAKE_SECONDS = 5.0
# So many connections may be in a handshake at once; the oldest makes room.
MOST_HANDSHAKES = 64
# Of a message on a channel: the members of a generation with 1000s of workers.
MESSAGE_BYTES = 4 << 20
# As between workers (tfring_ops/transport/tcp/tcp.h, Note [What TCP is told]):
# pulses tell sooner that a worker is lost, while the end of one of these
# connections ends its process, for which a machine that stands still for two
# seconds is no reason.
UNACKNOWLEDGED_MILLISECONDS = 5000

# A listener that has too many strangers may drop one of ours.
_ATTEMPTS = 3
_ATTEMPT_WAIT_SECONDS = 0.1


class ChannelClosedError(ConnectionError):
    """The other side is gone, or does not talk as it should."""


def configure(sock: socket.socket) -> None:
    """Has TCP hear a lost machine, or a cut link, within some seconds."""
    sock.set_inheritable(False)
    tcp = socket.IPPROTO_TCP
    sock.setsockopt(tcp, socket.TCP_NODELAY, 1)
    sock.setsockopt(tcp, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MILLISECONDS)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(tcp, socket.TCP_KEEPIDLE, 1)
    sock.setsockopt(tcp, socket.TCP_KEEPINTVL, 1)


def connect(
    address: Address,
    token: str,
    hello: dict[str, Any],
    timeout_seconds: float = HANDSHAKE_SECONDS,
) -> socket.socket:
    """Connects to a process of this job, and has both prove that they are.

    Args:
        address: The host and the port of a `Listener`.
        token: The job's.
        hello: Says who connects, and what for.
        timeout_seconds: How long all of it may take.

    Returns:
        A blocking socket on which nothing has been said yet.

    Raises:
        OSError: The other side cannot be reached (ConnectionRefusedError:
            nobody listens there), or is too slow (TimeoutError).
        HandshakeError: It is not of this job.
        ValueError: The token is none, or the hello is too long.
    """
    deadline = time.monotonic() + timeout_seconds
    attempt = 1
    while True:
        try:
            return _connect_once(address, Connecting(token, hello), deadline)
        except ConnectionResetError:
            if attempt == _ATTEMPTS or time.monotonic() >= deadline:
                raise HandshakeError(
                    f"{address[0]}:{address[1]} closes the connection: it is "
                    "of another job, with another TFRING_ELASTIC_TOKEN, or has "
                    "too many connections."
                ) from None
        attempt += 1
        time.sleep(_ATTEMPT_WAIT_SECONDS)


def _connect_once(
    address: Address, handshake: Connecting, deadline: float
) -> socket.socket:
    sock = socket.create_connection(address, _left(deadline))
    try:
        configure(sock)
        greeting = _receive_exactly(sock, NONCE_BYTES, deadline)
        sock.settimeout(_left(deadline))
        try:
            sock.sendall(handshake.answer(greeting))
        except BrokenPipeError:
            raise ConnectionResetError from None
        handshake.check(_receive_exactly(sock, PROOF_BYTES, deadline))
        sock.settimeout(None)
    except BaseException:
        sock.close()
        raise
    return sock


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the other side did not answer in time.")
    return left


def _receive_exactly(sock: socket.socket, count: int, deadline: float) -> bytes:
    data = b""
    while len(data) < count:
        sock.settimeout(_left(deadline))
        more = sock.recv(count - len(data))
        if not more:
            raise ConnectionResetError(errno.ECONNRESET, "closed")
        data += more
    return data


@dataclasses.dataclass
class _Handshake:
    sock: socket.socket
    handshake: Accepting
    deadline: float


class Listener:
    """Accepts connections of this job, and no others.

    Strangers who say nothing, too little or the wrong thing are closed, and do
    not keep others waiting. It has a `fileno`, which a selector may wait for;
    then, and a few times a second in any case, call `accept(0)` until there is
    no more. Not thread-safe.

    Attributes:
        address: The host and the port.
        refused: How many connections were closed.
    """

    def __init__(
        self,
        host: str,
        token: str,
        port: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Listens at `host`, an address of this machine; port 0 takes any.

        Raises:
            OSError: There is no such address here, or the port is taken.
        """
        self._token = token
        self._clock = clock
        self._handshakes: dict[int, _Handshake] = {}
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        self._sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._sock.bind(address)
            self._sock.listen(1024)
            self._sock.setblocking(False)
        except BaseException:
            self._sock.close()
            raise
        name = self._sock.getsockname()
        self.address: Address = (name[0], name[1])
        self.refused = 0
        self._selector = selectors.EpollSelector()
        self._selector.register(self._sock, selectors.EVENT_READ)

    def fileno(self) -> int:
        """Returns a descriptor that is readable when there is work."""
        return self._selector.fileno()

    def accept(
        self, timeout_seconds: float
    ) -> tuple[socket.socket, dict[str, Any]] | None:
        """Returns a connection of this job and its hello.

        Returns:
            A blocking socket, on which the other side speaks next; None if
            there is none in this time.
        """
        deadline = self._clock() + timeout_seconds
        while True:
            now = self._clock()
            self._drop_slow(now)
            wait = max(0.0, min(deadline - now, 0.2))
            for key, _ in self._selector.select(wait):
                if key.fd == self._sock.fileno():
                    self._take_new()
                elif (done := self._go_on(key.fd)) is not None:
                    return done
            # Also where strangers come without end.
            if self._clock() >= deadline:
                return None

    def close(self) -> None:
        """Closes all that is not accepted."""
        for fd in list(self._handshakes):
            self._drop(fd)
        self._selector.close()
        self._sock.close()

    def _take_new(self) -> None:
        # A bounded number: `accept` has others to attend.
        for _ in range(MOST_HANDSHAKES):
            try:
                sock, _ = self._sock.accept()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._make_room()
                return
            try:
                configure(sock)
                sock.setblocking(False)
                handshake = Accepting(self._token)
                sock.send(handshake.greeting)
            except OSError:  # It is gone already.
                sock.close()
                continue
            if len(self._handshakes) >= MOST_HANDSHAKES:
                self._make_room()
            deadline = self._clock() + HANDSHAKE_SECONDS
            self._handshakes[sock.fileno()] = _Handshake(
                sock, handshake, deadline
            )
            self._selector.register(sock, selectors.EVENT_READ)

    def _go_on(self, fd: int) -> tuple[socket.socket, dict[str, Any]] | None:
        each = self._handshakes.get(fd)
        if each is None:  # It made room for another.
            return None
        try:
            data = each.sock.recv(1 << 16)
            if not data:
                raise ConnectionResetError
            proof = each.handshake.feed(data)
            if proof is None:
                return None
            each.sock.send(proof)
        except BlockingIOError:
            return None
        except OSError:
            self._drop(fd)
            return None
        self._selector.unregister(each.sock)
        del self._handshakes[fd]
        each.sock.setblocking(True)
        return each.sock, each.handshake.hello

    def _drop_slow(self, now: float) -> None:
        for fd, each in list(self._handshakes.items()):
            if now >= each.deadline:
                self._drop(fd)

    def _make_room(self) -> None:
        if self._handshakes:
            self._drop(next(iter(self._handshakes)))

    def _drop(self, fd: int) -> None:
        each = self._handshakes.pop(fd)
        self._selector.unregister(each.sock)
        each.sock.close()
        self.refused += 1


class Channel:
    """Messages on a connection: JSON objects, in order.

    Any thread may send. One thread receives.
    """

    def __init__(self, sock: socket.socket) -> None:
        """Takes over the connection."""
        sock.setblocking(False)
        self._sock = sock
        self._frames = frames.Decoder(MESSAGE_BYTES)
        self._lock = threading.Lock()
        # Why nothing more is received.
        self._ended = ""

    def fileno(self) -> int:
        """Returns the descriptor, which a selector may wait for."""
        return self._sock.fileno()

    def send(
        self,
        message: dict[str, Any],
        timeout_seconds: float = HANDSHAKE_SECONDS,
    ) -> None:
        """Sends a message.

        Raises:
            ChannelClosedError: The other side is gone, or takes nothing.
        """
        data = memoryview(frames.encode(frames.to_json(message)))
        deadline = time.monotonic() + timeout_seconds
        with self._lock:
            while data:
                try:
                    data = data[self._sock.send(data) :]
                except BlockingIOError:
                    left = deadline - time.monotonic()
                    if left <= 0:
                        # The rest of the frame cannot follow any more.
                        self.shutdown()
                        raise ChannelClosedError(
                            f"nothing was taken for {timeout_seconds:g} s."
                        ) from None
                    _wait(self._sock, select.POLLOUT, left)
                except OSError as error:
                    raise ChannelClosedError(str(error)) from None

    def receive(self, timeout_seconds: float | None) -> dict[str, Any] | None:
        """Returns the next message.

        Args:
            timeout_seconds: How long to wait; None is for ever.

        Returns:
            The message; None if none came in this time.

        Raises:
            ChannelClosedError: The connection has ended, also by `shutdown`, or
                what came is no message.
        """
        try:
            return self._receive(timeout_seconds)
        except OSError as error:
            # For good: after garbage nothing else is believed.
            self._ended = self._ended or str(error)
            self.shutdown()
            raise ChannelClosedError(self._ended) from None

    def _receive(self, timeout_seconds: float | None) -> dict[str, Any] | None:
        end = math.inf if timeout_seconds is None else timeout_seconds
        end += time.monotonic()
        while not self._ended:
            if (frame := self._frames.next()) is not None:
                return frames.from_json(frame)
            try:
                data = self._sock.recv(1 << 16)
            except BlockingIOError:
                left = end - time.monotonic()
                if left <= 0:
                    return None
                _wait(self._sock, select.POLLIN, left)
                continue
            if not data:
                raise ChannelClosedError("the other side has closed it.")
            self._frames.feed(data)
        raise ChannelClosedError(self._ended)

    def shutdown(self) -> None:
        """Ends the connection; a thread that receives hears it at once."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Ends the connection; no other thread may be in `receive`."""
        self.shutdown()
        self._sock.close()


def _wait(sock: socket.socket, event: int, seconds: float) -> None:
    poll = select.poll()
    poll.register(sock, event)
    # poll(2) takes an int.
    poll.poll(max(1, int(min(seconds, 3600) * 1000)))
