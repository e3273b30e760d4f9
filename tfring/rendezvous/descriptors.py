"""How many descriptors this process may have open; no sockets here."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

# For all else that a process opens meanwhile.
SPARE = 16


def raise_limit() -> int:
    """Raises the limit as far as this process may, and returns it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def check(more: int, purpose: str) -> None:
    """Checks that this process may open so many more descriptors.

    Their purpose ends the error's sentence.

    Raises:
        RuntimeError: The limit does not allow it.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        used = len(list(Path("/proc/self/fd").iterdir()))
    except OSError:  # Not even one is left for this.
        used = limit
    if used + more + SPARE > limit:
        raise RuntimeError(
            f"this process has {used} open files, its limit is {limit}, and "
            f"{more} more are needed {purpose}. Raise the limit "
            f"(`ulimit -n`, also the hard one) to {used + more + SPARE} or "
            "more where the job is started."
        )
