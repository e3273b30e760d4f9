"""TCP connections to, and listeners at, the addresses of a host name.

A name may have addresses in several networks, some of which may be dead.
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable
from typing import Any

from tfring.rendezvous.handshake import BusyError, HandshakeError

# The most time for one address of a name while other addresses are left.
_ADDRESS_SECONDS = 5.0
# TCP between workers has the same limit (tfring_ops/transport/tcp/tcp.h, Note
# [TCP options]). Pulses report a lost worker sooner. The end of a connection to
# the launcher ends its process, which a machine that freezes for two seconds
# must not cause.
UNACKNOWLEDGED_MILLISECONDS = 5000


def configure(sock: socket.socket) -> None:
    """Makes TCP notice a lost machine or a cut link within some seconds."""
    sock.set_inheritable(False)
    tcp = socket.IPPROTO_TCP
    sock.setsockopt(tcp, socket.TCP_NODELAY, 1)
    sock.setsockopt(tcp, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MILLISECONDS)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(tcp, socket.TCP_KEEPIDLE, 1)
    sock.setsockopt(tcp, socket.TCP_KEEPINTVL, 1)


def connect(
    address: tuple[str, int],
    deadline: float,
    greet: Callable[[socket.socket, float], None],
) -> socket.socket:
    """Connects to the first address of a name at which `greet` succeeds.

    `greet` takes the connected socket and its deadline. Each address gets a
    share of the time, and the last one all that is left.

    Raises:
        OSError: No address has greeted in time.
    """
    found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
    errors: list[OSError] = []
    for number, (family, _, _, _, place) in enumerate(found, start=1):
        by = deadline
        if number < len(found):
            share = seconds_left(deadline) / (len(found) - number + 1)
            by = time.monotonic() + min(share, _ADDRESS_SECONDS)
        try:
            return _connect_once(family, place, by, greet)
        except OSError as error:
            errors.append(error)
    # The error of an address that has answered says more than a timeout.
    answers = (BusyError, HandshakeError, ConnectionResetError)
    raise next((e for e in errors if isinstance(e, answers)), errors[-1])


def _connect_once(
    family: int,
    place: Any,
    deadline: float,
    greet: Callable[[socket.socket, float], None],
) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(seconds_left(deadline))
        sock.connect(place)
        configure(sock)
        greet(sock, deadline)
    except BaseException:
        sock.close()
        raise
    return sock


def listen(host: str, port: int, backlog: int) -> socket.socket:
    """Listens at the first address of a name that this machine has.

    Raises:
        OSError: This machine has no such address, or the port is taken.
    """
    found = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    while True:
        family, _, _, _, address = found.pop(0)
        try:
            return socket.create_server(address, family=family, backlog=backlog)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL or not found:
                raise


def towards(host: str) -> str:
    """Returns the address of this machine from which it reaches a host.

    Raises:
        OSError: The host's name is unknown, or no route leads to it.
    """
    family, kind, _, _, address = socket.getaddrinfo(
        host, 9, type=socket.SOCK_DGRAM
    )[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # Nothing is sent.
        return str(probe.getsockname()[0])


def seconds_left(deadline: float) -> float:
    """Returns the seconds until a deadline.

    Raises:
        TimeoutError: The deadline has passed.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the other side did not answer in time.")
    return left
