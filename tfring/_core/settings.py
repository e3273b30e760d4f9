"""Settings from the environment that Python reads itself."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping

# A year, which sleeps and waits take without an overflow.
_LONGEST_SECONDS = 366 * 24 * 3600.0
# A port, or an address and a port; an IPv6 address is in brackets.
_ENDPOINT = re.compile(r"(?:(?:\[([^\[\]\s]+)\]|([^\[\]:\s]+)):)?([0-9]{1,5})")


def seconds(
    variable: str,
    default: float,
    *,
    takes_zero: bool = True,
    environment: Mapping[str, str] = os.environ,
) -> float:
    """Reads a time limit in seconds, or the default where it is unset.

    With `takes_zero`, 0 means that there is no limit.

    Raises:
        ValueError: The setting is no number, or is out of bounds.
    """
    text = environment.get(variable, "")
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= _LONGEST_SECONDS or (value == 0 and not takes_zero):
        least = "0 for never" if takes_zero else "above 0"
        raise ValueError(
            f"{variable}='{text}' must be a number of seconds up to "
            f"{_LONGEST_SECONDS:.0f}, {least}."
        )
    return value


def between_hosts() -> str:
    """Returns what is to carry data between machines: "auto", "mpi" or "tcp".

    Raises:
        ValueError: The setting is none of these.
    """
    choices = ("auto", "mpi", "tcp")
    choice = os.environ.get("TFRING_BETWEEN_HOSTS", "") or "auto"
    if choice not in choices:
        raise ValueError(
            f"TFRING_BETWEEN_HOSTS='{choice}' must be one of "
            f"{', '.join(choices)}."
        )
    return choice


def metrics_endpoint() -> tuple[str, int] | None:
    """Returns the address and local rank 0's port for serving figures.

    Returns None if figures are not served.

    Raises:
        ValueError: The setting is neither a port nor an address and a port.
    """
    text = os.environ.get("TFRING_METRICS_PORT", "")
    if not text:
        return None
    found = _ENDPOINT.fullmatch(text)
    if found is None or not 0 < int(found[3]) < 65536:
        raise ValueError(
            f"TFRING_METRICS_PORT='{text}' must be a port, from 1 to 65535, or "
            "an address and a port, such as 0.0.0.0:9400 or [::]:9400."
        )
    return found[1] or found[2] or "127.0.0.1", int(found[3])
