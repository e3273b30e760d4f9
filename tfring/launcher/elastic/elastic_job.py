"""An elastic job's description, from options and settings."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from tfring._core import settings
from tfring.launcher.elastic.workers import Limits
from tfring.launcher.hosts import MOST_SLOTS, Host
from tfring.rendezvous import wire


@dataclasses.dataclass(frozen=True)
class ElasticJob:
    """A program, and the numbers and places of its workers."""

    command: Sequence[str]  # the program and its arguments
    hosts: Sequence[Host]  # none if the script finds them
    limits: Limits
    script: str  # prints the hosts; "" for none
    environment: Mapping[str, str]  # the workers' on this machine
    exported: Sequence[str]  # the names of those that other machines need
    # A worker that sends nothing for this long is lost.
    silence_seconds: float
    # The address of this machine to listen at; "" to choose one that the hosts
    # reach.
    interface: str
    # Print how and why the job ends. False for callers that report this
    # themselves.
    shows_end: bool = True

    def configuration(
        self, host: str, token: str, address: wire.Address
    ) -> dict[str, Any]:
        """Returns what the supervisor of a host is told; see `Supervisor`."""
        return {
            "token": token,
            "address": address,
            "host": host,
            "command": list(self.command),
            "silence_seconds": self.silence_seconds,
            "environment": dict(self.environment),
        }


def make(
    command: Sequence[str],
    *,
    ranks: int | None,
    minimum: int,
    maximum: int | None,
    spares: int,
    hosts: Sequence[Host],
    script: str,
    environment: Mapping[str, str],
    exported: Sequence[str],
    slots_per_task: int | None = None,
) -> ElasticJob:
    """Returns the job that `tfringrun --elastic` was told to run.

    `ranks` is `-np`, the number of workers that the first generation waits for.
    By default there may be a worker for each slot. `slots_per_task` is how many
    workers this machine takes if each machine has a task that joins by itself,
    and otherwise None.

    Raises:
        ValueError: The numbers contradict one another, or a setting is invalid.
    """
    may_grow = bool(script) or slots_per_task is not None
    _check_counts(ranks, minimum, maximum)
    if slots_per_task is not None:
        if script or hosts:
            raise ValueError(
                "--rendezvous: each machine of the job has a task that joins "
                "by itself. Leave out -H, --hostfile and "
                "--host-discovery-script."
            )
        hosts = [_this_machine(slots_per_task)]
    elif script:
        _check_script(script, hosts)
    elif not hosts:
        slots = maximum or ranks
        if slots is None:
            raise ValueError("how many workers? Pass --max-np N or -np N.")
        hosts = [_this_machine(slots + spares)]
    if not may_grow:
        _check_slots(hosts, ranks, minimum, spares)
    return ElasticJob(
        command=command,
        hosts=hosts,
        limits=Limits(
            minimum=minimum,
            maximum=maximum,
            first=ranks,
            spares=spares,
            replacement_seconds=_replacement_seconds(environment),
            ready_seconds=_ready_seconds(environment),
            may_grow=may_grow,
        ),
        script=script,
        environment=environment,
        exported=exported,
        silence_seconds=silence_seconds(environment),
        interface=environment.get("TFRING_ELASTIC_INTERFACE", ""),
    )


def _check_counts(ranks: int | None, minimum: int, maximum: int | None) -> None:
    if maximum is not None and maximum < minimum:
        raise ValueError(f"--max-np {maximum} is less than {minimum} workers.")
    if ranks is not None and not (minimum <= ranks <= (maximum or math.inf)):
        raise ValueError(
            f"-np {ranks} is not between --min-np {minimum} and --max-np "
            f"{maximum}."
        )


def _check_script(script: str, hosts: Sequence[Host]) -> None:
    if hosts:
        raise ValueError(
            "--host-discovery-script and -H or --hostfile: pass one of them."
        )
    if shutil.which(script) is None:
        raise ValueError(
            f"--host-discovery-script {script}: there is no such program. Is "
            "it executable, and its path right, as in ./hosts.sh?"
        )


def _check_slots(
    hosts: Sequence[Host], ranks: int | None, minimum: int, spares: int
) -> None:
    slots = sum(host.slots for host in hosts)
    if slots < minimum:
        raise ValueError(
            f"the hosts have {slots} slots in all, and the job needs at least "
            f"{minimum} workers."
        )
    if ranks is not None and slots < ranks + spares:
        raise ValueError(
            f"the hosts have {slots} slots in all, for -np {ranks} workers and "
            f"{spares} spare ones."
        )


def placed(
    ranks: int,
    minimum: int | None,
    maximum: int | None,
    timeout_seconds: float,
    *,
    interface: str,
) -> ElasticJob:
    """Returns a job whose workers are started where an engine has placed them.

    The arguments are those of `launcher_process.Rendezvous`.

    Raises:
        ValueError: A setting is invalid.
    """
    return ElasticJob(
        command=(),
        hosts=(),
        limits=Limits(
            minimum=ranks if minimum is None else minimum,
            maximum=maximum or ranks,
            first=ranks,
            replacement_seconds=timeout_seconds,
            ready_seconds=_ready_seconds(os.environ),
            may_grow=True,
            replaces=minimum is not None,
            # 0 means that there is no limit.
            init_seconds=settings.seconds("TFRING_INIT_TIMEOUT_SECONDS", 600.0)
            or math.inf,
        ),
        script="",
        environment=os.environ,
        exported=(),
        silence_seconds=silence_seconds(os.environ),
        interface=interface,
        shows_end=False,
    )


def silence_seconds(environment: Mapping[str, str]) -> float:
    """Returns after how many silent seconds a worker counts as lost.

    Raises:
        ValueError: The setting is invalid.
    """
    return _seconds("TFRING_ELASTIC_SILENCE_SECONDS", 2.0, environment)


def _replacement_seconds(environment: Mapping[str, str]) -> float:
    return _seconds(
        "TFRING_ELASTIC_TIMEOUT_SECONDS",
        Limits.replacement_seconds,
        environment,
    )


def _ready_seconds(environment: Mapping[str, str]) -> float:
    return _seconds(
        "TFRING_ELASTIC_STOP_SECONDS", Limits.ready_seconds, environment
    )


def _seconds(
    variable: str, default: float, environment: Mapping[str, str]
) -> float:
    return settings.seconds(
        variable, default, takes_zero=False, environment=environment
    )


def _this_machine(slots: int) -> Host:
    if slots > MOST_SLOTS:
        raise ValueError(
            f"one machine takes at most {MOST_SLOTS} workers, spare ones "
            f"included, got {slots}. Ask for fewer, or name more machines by "
            "-H."
        )
    return Host("localhost", slots)
