"""A rank of a job of `tfring.run`: `function_rank FOLDER`."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from pathlib import Path
from typing import Any

from tfring.launcher import private_files

# The exception that the program will show.
_sent: list[Exception] = []


def main() -> None:
    """Calls the function, and leaves its result in the folder."""
    folder = Path(sys.argv.pop(1))
    rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"]
    if not folder.exists():
        sys.exit(
            f"tfring.run: {folder} is not on this host. The working directory "
            "of the program must be on a file system that all hosts share."
        )
    try:
        path, call = private_files.load(folder / "call")
        sys.path[:] = path
        fn, args, kwargs = pickle.loads(call)
        result = private_files.dumps(fn(*args, **kwargs))
    except Exception as error:
        private_files.write(folder / f"error{rank}", _describe(error))
        _sent.append(error)
        raise
    private_files.write(folder / f"result{rank}", result)


def _describe(error: Exception) -> bytes:
    """The exception, or None if it cannot travel; its line, its traceback."""
    # Without the frame of this file.
    frames = error.__traceback__ and error.__traceback__.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames))
    line = f"{type(error).__name__}: {error}"
    try:
        pickled = private_files.dumps((error, line, text.rstrip()))
        # Some can only be pickled.
        pickle.loads(pickled)
    except Exception:
        return pickle.dumps((None, line, text.rstrip()))
    return pickled


def _show_if_unsent(kind: Any, value: Any, frames: Any) -> None:
    if value not in _sent:
        sys.__excepthook__(kind, value, frames)


if __name__ == "__main__":
    # Before `tfring.init` wraps it.
    sys.excepthook = _show_if_unsent
    main()
