"""`tfring.run`: starts a function on ranks from a program or a notebook."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from tfring.launcher import hosts as hosts_lib, mpi_launchers
from tfring.launcher.hosts import Host
from tfring.launcher.launcher_process import Rendezvous
from tfring.launcher.placed import (
    Part,
    pickled_call,
    results,
    start_part,
)
from tfring.rendezvous import addresses

_Result = TypeVar("_Result")

_CALLER = "tfring.run"
# How long the launcher has, after the loss of a part, to report the cause.
_LAUNCHER_SECONDS = 3.0
# How long a part has to end by itself after a failure.
_FAILURE_SECONDS = 10.0


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
    the program itself (`__main__`). On each machine they are in files that only
    this user can read, in the folder for temporary files.

    Ranks share memory on one machine, and talk by TCP to other machines. There
    is no MPI: `fn` cannot use mpi4py, and a fabric such as InfiniBand carries
    TCP alone. For MPI's fabrics start a script by `tfringrun`.

    Other machines are reached by ssh without a password. They need the same
    Python with tfring, and the working directory, under the same paths. They
    get this process's environment, as under `tfringrun`. This process is
    reached at the address that leads to the first of them, or at
    `TFRING_ELASTIC_INTERFACE`.

    Args:
        fn: The function, of any arguments.
        args: Its positional arguments, the same on every rank.
        kwargs: Its keyword arguments, the same on every rank.
        np: The number of ranks; None means one for each slot of `hosts`.
        hosts: Machines and how many ranks each takes, as for `tfringrun -H`:
            "node1:4,node2:4". Ranks are numbered in this order. None means this
            machine, or the machines that Slurm, PBS, LSF or Grid Engine has
            allotted.
        verbose: Show how the job is started, and where the seconds of its start
            and its end went, as `tfringrun --verbose` does.

    Returns:
        The results of `fn`, by rank.

    Raises:
        RuntimeError: A rank was killed, exited or gave no result, a machine
            cannot be reached, or this process is itself a rank.
        TypeError: `fn` cannot be called, or something cannot be pickled.
        ValueError: `np` or `hosts` is not valid, or there are too few slots.
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
    return _run(pickled, _machines(hosts, np), verbose)


def _check(np: int | None) -> None:
    if np is not None and (not isinstance(np, int) or np < 1):
        raise ValueError(f"tfring.run: np must be at least 1, got {np!r}.")
    of_ranks = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "TFRING_ELASTIC_WORKER"}
    if of_ranks & os.environ.keys():
        raise RuntimeError(
            "tfring.run starts a job, and this process is a rank of one. Call "
            "it from a program that no launcher started."
        )


def _machines(hosts: str | None, np: int | None) -> list[Host]:
    """Returns the machines of the ranks, with one slot per rank."""
    machines = hosts_lib.parse_hosts(hosts) if hosts else _allotted()
    slots = hosts_lib.slots_by_name(machines)
    left = ranks = np or slots.total()
    if ranks < 1:
        raise ValueError("tfring.run: how many ranks? Pass np=N.")
    if all(host.is_local() for host in machines):
        return [Host(socket.gethostname(), ranks)]
    shares = []
    for name, count in slots.items():
        shares.append(Host(name, min(count, left)))
        left -= shares[-1].slots
    if left > 0:
        raise ValueError(
            f"tfring.run: np={ranks}, and the machines have {slots.total()} "
            "slots in all. Ask for fewer ranks, or pass hosts= with more slots."
        )
    return [host for host in shares if host.slots > 0]


def _allotted() -> list[Host]:
    try:
        return hosts_lib.allotted(os.environ)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise RuntimeError(
            "tfring.run: the batch system's list of machines cannot be read: "
            f"{error}. Pass hosts=."
        ) from error


def _run(call: bytes, machines: Sequence[Host], verbose: bool) -> list[Any]:
    """Runs the ranks, with a part of the rendezvous on each machine."""
    rendezvous = Rendezvous(
        sum(host.slots for host in machines),
        caller=_CALLER,
        interface=_interface(machines),
        only_rank=0,
        verbose=verbose,
    )
    parts: list[Part] = []
    try:
        for order, host in enumerate(machines):
            parts.append(
                start_part(
                    rendezvous.ticket,
                    host.name,
                    call,
                    slots=host.slots,
                    environment=_environment(host),
                    host=host,
                    order=order,
                    on_loss=lambda: rendezvous.end(_LAUNCHER_SECONDS),
                )
            )
        outcome = rendezvous.follow()
        seconds = _FAILURE_SECONDS if outcome.status else None
        returned = [each for part in parts for each in part.returned(seconds)]
    except BaseException:
        rendezvous.stop()
        raise
    finally:
        for part in parts:
            part.stop()
    for host, part in zip(machines, parts, strict=True):
        if outcome.status and not outcome.said and part.complaint():
            raise _unreachable(host, part.complaint())
    return results(returned, outcome)


def _environment(host: Host) -> dict[str, str]:
    """Returns this process's variables that another machine needs."""
    if host.is_local():
        return {}
    names = {*mpi_launchers.exported_names(os.environ)} - {"PYTHONPATH"}
    return {name: os.environ[name] for name in names}


def _interface(machines: Sequence[Host]) -> str:
    """Returns the address of this machine at which all machines reach it."""
    others = [host for host in machines if not host.is_local()]
    if not others:
        return "127.0.0.1"
    try:
        chosen = os.environ.get("TFRING_ELASTIC_INTERFACE")
        return chosen or addresses.towards(others[0].name)
    except OSError as error:
        raise _unreachable(others[0], str(error)) from error


def _unreachable(host: Host, why: str) -> RuntimeError:
    return RuntimeError(
        f"{_CALLER}: host {host.name} cannot be reached: {why}."
    )
