"""The process around each rank: `python rank_wrapper.py 10=10,14=15 COMMAND`.

This process passes signals on to the rank, reports the rank's start and end,
and lets the ranks of a machine share the memory of its GPUs.

An MPI launcher passes few signals on, and kills the ranks at SIGTERM. So
`tfringrun` uses signals that are passed on: `14=15` says that SIGALRM to this
process means SIGTERM for the rank. The rank has a process group of its own,
because an MPI launcher signals the whole group of this process.

An MPI launcher kills all ranks when one ends with an error. After SIGINT or
SIGTERM for the rank, other ranks may still be saving. This process then
outlives its rank, until it gets SIGTERM, with which an MPI launcher ends a job.

A Python without site-packages runs this file by its path. It imports nothing of
tfring, so that it starts fast and needs little memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import signal
import sys
from collections.abc import Mapping, Set

# The variables in which an elastic job, Open MPI, MPICH and Slurm say how many
# ranks the machine has. Slurm's value has the form "4(x2),3", of which the
# first number is taken.
_LOCAL_SIZES = (
    "TFRING_ELASTIC_SLOTS",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "SLURM_STEP_TASKS_PER_NODE",
)
# An MPI launcher sends SIGKILL soon after SIGTERM.
_GRACE_SECONDS = 0.1
_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Runs a rank to its end; returns its exit status, 128 + n for signal n."""
    meanings = dict(_parse(pair) for pair in arguments[0].split(","))
    caught = {
        *(signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT),
        *(signal.SIGUSR1, signal.SIGUSR2, *meanings),
    }
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, caught)
    _get_signal_at_parents_end(signal.SIGTERM)
    # Reports go to a copy, because the rank may redirect its stderr.
    reports = os.dup(2)
    os.set_inheritable(reports, True)
    with contextlib.suppress(OSError):  # there may be no /proc
        pipe = os.readlink("/proc/self/fd/2")  # noqa: PTH115  pathlib is slow
        os.environ["TFRING_REPORTS"] = f"{reports} {pipe}"
    os.environ.update(share_gpus(os.environ))
    own = os.getpid()
    if (rank := os.fork()) == 0:
        _become_rank(arguments[1:], own, mask)
    with contextlib.suppress(OSError):  # the rank may have done so itself
        os.setpgid(rank, rank)
    _report(reports, "started 0")
    return _wait(rank, caught, meanings, reports)


def count_gpus(devices: str = "/dev") -> int:
    """Returns how many NVIDIA GPUs this machine or container has."""
    try:
        names = os.listdir(devices)  # noqa: PTH208  pathlib is slow to import
    except OSError:
        return 0
    return sum(
        name.startswith("nvidia") and name[6:].isdecimal() for name in names
    )


def share_gpus(
    environment: Mapping[str, str], devices: str = "/dev"
) -> dict[str, str]:
    """Returns the variable by which this machine's ranks share its GPUs.

    If the machine has more ranks than GPUs, or than CUDA_VISIBLE_DEVICES names,
    TensorFlow must allocate GPU memory as needed; otherwise the first rank
    would take all of it. A TF_FORCE_GPU_ALLOW_GROWTH that is set stays.
    `tfring.init` does the same under other launchers, which is too late for a
    script that has used TensorFlow before, and it chooses each rank's GPU.
    """
    gpus = count_gpus(devices)
    if gpus and (visible := environment.get("CUDA_VISIBLE_DEVICES")):
        gpus = len(visible.split(","))
    size = next(filter(None, map(environment.get, _LOCAL_SIZES)), "1")
    ranks = int("".join(itertools.takewhile(str.isdecimal, size)) or 1)
    if ranks <= gpus or not gpus or "TF_FORCE_GPU_ALLOW_GROWTH" in environment:
        return {}
    return {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}


def _parse(pair: str) -> tuple[int, int]:
    number, _, meaning = pair.partition("=")
    return int(number), int(meaning)


def _get_signal_at_parents_end(number: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def _become_rank(command: list[str], parent: int, mask: Set[int]) -> None:
    os.setpgid(0, 0)
    _get_signal_at_parents_end(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    # Python ignores these two signals, and the command would inherit that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    status = 126
    try:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        # There is no shell in between: it would drop variables whose names are
        # not valid in it, such as a module system's `BASH_FUNC_module%%`.
        os.execvp(command[0], command)
    except OSError as error:
        status = 127 if isinstance(error, FileNotFoundError) else 126
        text = f"tfringrun: {command[0]}: {error.strerror}\n"
        os.write(2, text.encode(errors="replace"))
    finally:
        os._exit(status)


def _report(reports: int, word: str) -> None:
    line = f"\x1e{word} {os.uname().nodename}\x1f\n"
    with contextlib.suppress(OSError):  # the pipe may be closed
        os.write(reports, line.encode())


def _wait(
    rank: int, caught: Set[int], meanings: dict[int, int], reports: int
) -> int:
    """Waits for the rank, or ends it at SIGTERM; returns the exit status."""
    status: int | None = None
    outlives_rank = False
    while status is None or outlives_rank:
        number = signal.sigwait(caught)
        if number == signal.SIGTERM:
            _end_group(rank)
            outlives_rank = False
        elif status is None and number in meanings:
            os.kill(rank, meanings[number])
            outlives_rank |= meanings[number] in (signal.SIGINT, signal.SIGTERM)
        if status is None:
            # WNOWAIT keeps the rank as a zombie, so that no other process gets
            # its number while this process may signal the rank's group.
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            if (end := os.waitid(os.P_PID, rank, flags)) is not None:
                was_killed = end.si_code != os.CLD_EXITED
                status = end.si_status + (128 if was_killed else 0)
                _report(reports, f"exit {status}")
    # Waiting adds the rank's CPU time to this process, so `time tfringrun` has
    # it.
    os.waitpid(rank, 0)
    return status


def _end_group(rank: int) -> None:
    for send, number in (
        (os.killpg, signal.SIGTERM),
        (os.killpg, signal.SIGKILL),
        (os.kill, signal.SIGKILL),  # it may have left its group
    ):
        with contextlib.suppress(ProcessLookupError):
            send(rank, number)
        if number == signal.SIGTERM:
            signal.sigtimedwait({signal.SIGCHLD}, _GRACE_SECONDS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
