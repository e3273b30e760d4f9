"""`python -m tfring.horovod COMMAND`: runs a command that imports horovod.

It is for ranks that mpirun or srun start. If the command begins with a Python
file, this Python runs it. Without a command it prints the folder for
`PYTHONPATH`.
"""

from __future__ import annotations

import os
import shutil
import sys

from tfring import horovod
from tfring.horovod import variables


def main() -> int:
    command = sys.argv[1:]
    if not command:
        print(horovod.FOLDER)
        return 0
    if command[0].endswith(".py"):
        command = [sys.executable, *command]
    program = shutil.which(command[0])
    if program is None:
        print(
            f"tfring.horovod: there is no command {command[0]!r} here.",
            file=sys.stderr,
        )
        return 2
    try:
        settings = horovod.settings()
    except ValueError as error:
        print(f"tfring.horovod: {error}", file=sys.stderr)
        return 2
    unread = variables.unread(os.environ)
    if unread and _is_first_rank():
        print(f"tfring.horovod: {unread}.", file=sys.stderr, flush=True)
    return os.execve(program, command, {**os.environ, **settings})


def _is_first_rank() -> bool:
    names = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
    return all(os.environ.get(name, "0") == "0" for name in names)


if __name__ == "__main__":
    sys.exit(main())
