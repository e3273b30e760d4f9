"""Ends this process if something that cannot be interrupted takes too long."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator

# It waits for the end of its input, which ends with its parent, and acts only
# if that is late.
_SCRIPT = """
timeout "$1" cat
if [ $? = 124 ]; then
    printf '%s\\n' "$2" >&2
    kill -TERM "$PPID"
    timeout 5 cat
    [ $? = 124 ] && kill -KILL "$PPID"
fi
"""


@contextlib.contextmanager
def ends_this_process(seconds: float, message: str) -> Iterator[None]:
    """Within it, this process has a time limit.

    It is a process of its own that watches: `MPI_Init`, which waits for all
    ranks, holds Python's lock, so that no thread here could.

    Args:
        seconds: The limit; 0 for none.
        message: The text on stderr, before SIGTERM and, five seconds later,
            SIGKILL.
    """
    if not seconds:
        yield
        return
    guard = subprocess.Popen(
        ["/bin/sh", "-c", _SCRIPT, "tfring", str(seconds), message],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert guard.stdin is not None
    try:
        yield
    finally:
        guard.stdin.close()
        guard.wait()
