"""One sentence about a host, from the many lines of an MPI launcher."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Open MPI 5 and 4 say so.
_LOST = re.compile(r"(?:PRTE|ORTE) has lost communication with a remote daemon")
# Open MPI 5, Open MPI 4 and MPICH say so.
_NOT_STARTED = re.compile(
    r"A daemon failed to report back after being spawned"
    r"|ORTE was unable to reliably start one or more daemons"
    r"|\[mpiexec@.*Launch proxy failed"
)
_HOST = re.compile(
    r"\s*(?:Remote daemon: .* on node|Remote host:) +(?P<host>\S+)"
)
_OF_SSH = re.compile(
    r"ssh: |.*Permission denied \(|Host key verification failed"
    r"|kex_exchange_identification"
)
_RULER = re.compile(r"-+|")


def describe(lines: Sequence[str], *, under_way: bool) -> str | None:
    """Says which host failed, and why; None if none has.

    Args:
        lines: The launcher's own words, in order.
        under_way: Some rank has started.
    """
    news = _first(_LOST, lines)
    missing = _first(_NOT_STARTED, lines)
    if news is None and missing is None:
        return None
    named = [found["host"] for line in lines if (found := _HOST.match(line))]
    host = f"host {named[0]}" if named else "a host"
    if news is not None or under_way:
        return f"{host} was lost."
    before = [line for line in lines[:missing] if not _RULER.fullmatch(line)]
    of_ssh = [line for line in before if _OF_SSH.match(line)]
    if of_ssh:
        return f"{host} cannot be reached: {of_ssh[-1].rstrip('.')}."
    reason = before[-1].rstrip(".") if before else "MPI's daemon is not heard"
    return (
        f"{host} cannot start its part of the job: {reason}. It needs the same "
        "Python and MPI at the same paths, and no firewall in between."
    )


def _first(pattern: re.Pattern[str], lines: Sequence[str]) -> int | None:
    return next(
        (i for i, line in enumerate(lines) if pattern.match(line)), None
    )
