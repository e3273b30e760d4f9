"""The connections of a supervisor to the launcher."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from tfring.rendezvous import wire
from tfring.rendezvous.handshake import HandshakeError

# The time limit of one attempt to reach the launcher, and the pause before the
# next one.
_CONNECT_SECONDS = 30.0
_AGAIN_SECONDS = 0.5


def reach(
    address: wire.Address,
    token: str,
    hello: dict[str, Any],
    patience_seconds: float = 0.0,
    clock: Callable[[], float] = time.monotonic,
) -> socket.socket:
    """Connects to the rendezvous, and tries again for `patience_seconds`.

    Raises:
        OSError: The rendezvous cannot be reached, or belongs to another job
            (HandshakeError).
    """
    give_up_at = clock() + patience_seconds
    while True:
        try:
            return wire.connect(address, token, hello, _CONNECT_SECONDS)
        except HandshakeError:
            raise
        except OSError:
            if clock() >= give_up_at:
                raise
        time.sleep(_AGAIN_SECONDS)


class Output:
    """The connection that carries the workers' output. Any thread may send."""

    def __init__(self, address: wire.Address, token: str, host: str) -> None:
        """Connects to the rendezvous.

        Raises:
            OSError: It cannot be reached.
        """
        self._address = address
        self._token = token
        self._hello = {"role": "output", "host": host}
        self._lock = threading.Lock()
        self._channel = self._connect()

    def _connect(self) -> wire.Channel:
        sock = wire.connect(
            self._address, self._token, self._hello, _CONNECT_SECONDS
        )
        # No time limit: a reader that stops reading blocks the launcher's
        # output.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)
        return wire.Channel(sock)

    def send(self, message: dict[str, Any]) -> None:
        """Sends a message, by a new connection if the old one was cut.

        Raises:
            OSError: The rendezvous cannot be reached.
        """
        channel = self._channel
        try:
            channel.send(message, math.inf)
        except wire.ChannelClosedError:
            with self._lock:
                if self._channel is channel:
                    self._channel = self._connect()
            self._channel.send(message, math.inf)
