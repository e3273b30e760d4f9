"""A rank of a job that runs a function: `function_rank FOLDER`."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import Any

from tfring.launcher import private_files
from tfring.launcher.placed import Returned, described

# The exception that was sent to the calling program, which will show it.
_sent: list[Exception] = []


def main() -> None:
    """Calls the function, and leaves what it returned in the folder."""
    folder = Path(sys.argv.pop(1))
    worker = os.environ["TFRING_ELASTIC_WORKER"]
    try:
        path, call = private_files.load(folder / "call")
        sys.path[:] = path
        fn, args, kwargs = pickle.loads(call)
        returned = Returned(
            worker, False, private_files.dumps(fn(*args, **kwargs))
        )
    except Exception as error:
        returned = Returned(worker, True, described(error))
        private_files.write_returned(folder, worker, returned)
        _sent.append(error)
        raise
    private_files.write_returned(folder, worker, returned)


def _show_if_unsent(kind: Any, value: Any, frames: Any) -> None:
    if value not in _sent:
        sys.__excepthook__(kind, value, frames)


if __name__ == "__main__":
    # `tfring.init` wraps this hook later.
    sys.excepthook = _show_if_unsent
    main()
