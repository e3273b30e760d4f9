"""One sentence about a host, from the many lines of an MPI launcher."""

from __future__ import annotations

import re
from collections.abc import Sequence

# The message of Open MPI 5 and 4 about a host that is lost.
_LOST = re.compile(r"(?:PRTE|ORTE) has lost communication with a remote daemon")
# Messages of Open MPI and MPICH about a host where their daemon does not start.
_FAILED = re.compile(
    rf"{_LOST.pattern}|A daemon failed to report back after being spawned"
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
    failed = [at for at, line in enumerate(lines) if _FAILED.match(line)]
    if not failed:
        return None
    named = [match["host"] for match in map(_HOST.match, lines) if match]
    host = f"host {named[0]}" if named else "a host"
    if under_way or any(map(_LOST.match, lines)):
        return f"{host} was lost."
    before = [x for x in lines[: failed[0]] if not _RULER.fullmatch(x)]
    reasons = [x for x in before if _OF_SSH.match(x)] or before
    reason = reasons[-1].rstrip(".") if reasons else "MPI's daemon is not heard"
    return (
        f"{host} cannot be reached: {reason}. It needs ssh without a password, "
        "the same Python and MPI at the same paths, and no firewall in between."
    )
