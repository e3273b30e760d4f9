"""The command `tfringrun`: from its options to its exit status."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence

from tfring import horovod
from tfring.horovod import variables
from tfring.launcher import (
    command_line,
    hosts as hosts_lib,
    mpi_launchers,
    surroundings,
)
from tfring.launcher.output import View
from tfring.launcher.prepare import make_environment, prepare


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs `tfringrun`; returns its exit status."""
    return run(command_line.parser().parse_args(arguments))


def run(options: argparse.Namespace) -> int:
    """Runs the job that the options describe; returns the exit status."""
    try:
        surroundings.complete()
        if options.check_build:
            return _check_build(options.horovod)
        return _run(options)
    except (OSError, ValueError) as error:
        print(f"tfringrun: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # Before the job runs.
        return 130


def _check_build(for_horovod: bool) -> int:
    command = [sys.executable, "-m", "tfring.launcher.check_build"]
    if for_horovod:
        command.append("--horovod")
    # TensorFlow's messages on stderr are useful only if it fails.
    report = subprocess.run(command, stderr=subprocess.PIPE)
    if report.returncode != 0:
        sys.stderr.buffer.write(report.stderr)
    return report.returncode if report.returncode >= 0 else 1


def _run(options: argparse.Namespace) -> int:
    hosts = options.hosts or []
    if options.hostfile is not None:
        hosts = hosts_lib.read_hostfile(options.hostfile)
    view = View(
        terminals=frozenset(filter(os.isatty, (1, 2))),
        verbose=options.verbose,
    )
    command_line.check_elastic(options)
    if options.elastic:
        return _run_elastic(options, hosts, view)
    job = prepare(
        _command(options),
        ranks=options.ranks,
        hosts=hosts,
        view=view,
        exports=options.exports,
        settings=_settings(options),
    )
    status = job.run()
    if line := job.failure():
        with contextlib.suppress(OSError):  # stderr may be closed
            print(f"tfringrun: {line}", file=sys.stderr, flush=True)
    return status


def _run_elastic(
    options: argparse.Namespace, hosts: Sequence[hosts_lib.Host], view: View
) -> int:
    from tfring.launcher.elastic import elastic_job, tasks
    from tfring.launcher.elastic.driver import Driver

    environment = make_environment(options.exports, _settings(options))
    job = elastic_job.make(
        _command(options),
        ranks=options.ranks,
        minimum=options.min_ranks or 1,
        maximum=options.max_ranks,
        spares=options.spares or 0,
        hosts=hosts,
        script=options.host_discovery_script or "",
        environment=environment,
        exported=mpi_launchers.exported_names(environment, options.exports),
        slots_per_task=(options.slots_per_host or 1)
        if options.rendezvous
        else None,
    )
    if options.rendezvous:
        return tasks.run(job, view, options.rendezvous)
    return Driver(job, view).run()


def _settings(options: argparse.Namespace) -> dict[str, str]:
    settings = command_line.settings(options)
    if not options.horovod:
        return settings
    if unread := variables.unread(os.environ):
        print(f"tfringrun: {unread}.", file=sys.stderr)
    return {**horovod.settings(), **settings}


def _command(options: argparse.Namespace) -> list[str]:
    command: list[str] = options.command
    if command[:1] == ["--"]:
        command = command[1:]
    if options.self_test:
        if command:
            raise ValueError(
                f"--self-test takes no command, got {shlex.join(command)!r}."
            )
        if options.elastic:
            raise ValueError(
                "--self-test tests MPI and its links; leave --elastic out."
            )
        return [sys.executable, "-m", "tfring.launcher.self_test"]
    if not command:
        raise ValueError(
            "what should the ranks run? As in: tfringrun -np 4 python train.py"
        )
    if ":" in command and not options.elastic:
        raise ValueError(
            "mpirun takes the argument ':' for the end of a program's. Pass it "
            "in a script of your own."
        )
    if shutil.which(command[0]) is None:
        hint = ""
        if command[0].endswith(".py"):
            hint = f" Did you mean: python {command[0]}?"
        elif command[0] == "python":
            hint = f" This one is {sys.executable}."
        raise ValueError(f"there is no command {command[0]!r} here.{hint}")
    return command


if __name__ == "__main__":
    sys.exit(main())
