"""Decides the hosts, the options and the environment of a job."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence

from tfring.launcher import (
    command_line,
    hosts as hosts_lib,
    leftovers,
    mpi_launchers,
)
from tfring.launcher.hosts import Host
from tfring.launcher.output import View
from tfring.launcher.running_job import RunningJob
from tfring.launcher.stages import Stages

# Environment variables that the ranks get unless this shell has set them.
_ENVIRONMENT = {
    # Output arrives without delay, although a rank writes into a pipe.
    "PYTHONUNBUFFERED": "1",
    # TensorFlow allocates memory in every step, at a page fault per page. With
    # huge pages, from glibc 2.35 on, there is one fault in place of 512.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    # TensorFlow's INFO lines at its start are the same on every rank.
    "TF_CPP_MIN_LOG_LEVEL": "1",
}


def prepare(
    command: Sequence[str],
    *,
    ranks: int | None,
    hosts: Sequence[Host],
    view: View,
    exports: Sequence[tuple[str, str | None]],
    settings: Mapping[str, str],
) -> RunningJob:
    """Returns a job that is ready to run.

    Args:
        command: The program and its arguments, the same on every rank.
        ranks: The number of ranks; None means one for each slot of the hosts.
        hosts: The machines in order; an empty list means this machine, or the
            batch system's.
        view: How the ranks' output is shown.
        exports: Names of environment variables that every rank shall have, each
            with its value, or None for the one here.
        settings: More environment variables for the ranks.

    Raises:
        LauncherNotFoundError: No MPI launcher fits.
        ValueError: The number of ranks or the value of a variable is missing,
            or the grace is invalid.
    """
    stages = Stages()
    launcher = find_launcher()
    environment = make_environment(exports, settings)
    job = _describe(ranks, hosts, command, environment, exports)
    environment = {**mpi_launchers.environment(launcher, job), **environment}
    line = mpi_launchers.command_line(launcher, job)
    if view.verbose:
        _say_how(launcher, job, line)
    is_open_mpi = launcher.family is mpi_launchers.Family.OPEN_MPI
    return RunningJob(
        launcher,
        line,
        environment,
        job.ranks,
        view=view,
        stages=stages,
        grace_seconds=command_line.grace_seconds(environment),
        # Removal takes time: it reads the memory maps of all processes.
        meanwhile=leftovers.remove if is_open_mpi else None,
    )


def make_environment(
    exports: Sequence[tuple[str, str | None]], settings: Mapping[str, str]
) -> dict[str, str]:
    """Returns the environment of ranks on this machine; see `prepare`.

    Raises:
        ValueError: There is no value for a variable.
    """
    environment = {**_ENVIRONMENT, **os.environ, **settings}
    for name, value in exports:
        if value is not None:
            environment[name] = value
        elif name not in environment:
            raise ValueError(
                f"-x {name}: it is not set here. Set it, or pass -x "
                f"{name}=VALUE."
            )
    return environment


def find_launcher() -> mpi_launchers.MpiLauncher:
    """Finds the MPI launcher of this build."""
    from tfring import _build_info

    return mpi_launchers.find_launcher(
        _build_info.MPI_VERSION, _build_info.MPIRUN
    )


def _describe(
    ranks: int | None,
    hosts: Sequence[Host],
    command: Sequence[str],
    environment: Mapping[str, str],
    exports: Sequence[tuple[str, str | None]],
) -> mpi_launchers.Job:
    slots = sum(host.slots for host in hosts)
    if ranks is None:
        if not hosts:
            raise ValueError("how many ranks? Pass -np N.")
        ranks = slots
    elsewhere = not all(host.is_local() for host in hosts)
    oversubscribe, cores_per_rank = False, 0
    if not hosts and hosts_lib.manages_hosts(environment):
        # Only the MPI launcher knows the hosts of the batch system.
        elsewhere = True
    else:
        package_cores = hosts_lib.cores_per_package()
        oversubscribe = ranks > (slots or sum(package_cores))
        if not (elsewhere or oversubscribe):
            cores_per_rank = hosts_lib.cores_to_bind(package_cores, ranks)
    if hosts and oversubscribe:
        print(
            f"tfringrun: {ranks} ranks on hosts with {slots} slots in all; "
            "some slots get several.",
            file=sys.stderr,
        )
    exported = mpi_launchers.exported_names(environment, exports)
    return mpi_launchers.Job(
        ranks=ranks,
        command=command,
        hosts=hosts,
        oversubscribe=oversubscribe,
        cores_per_rank=cores_per_rank,
        exported=exported if elsewhere else (),
        one_machine=not elsewhere,
    )


def _say_how(
    launcher: mpi_launchers.MpiLauncher,
    job: mpi_launchers.Job,
    command: Sequence[str],
) -> None:
    where = ", ".join(map(str, job.hosts))
    binding = (
        f"each bound to {job.cores_per_rank} cores"
        if job.cores_per_rank
        else "not bound to cores"
    )
    for line in (
        f"{launcher.family.value} {launcher.version}, {launcher.path}",
        f"{job.ranks} ranks on {where or 'this machine'}, {binding}",
        shlex.join(command),
    ):
        print(f"tfringrun: {line}", file=sys.stderr, flush=True)
