"""Keeps MPI from waiting for fabrics that this machine does not have.

Open MPI 5 waits a second in `MPI_Init` while its transport `ofi` looks for
devices. It is left out where the kernel knows none, unless the user has chosen
transports.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path

# Where the kernel lists InfiniBand, RoCE, Omni-Path and EFA, and Slingshot.
_DEVICES = (Path("/sys/class/infiniband"), Path("/sys/class/cxi"))
_SETTING = "OMPI_MCA_btl"


def skip_absent(
    environment: MutableMapping[str, str],
    files: tuple[Path, ...],
    devices: tuple[Path, ...] = _DEVICES,
) -> None:
    """Tells Open MPI, by the environment, not to look for fabrics.

    Args:
        environment: The variables of this process, before MPI starts.
        files: Open MPI's files of settings, which need not exist.
        devices: The folders with a file for each device.
    """
    if any(map(_has_entries, devices)) or any(map(_chooses, files)):
        return
    environment.setdefault(_SETTING, "^ofi")


def files_of_settings(
    environment: MutableMapping[str, str],
) -> tuple[Path, ...]:
    """Returns the files where Open MPI looks for a user's settings."""
    home = environment.get("HOME", "/")
    files = [Path(home) / ".openmpi/mca-params.conf"]
    if prefix := environment.get("OPAL_PREFIX"):
        files.append(Path(prefix) / "etc/openmpi-mca-params.conf")
    return tuple(files)


def _has_entries(folder: Path) -> bool:
    try:
        return any(folder.iterdir())
    except OSError:
        return False


def _chooses(file: Path) -> bool:
    """Tells whether a file of settings names the transports."""
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return False
    return any(line.partition("=")[0].strip() == "btl" for line in lines)
