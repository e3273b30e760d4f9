"""Checks and completes a launcher's surroundings: streams, HOME, space."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import sys
from pathlib import Path

_OWN_PROCESS = Path("/proc/self")
SHARED_MEMORY = Path("/dev/shm")
# A folder with less free space counts as full.
_LEAST_BYTES = 1 << 20


def complete() -> None:
    """Opens standard streams and sets HOME where they are missing.

    Raises:
        ValueError: Something is missing that cannot be replaced.
    """
    _open_streams()
    if not os.environ.get("HOME"):
        # Open MPI does not start without HOME.
        os.environ["HOME"] = _home()
    try:
        Path.cwd()
    except FileNotFoundError:
        raise ValueError(
            "the working directory was removed. Change to one that exists, as "
            "by: cd ~"
        ) from None
    if not _OWN_PROCESS.exists():
        raise ValueError(
            "/proc is not mounted, and Open MPI does not start without it. "
            "Mount it: mount -t proc proc /proc"
        )


def _open_streams() -> None:
    # Otherwise the next file or pipe would get the number of a closed stream.
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # `open` returns the lowest free number, which is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115


def _home() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:  # a container's user may have no name
        return "/"


def full_folders() -> list[str]:
    """Returns the folders for shared memory that are full on this machine.

    SIGBUS kills a process that writes to a mapped file in a full folder.
    """
    folders = [SHARED_MEMORY, Path(os.environ.get("TMPDIR") or "/tmp")]
    full = []
    for folder in folders:
        with contextlib.suppress(OSError):
            if shutil.disk_usage(folder).free < _LEAST_BYTES:
                full.append(str(folder))
    return full
