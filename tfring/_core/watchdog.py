"""Ends this process if something that cannot be interrupted takes too long."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator

# Waits for the end of its input, which ends with the parent, and acts if the
# limit passes first.
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
    """A context in which this process has a time limit.

    Another process watches the time. A thread could not, because `MPI_Init`
    holds Python's lock while it waits for all ranks.

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
