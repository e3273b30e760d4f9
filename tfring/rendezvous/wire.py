"""Sockets between the processes of an elastic job: authenticated or closed.

    listener = wire.Listener("127.0.0.1", token)
    socket = wire.connect(listener.address, token, {"role": "worker"})
    accepted = listener.accept(timeout_seconds=5)  # a socket and the hello
    channel = wire.Channel(socket)
    channel.send({"kind": "ready"})

Programs that this process starts inherit no socket: a child that held one would
hide the death of its parent.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import random
import select
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from tfring.rendezvous import addresses, descriptors, frames
from tfring.rendezvous.handshake import (
    BUSY,
    NO_DESCRIPTORS,
    NONCE_BYTES,
    PROOF_BYTES,
    Accepting,
    BusyError,
    Connecting,
    HandshakeError,
)

Address = tuple[str, int]

# The most time for a handshake.
HANDSHAKE_SECONDS = 5.0
# The most connections in a handshake at once: all workers of a job connect at
# its start. A further connection replaces the oldest. The kernel's backlog
# holds as many again.
MOST_HANDSHAKES = 4096
# Handshakes may use one in this many of the process's descriptors.
_SHARE_OF_DESCRIPTORS = 4
# The most connections to accept before handshakes continue.
ACCEPTED_AT_ONCE = 64
# The longest message of a channel. It fits the members of a generation with
# thousands of workers.
MESSAGE_BYTES = 4 << 20

# A connection may be cut for other reasons than a wrong token, so a peer is
# given up only after this many cuts.
_ATTEMPTS = 3
# The pause before the next attempt, which doubles each time up to the longest.
_WAIT_SECONDS = 0.1
_LONGEST_WAIT_SECONDS = 1.0


class ChannelClosedError(ConnectionError):
    """The peer is gone, or breaks the protocol."""


def connect(
    address: Address,
    token: str,
    hello: dict[str, Any],
    timeout_seconds: float = HANDSHAKE_SECONDS,
) -> socket.socket:
    """Connects to a process of this job; both prove that they have the token.

    The hello names this process and its purpose. The addresses of a name are
    tried in turn, within `timeout_seconds` in all. The returned socket is
    blocking, and has carried no message yet.

    Raises:
        OSError: The peer cannot be reached (ConnectionRefusedError: nobody
            listens there), or is too slow or too busy (TimeoutError).
        HandshakeError: The peer is not of this job.
        ValueError: The token is invalid, or the hello is too long.
    """
    deadline = time.monotonic() + timeout_seconds
    wait = _WAIT_SECONDS
    cuts = 0
    while True:
        try:
            return addresses.connect(
                address,
                deadline,
                lambda sock, by: _shake_hands(
                    sock, Connecting(token, hello), by
                ),
            )
        except BusyError as error:
            if time.monotonic() + wait >= deadline:
                raise TimeoutError(
                    f"{address[0]}:{address[1]} takes no connection within "
                    f"{timeout_seconds:g} s: {error}"
                ) from None
        except ConnectionResetError:
            cuts += 1
            if cuts == _ATTEMPTS or time.monotonic() >= deadline:
                raise HandshakeError(
                    f"{address[0]}:{address[1]} closes the connection: it is "
                    "of another job, with another TFRING_ELASTIC_TOKEN, or it "
                    "is about to end."
                ) from None
        # A random pause spreads the attempts of many workers.
        time.sleep(wait * random.uniform(0.5, 1.0))
        wait = min(2 * wait, _LONGEST_WAIT_SECONDS)


def _shake_hands(
    sock: socket.socket, handshake: Connecting, deadline: float
) -> None:
    greeting = _receive_exactly(sock, NONCE_BYTES, deadline)
    sock.settimeout(addresses.seconds_left(deadline))
    hello = handshake.answer(greeting)
    # Go on after an error: the listener may have sent its reason before it
    # closed.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        sock.sendall(hello)
    handshake.check(_receive_exactly(sock, PROOF_BYTES, deadline))
    sock.settimeout(None)


def _receive_exactly(sock: socket.socket, count: int, deadline: float) -> bytes:
    data = b""
    while len(data) < count:
        sock.settimeout(addresses.seconds_left(deadline))
        more = sock.recv(count - len(data))
        if not more:
            raise ConnectionResetError(errno.ECONNRESET, "closed")
        data += more
    return data


def listening_socket(host: str, port: int = 0) -> socket.socket:
    """Returns a socket for a `Listener`, of this process or of a child.

    Raises:
        OSError: There is no such address here, or the port is taken.
    """
    return addresses.listen(host, port, MOST_HANDSHAKES)


class Listener:
    """Accepts connections from processes of this job.

    It closes connections that send nothing, too little or a wrong message, and
    never waits for them. A peer whose connection is closed for lack of room is
    told to try again. The process's limit of descriptors is raised as far as
    possible.

    A selector may wait for its `fileno`. Then, and a few times a second in any
    case, call `accept(0)` until it returns None. Not thread-safe.
    """

    def __init__(
        self,
        host: str | socket.socket,
        token: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Listens at any port of `host`, an address of this machine.

        `host` may also be a socket of `listening_socket`, which it takes over.

        Raises:
            OSError: There is no such address here.
        """
        self._token = token
        self._clock = clock
        # Handshakes under way and their deadlines, the oldest first.
        self._handshakes: dict[socket.socket, tuple[Accepting, float]] = {}
        self._done: collections.deque[tuple[socket.socket, dict[str, Any]]] = (
            collections.deque()
        )
        most = descriptors.raise_limit() // _SHARE_OF_DESCRIPTORS
        self._most_handshakes = min(most, MOST_HANDSHAKES)
        if isinstance(host, str):
            host = listening_socket(host)
        self._sock = host
        self._sock.setblocking(False)
        self.address: Address = self._sock.getsockname()[:2]
        self._selector = selectors.EpollSelector()
        self._selector.register(self._sock, selectors.EVENT_READ)
        # A descriptor in reserve: when none is left, closing it allows to
        # accept a connection and to refuse it.
        self._spare = socket.socket()

    def fileno(self) -> int:
        """Returns a descriptor that is readable when `accept` has work."""
        return self._selector.fileno()

    def accept(
        self, timeout_seconds: float
    ) -> tuple[socket.socket, dict[str, Any]] | None:
        """Returns a connection of this job and its hello, if there is one.

        The socket is blocking, and the peer sends the next message.
        """
        deadline = self._clock() + timeout_seconds
        while not self._done:
            wait = max(0.0, min(deadline - self._clock(), 0.2))
            for key, _ in self._selector.select(wait):
                if key.data is None:
                    self._take_new()
                else:
                    self._go_on(key.data)
            now = self._clock()
            # Drop slow peers after the reads, because this process may be the
            # slow one.
            self._drop_slow(now)
            # The time ends even if strangers connect all the time.
            if now >= deadline:
                break
        return self._done.popleft() if self._done else None

    def close(self) -> None:
        """Closes the listener, and the connections that it has not returned."""
        for sock in list(self._handshakes):
            self._drop(sock)
        for sock, _ in self._done:
            sock.close()
        self._selector.close()
        self._sock.close()
        self._spare.close()

    def _take_new(self) -> None:
        # Take a bounded number, because handshakes under way need time, too.
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                sock, _ = self._sock.accept()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._refuse_one()
                return
            try:
                addresses.configure(sock)
                sock.setblocking(False)
                handshake = Accepting(self._token)
                sock.send(handshake.greeting)
            except OSError:  # the peer is gone already
                sock.close()
                continue
            if len(self._handshakes) >= self._most_handshakes:
                self._drop(next(iter(self._handshakes)), BUSY)
            deadline = self._clock() + HANDSHAKE_SECONDS
            self._handshakes[sock] = handshake, deadline
            self._selector.register(sock, selectors.EVENT_READ, sock)

    def _refuse_one(self) -> None:
        """Frees a descriptor: closes a handshake, or refuses a peer."""
        if self._handshakes:
            self._drop(next(iter(self._handshakes)), NO_DESCRIPTORS)
            return
        self._spare.close()
        with contextlib.suppress(OSError):
            sock, _ = self._sock.accept()
            with sock:
                sock.send(NO_DESCRIPTORS)
        with contextlib.suppress(OSError):
            self._spare = socket.socket()

    def _go_on(self, sock: socket.socket) -> None:
        if sock not in self._handshakes:  # it was closed for a newer one
            return
        handshake, _ = self._handshakes[sock]
        try:
            data = sock.recv(1 << 16)
            if not data:
                raise ConnectionResetError
            proof = handshake.feed(data)
            if proof is None:
                return
            with contextlib.suppress(BlockingIOError):
                if not sock.recv(1, socket.MSG_PEEK):
                    raise ConnectionResetError  # the peer gave up
            sock.send(proof)
        except BlockingIOError:
            return
        except OSError:
            self._drop(sock)
            return
        self._selector.unregister(sock)
        del self._handshakes[sock]
        sock.setblocking(True)
        self._done.append((sock, handshake.hello))

    def _drop_slow(self, now: float) -> None:
        while self._handshakes:
            sock, (_, deadline) = next(iter(self._handshakes.items()))
            if now < deadline:
                return
            self._drop(sock, BUSY)

    def _drop(self, sock: socket.socket, word: bytes = b"") -> None:
        """Sends a last word to the peer, and closes the connection."""
        del self._handshakes[sock]
        self._selector.unregister(sock)
        if word:
            with contextlib.suppress(OSError):
                sock.send(word)
                # Closing with unread bytes would reset the connection, and lose
                # the word.
                sock.recv(1 << 16)
        sock.close()


def encoded(message: dict[str, Any]) -> bytes:
    """Returns a message as `Channel.start_send` takes it."""
    return frames.encode(frames.to_json(message))


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
        # Bytes still to be sent: the rest of a frame, and whole frames.
        self._unsent: collections.deque[memoryview] = collections.deque()
        # Why nothing more can be received; "" while messages may come.
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
            ChannelClosedError: The peer is gone, or takes nothing in time.
        """
        deadline = time.monotonic() + timeout_seconds
        with self._lock:
            self._unsent.append(memoryview(encoded(message)))
            while not self._flush():
                left = deadline - time.monotonic()
                if left <= 0:
                    # The channel is useless with a part of a frame sent.
                    self.shutdown()
                    raise ChannelClosedError(
                        f"nothing was taken for {timeout_seconds:g} s."
                    )
                _wait(self._sock, select.POLLOUT, left)

    def start_send(self, frame: bytes = b"") -> bool:
        """Sends what the connection takes without waiting; keeps the rest.

        `frame` follows what was kept before. If this returns False, call it
        again once the descriptor is writable.

        Raises:
            ChannelClosedError: The peer is gone.
        """
        with self._lock:
            if frame:
                self._unsent.append(memoryview(frame))
            return self._flush()

    def _flush(self) -> bool:
        try:
            while self._unsent:
                sent = self._sock.send(self._unsent[0])
                if sent == len(self._unsent[0]):
                    self._unsent.popleft()
                else:
                    self._unsent[0] = self._unsent[0][sent:]
        except BlockingIOError:
            return False
        except OSError as error:
            raise ChannelClosedError(str(error)) from None
        return True

    def receive(self, timeout_seconds: float) -> dict[str, Any] | None:
        """Returns the next message; None if none arrived in this time.

        Raises:
            ChannelClosedError: The connection has ended, also by `shutdown`, or
                its bytes are no message.
        """
        deadline = time.monotonic() + timeout_seconds
        try:
            if self._ended:
                raise ChannelClosedError(self._ended)
            while (frame := self._frames.next()) is None:
                try:
                    data = self._sock.recv(1 << 16)
                except BlockingIOError:
                    left = deadline - time.monotonic()
                    if left <= 0:
                        return None
                    _wait(self._sock, select.POLLIN, left)
                    continue
                if not data:
                    raise ChannelClosedError("the other side has closed it.")
                self._frames.feed(data)
            return frames.from_json(frame)
        except OSError as error:
            # The end is final: nothing after an invalid message is trusted.
            self._ended = self._ended or str(error)
            self.shutdown()
            raise ChannelClosedError(self._ended) from None

    def shutdown(self) -> None:
        """Ends the connection, and a `receive` that waits in another thread."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Ends the connection; no other thread may be in `receive`."""
        self.shutdown()
        self._sock.close()


def _wait(sock: socket.socket, event: int, seconds: float) -> None:
    poll = select.poll()
    poll.register(sock, event)
    # poll(2) takes the time as an int.
    poll.poll(max(1, int(min(seconds, 3600) * 1000)))
