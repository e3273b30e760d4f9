"""Pickles in files, which one process of a user passes to another.

Loading a pickle runs code from it. So the file and its folder belong to one
user, and a file that others may write is not read.
"""

from __future__ import annotations

import importlib
import os
import pickle
import stat
from pathlib import Path
from typing import Any


def knows_main() -> bool:
    """Tells whether functions and classes of `__main__` can be pickled."""
    return _cloudpickle() is not None


def dumps(value: Any) -> bytes:
    """Pickles a value, with cloudpickle if it is installed.

    Raises:
        Exception: The value cannot be pickled. Its `__reduce__` may raise any
            class.
    """
    pickler = _cloudpickle() or pickle
    data: bytes = pickler.dumps(value)
    return data


def _cloudpickle() -> Any:
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        return None


def write(path: Path, data: bytes) -> None:
    """Writes a file that appears only when it is complete."""
    unfinished = path.with_suffix(".new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with os.fdopen(os.open(unfinished, flags, 0o600), "wb") as file:
        file.write(data)
    unfinished.rename(path)


def write_returned(folder: Path, worker: str, value: Any) -> None:
    """Writes what a worker has returned, for `load_returned`."""
    write(folder / f"{worker}.returned", dumps(value))


def load_returned(folder: Path) -> list[Any]:
    """Returns what workers have returned, in any order."""
    return [load(path) for path in folder.glob("*.returned")]


def load(path: Path) -> Any:
    """Loads a file that `write` wrote.

    Raises:
        FileNotFoundError: There is no such file.
        PermissionError: Another user owns the file, or may write it.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags), "rb") as file:
        found = os.fstat(file.fileno())
        if (
            found.st_uid != os.geteuid()
            or not stat.S_ISREG(found.st_mode)
            or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        ):
            raise PermissionError(
                f"tfring.run: {path} is not a file that only this user can "
                "write."
            )
        return pickle.load(file)
