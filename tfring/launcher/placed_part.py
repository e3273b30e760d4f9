"""A placed process's part of a job: a supervisor, and the files of its ranks.

It reads its order from standard input: a line of JSON, and the pickled call. At
the end of standard input the part ends, with its ranks. At its own end it
writes what the ranks have returned to standard output.
"""

from __future__ import annotations

import pickle
import shutil
import sys
import tempfile
from pathlib import Path

from tfring.launcher import orders, placed, prepare, private_files
from tfring.launcher.elastic import supervisor


def main() -> int:
    """Runs the part; returns its exit status."""
    order = orders.read()
    folder = Path(tempfile.mkdtemp(prefix=".tfring-run-"))
    try:
        call = orders.read_data(order["call_bytes"])
        private_files.write(
            folder / "call", pickle.dumps((order["path"], call))
        )
        order["command"] = [
            *(sys.executable, "-m", "tfring.launcher.function_rank"),
            str(folder),
        ]
        order["node"] = placed.node()
        order["environment"] = prepare.make_environment(
            (), order["environment"]
        )
        status = supervisor.supervise(order)
        returned = private_files.load_returned(folder)
        sys.stdout.buffer.write(pickle.dumps(returned))
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
