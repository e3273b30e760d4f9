"""Offsets between the clocks of machines, which start at different times."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

PING_PONGS = 20


def kernel() -> str:
    """Returns an id of this machine's kernel, whose processes share a clock."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        return f"{socket.gethostname()}, process {os.getpid()}"


def offset_ns(
    ask: Callable[[], int], clock_ns: Callable[[], int] = time.monotonic_ns
) -> int:
    """Returns what to add to this process's clock to get that of a peer.

    It takes the fastest of some ping-pongs, and assumes that the peer has
    answered in the middle of it.

    Args:
        ask: Returns the peer's `time.monotonic_ns()`; it is called `PING_PONGS`
            times.
        clock_ns: Returns the time of this process's clock.
    """
    fastest_ns, offset = None, 0
    for _ in range(PING_PONGS):
        sent = clock_ns()
        answered = ask()
        received = clock_ns()
        if fastest_ns is None or received - sent < fastest_ns:
            fastest_ns = received - sent
            offset = answered - (sent + received) // 2
    return offset
