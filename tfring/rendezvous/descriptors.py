"""How many descriptors this process may have open; no sockets here."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

# Descriptors that are kept free for the rest of the process.
SPARE = 16


def raise_limit() -> int:
    """Raises the limit as far as this process may, and returns it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def check(more: int, purpose: str) -> None:
    """Checks that this process may open `more` descriptors.

    `purpose` completes the error's sentence.

    Raises:
        RuntimeError: The limit does not allow it.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        used = len(list(Path("/proc/self/fd").iterdir()))
    except OSError:  # no descriptor is left to list them
        used = limit
    if used + more + SPARE > limit:
        raise RuntimeError(
            f"this process has {used} open files, its limit is {limit}, and "
            f"{more} more are needed {purpose}. Raise the limit "
            f"(`ulimit -n`, also the hard one) to {used + more + SPARE} or "
            "more where the job is started."
        )
