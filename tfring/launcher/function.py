"""`tfring.run`: starts a function on ranks from a program or a notebook."""

from __future__ import annotations

import os
import pickle
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tfring.launcher import hosts as hosts_lib, private_files
from tfring.launcher.hosts import Host
from tfring.launcher.launcher_process import LauncherProcess, terminals
from tfring.launcher.placed import (
    Rendezvous,
    pickled_call,
    results,
    start_part,
)

_Result = TypeVar("_Result")

_CALLER = "tfring.run"


def run(
    fn: Callable[..., _Result],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int | None = 2,
    hosts: str | None = None,
    *,
    verbose: bool = False,
) -> list[_Result]:
    """Runs a function on the ranks of a new job, and returns their results.

    It is for programs and notebooks, which have no script to pass to
    `tfringrun`. Each rank is its own process, which calls
    `fn(*args, **kwargs)` once. `fn` calls `tfring.init()` and does the work of
    a script. This process is not a rank: it waits, and shows the output of rank
    0 immediately.

    An interrupt, such as Ctrl-C or a notebook's stop button, ends the job. If a
    rank fails, all ranks end, and `run` raises the exception of the rank that
    failed first, with its traceback.

    Function, arguments and results are pickled, by cloudpickle if it is
    installed: only then may `fn` be a lambda, or be defined in a notebook or in
    the program itself (`__main__`). They are passed in files that only this
    user can read. The files are in the folder for temporary files; with other
    hosts they are in the working directory, which all hosts must share.

    The ranks of one machine meet at a launcher by TCP, share memory, and have
    no MPI: `fn` cannot use mpi4py. On other hosts, and in a job of a batch
    system, MPI starts and connects the ranks.

    Args:
        fn: The function, of any arguments.
        args: Its positional arguments, the same on every rank.
        kwargs: Its keyword arguments, the same on every rank.
        np: The number of ranks; None means one for each slot of `hosts`.
        hosts: Machines and how many ranks each takes, as for `tfringrun -H`:
            "node1:4,node2:4". None means this machine, or the machines that the
            batch system has allotted.
        verbose: Show how the job is started, and where the seconds of its start
            and its end went, as `tfringrun --verbose` does.

    Returns:
        The results of `fn`, by rank.

    Raises:
        RuntimeError: A rank was killed, exited or gave no result, the job
            could not be started, or this process is itself a rank.
        TypeError: `fn` cannot be called, or something cannot be pickled.
        ValueError: `np` or `hosts` is not valid.
        Exception: The exception of the rank that failed first.

    Example:

    ```py
    import tfring

    def train(rate):
        import tfring

        tfring.init()
        ...
        return tfring.rank(), rate

    tfring.run(train, args=(1e-3,), np=2)  # [(0, 0.001), (1, 0.001)]
    ```

    Reference:
        `horovod.run` of Horovod 0.28.
    """
    pickled = pickled_call(_CALLER, fn, args, kwargs)
    _check(np)
    machines = hosts_lib.parse_hosts(hosts) if hosts else []
    is_here = not hosts_lib.manages_hosts(os.environ) or bool(machines)
    if is_here and all(host.is_local() for host in machines):
        return _run_here(pickled, _ranks(np, machines), verbose)
    return _run_by_mpi(pickled, np, hosts, verbose)


def _check(np: int | None) -> None:
    if np is not None and (not isinstance(np, int) or np < 1):
        raise ValueError(f"tfring.run: np must be at least 1, got {np!r}.")
    of_ranks = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "TFRING_ELASTIC_WORKER"}
    if of_ranks & os.environ.keys():
        raise RuntimeError(
            "tfring.run starts a job, and this process is a rank of one. Call "
            "it from a program that no launcher started."
        )


def _ranks(np: int | None, machines: Sequence[Host]) -> int:
    ranks = np or sum(host.slots for host in machines)
    if ranks < 1:
        raise ValueError("tfring.run: how many ranks? Pass np=N.")
    return ranks


def _run_here(call: bytes, ranks: int, verbose: bool) -> list[Any]:
    """Runs the ranks on this machine, as the one place of a rendezvous."""
    rendezvous = Rendezvous(
        ranks,
        caller=_CALLER,
        terminals=terminals(),
        only_rank=0,
        verbose=verbose,
    )
    part = None
    try:
        part = start_part(
            rendezvous.ticket, socket.gethostname(), call, slots=ranks
        )
        outcome = rendezvous.follow()
        returned = part.returned()
    except BaseException:
        rendezvous.stop()
        raise
    finally:
        if part is not None:
            part.stop()
    return results(returned, outcome)


def _run_by_mpi(
    call: bytes, np: int | None, hosts: str | None, verbose: bool
) -> list[Any]:
    """Runs the ranks on machines that share the working directory."""
    folder = Path(tempfile.mkdtemp(prefix=".tfring-run-", dir=Path.cwd()))
    try:
        # The `__main__` of a rank is another module, so `sys.path` starts with
        # another folder there.
        path = [entry or str(Path.cwd()) for entry in sys.path]
        private_files.write(folder / "call", pickle.dumps((path, call)))
        launcher = LauncherProcess(
            {
                "folder": str(folder),
                "ranks": np,
                "hosts": hosts,
                "terminals": terminals(),
                "only_rank": 0,
                "verbose": verbose,
                "caller": _CALLER,
            }
        )
        try:
            outcome = launcher.follow()
        except BaseException:
            launcher.stop()
            raise
        return results(private_files.load_returned(folder), outcome)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
