"""Clocks of several machines; each counts from a time of its own."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

PING_PONGS = 20


def kernel() -> str:
    """Names this machine's kernel: its processes have one clock."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        return f"{socket.gethostname()}, process {os.getpid()}"


def offset_ns(
    ask: Callable[[], int], clock_ns: Callable[[], int] = time.monotonic_ns
) -> int:
    """Returns what this process adds to its clock to have another's.

    The answer of the fastest of some ping-pongs is taken to be made in its
    middle.

    Args:
        ask: Returns the peer's `time.monotonic_ns()`; it is called `PING_PONGS`
            times.
        clock_ns: This process's.
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
