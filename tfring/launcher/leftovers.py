"""Removes the leftovers of Open MPI jobs that were killed.

If its `mpirun` is killed, a job leaves a folder and, for each rank, 16 MiB of
shared memory until the machine restarts. The next job of the same user removes
them.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from tfring.launcher.surroundings import SHARED_MEMORY

# Files that are younger may belong to a job that is just starting.
_YOUNGEST_SECONDS = 10.0


def remove(
    shared_memory: Path = SHARED_MEMORY, folder: Path | None = None
) -> list[Path]:
    """Removes this user's leftovers on this machine; returns their paths.

    Shared memory is a leftover if no process has it mapped. A launcher's folder
    is a leftover if the process in its name has ended.
    """
    folder = folder or Path(tempfile.gettempdir())
    host, user = os.uname().nodename, os.geteuid()
    removed = []
    segments = list(
        _old(shared_memory.glob(f"sm_segment.{host}.{user}.*"), user)
    )
    if segments:
        mapped = _mapped_files(user)
        for segment in segments:
            if mapped is not None and str(segment) not in mapped:
                with contextlib.suppress(OSError):
                    segment.unlink()
                    removed.append(segment)
    for session in _old(folder.glob("ompi.*"), user):
        found = re.fullmatch(r"ompi\.(\d+)", session.name)
        if found and not Path("/proc", found[1]).exists():
            shutil.rmtree(session, ignore_errors=True)
            removed.append(session)
    return removed


def _old(paths: Iterable[Path], user: int) -> Iterable[Path]:
    for path in paths:
        with contextlib.suppress(OSError):
            found = path.lstat()
            if (
                found.st_uid == user
                and found.st_mtime < time.time() - _YOUNGEST_SECONDS
            ):
                yield path


def _mapped_files(user: int) -> set[str] | None:
    """Returns the files mapped by `user`'s processes; None if unknown."""
    files = set()
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if directory.stat().st_uid != user:
                continue
            lines = (directory / "maps").read_text(errors="replace")
        except PermissionError:
            if directory.name == "1":  # init is never a rank
                continue
            return None
        except OSError:  # the process has ended
            continue
        files.update(re.findall(r"(/\S*sm_segment\.\S+)", lines))
    return files
