"""The order of a child process: a line of JSON on its standard input.

It contains the job's token, which must not be on a command line.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any


def encoded(order: Mapping[str, Any]) -> bytes:
    """Returns an order as `read` takes it."""
    return json.dumps(order).encode() + b"\n"


def write(
    process: subprocess.Popen[bytes],
    order: Mapping[str, Any],
    data: bytes = b"",
) -> None:
    """Writes an order, and data after it, to a child that may have ended."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(encoded(order) + data)
        process.stdin.flush()


def read() -> dict[str, Any]:
    """Reads this process's order."""
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        sys.exit(1)  # the parent is gone
    order: dict[str, Any] = json.loads(line)
    return order


def read_data(count_bytes: int) -> bytes:
    """Reads data that follow the order."""
    data = sys.stdin.buffer.read(count_bytes)
    if len(data) < count_bytes:
        sys.exit(1)  # the parent is gone
    return data
