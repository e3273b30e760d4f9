"""The process of a worker, which its supervisor starts and watches."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import signal
import subprocess
import time
from pathlib import Path

from tfring.launcher import processes, wrapper


@dataclasses.dataclass
class WorkerProcess:
    """A process that the supervisor has started."""

    process: subprocess.Popen[bytes]
    slot: int
    cpus: set[int]
    kill_at: float = math.inf
    # Since when each check has found the process stopped.
    stopped_at: float = math.inf

    def kill_in(self, seconds: float) -> None:
        self.kill_at = min(self.kill_at, time.monotonic() + seconds)

    def bind(self, cpus: set[int]) -> None:
        """Binds the threads that the script has not bound to cores."""
        rebind(self.process.pid, self.cpus, cpus)
        self.cpus = cpus


def prepare(cpus: set[int]) -> None:
    """Prepares a worker's process for its command."""
    processes.end_with_parent(signal.SIGKILL)
    with contextlib.suppress(OSError):  # the host may have lost some
        os.sched_setaffinity(0, cpus)


def rebind(pid: int, before: set[int], cpus: set[int]) -> None:
    """Binds the threads that still have the CPUs of `before`."""
    with contextlib.suppress(OSError):  # the process has ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            thread = int(task.name)
            with contextlib.suppress(OSError):
                if os.sched_getaffinity(thread) == before:
                    os.sched_setaffinity(thread, cpus)


def is_stopped(pid: int) -> bool:
    """Returns True if a signal such as SIGSTOP has stopped a process."""
    try:
        # "T": stopped by a signal. A debugger's "t" does not count.
        return processes.stat_fields(pid)[0] == "T"
    except OSError:
        return False


def kill(job: str, worker: str, pid: int) -> None:
    """Kills a worker's process group, and its processes in other groups."""
    processes.kill_group(pid)
    marks = {
        f"TFRING_ELASTIC_JOB={job}".encode(),
        f"TFRING_ELASTIC_WORKER={worker}".encode(),
    }
    for descendant in processes.descendants():
        with contextlib.suppress(OSError):
            environment = Path(f"/proc/{descendant}/environ").read_bytes()
            if marks <= {*environment.split(b"\0")}:
                os.kill(descendant, signal.SIGKILL)


def describe(status: int) -> tuple[int, str]:
    """Returns the status as a shell has it, and in words."""
    if status >= 0:
        return status, f"exit status {status}"
    name = wrapper.signal_name(128 - status) or f"signal {-status}"
    return 128 - status, f"killed by {name}"
