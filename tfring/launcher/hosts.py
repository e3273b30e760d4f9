"""The machines of a job, and the cores of this one."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

# A larger number of ranks on a machine is taken for a typing error.
MOST_SLOTS = 1024
_NAME = re.compile(r"\w[\w.%-]*")
# Variables of MPI launchers that name a program to use in place of ssh.
_AGENTS = (
    "PRTE_MCA_plm_ssh_agent",
    "OMPI_MCA_plm_rsh_agent",
    "HYDRA_LAUNCHER_EXEC",
)
_SSH = "ssh -x -o BatchMode=yes -o ConnectTimeout=10 --"


@dataclasses.dataclass(frozen=True)
class Host:
    """A machine and how many ranks it takes."""

    name: str
    slots: int

    def __str__(self) -> str:
        return f"{self.name}:{self.slots}"

    def is_local(self) -> bool:
        """Tells whether its name is one of this machine's."""
        here = socket.gethostname()
        return self.name in {
            "localhost",
            "127.0.0.1",
            here,
            here.partition(".")[0],
        }

    def command(self, module: str, python_path: str) -> list[str]:
        """Returns the command that runs a module of tfring there.

        Another machine is reached by ssh. The module finds tfring by
        `python_path`, and its working directory is this one's.
        """
        program = [sys.executable, "-m", module]
        if self.is_local():
            return program
        agent = next(filter(None, map(os.environ.get, _AGENTS)), _SSH)
        words = ["exec", "env", f"PYTHONPATH={python_path}", *program]
        directory = shlex.quote(str(Path.cwd()))
        return [
            *shlex.split(agent),
            self.name,
            f"cd {directory} && {shlex.join(words)}",
        ]


def parse_hosts(text: str) -> list[Host]:
    """Reads `-H`: `node1:4,node2:4`; a host without a number takes one rank.

    Raises:
        ValueError: An entry has no name that a host can have, or its number is
            not an integer from 1 to `MOST_SLOTS`.
    """
    return [parse_host(entry) for entry in text.split(",")]


def read_hostfile(path: Path) -> list[Host]:
    """Reads `--hostfile`: a host per line, `node1 slots=4` or `node1:4`.

    `#` starts a comment. Open MPI's `max_slots=8` is ignored.

    Raises:
        OSError: The file cannot be read.
        ValueError: A line cannot be understood, or there is none.
    """
    hosts = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            hosts.append(_parse_line(*words))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
    if not hosts:
        raise ValueError(f"{path} names no hosts.")
    return hosts


def _parse_line(name: str, *settings: str) -> Host:
    entry = name
    for setting in settings:
        key, _, value = setting.partition("=")
        if key == "slots":
            entry += f":{value}"
        elif key not in ("max_slots", "max-slots"):
            # Refuse unknown words: the 4 in "node1 4" is meant as the number of
            # slots.
            raise ValueError(
                f"expected a line like '{name} slots=4', got {setting!r}."
            )
    return parse_host(entry)


def parse_host(entry: str) -> Host:
    """Reads one host, `node1:4`.

    Raises:
        ValueError: As for `parse_hosts`.
    """
    name, colon, slots = entry.strip().partition(":")
    if not _is_name(name):
        raise ValueError(
            f"expected host:slots, and a host's name, got {entry!r}."
        )
    if not colon:
        return Host(name, 1)
    if not slots.isdecimal() or not 1 <= int(slots) <= MOST_SLOTS:
        raise ValueError(
            f"expected host:slots with 1 to {MOST_SLOTS} slots, got {entry!r}."
        )
    return Host(name, int(slots))


def _is_name(name: str) -> bool:
    """Tells whether a host can have this name: ssh allows no dash in front."""
    try:
        name.encode("idna")
    except UnicodeError:
        return False
    return _NAME.fullmatch(name) is not None


def slots_by_name(hosts: Iterable[Host]) -> Counter[str]:
    """Adds up the slots of hosts that are listed several times."""
    slots = Counter[str]()
    for host in hosts:
        slots[host.name] += host.slots
    return slots


def manages_hosts(environment: Mapping[str, str]) -> bool:
    """Tells whether a batch system gives the MPI launcher its hosts."""
    return any(
        name in environment
        for name in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PE_HOSTFILE")
    )


def allotted(environment: Mapping[str, str]) -> list[Host]:
    """Returns the machines that a batch system has allotted to this process.

    The systems are Slurm, PBS, LSF and Grid Engine. There are no machines
    outside of a batch system.

    Raises:
        OSError: The system's list cannot be read.
        subprocess.CalledProcessError: Slurm does not give its list.
        ValueError: The list cannot be understood.
    """
    get = environment.get
    if get("SLURM_JOB_NODELIST"):
        names = subprocess.run(
            ["scontrol", "show", "hostnames"],
            env=dict(environment),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout.split()
        # "2(x3),1" are two tasks on each of three machines, and one more.
        counts = re.findall(
            r"(\d+)(?:\(x(\d+)\))?", get("SLURM_TASKS_PER_NODE", "")
        )
        slots = [n for n, times in counts for _ in range(int(times or 1))]
    elif path := get("PBS_NODEFILE"):  # a line for each slot
        found = Counter(Path(path).read_text().split())
        names, slots = [*found], [*found.values()]
    else:
        words = get("LSB_MCPU_HOSTS", "").split()
        if path := get("PE_HOSTFILE"):
            lines = Path(path).read_text().splitlines()
            words = [word for line in lines for word in line.split()[:2]]
        names, slots = words[::2], words[1::2]
    if len(names) != len(slots):
        raise ValueError(
            f"it has {len(names)} machines, and slots for {len(slots)}"
        )
    return [Host(name, int(n)) for name, n in zip(names, slots, strict=True)]


def cores_per_package() -> list[int]:
    """Counts the physical cores that this process may use, by CPU package."""
    packages = Counter(package for package, _ in _cpus_by_core())
    return list(packages.values())


def cpus_of_slot(slot: int, slots: int, threads: int = 1) -> set[int]:
    """Returns the CPUs of this machine for one of its slots, counted from 0.

    Each slot gets an equal share of the physical cores. If there are more slots
    than cores, or a rank starts more `threads` than its share has CPUs, every
    slot gets all CPUs.
    """
    cores = [cpus for _, cpus in sorted(_cpus_by_core().items())]
    begin, end = (len(cores) * number // slots for number in (slot, slot + 1))
    share = set().union(*cores[begin:end])
    is_bound = slots <= len(cores) and slot < slots and threads <= len(share)
    return share if is_bound else set().union(*cores)


def _cpus_by_core() -> dict[tuple[int, int], set[int]]:
    """Returns the CPUs that this process may use, by package and core."""
    cores: dict[tuple[int, int], set[int]] = {}
    for cpu in os.sched_getaffinity(0):
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        try:
            package = int((topology / "physical_package_id").read_text())
            core = int((topology / "core_id").read_text())
        except (OSError, ValueError):  # a sandbox may hide the topology
            package, core = 0, cpu
        cores.setdefault((package, core), set()).add(cpu)
    return cores


def cores_to_bind(package_cores: Iterable[int], ranks: int) -> int:
    """Returns how many cores to bind each rank of this machine to.

    A rank that is bound to its own cores starts as many TensorFlow threads as
    it has cores. More threads would take time from other ranks, because a
    thread that looks for work spins for 50 us. But no MPI launcher binds a rank
    across two packages, or gives one rank more cores than another. If binding
    would leave too many cores idle, the kernel's scheduler does better.

    Returns:
        The number of cores, or 0 for no binding.
    """
    package_cores = list(package_cores)
    share, idle = divmod(sum(package_cores), ranks)
    if share == 0 or (share == 1 and idle > 0):
        return 0
    fitting = sum(cores // share for cores in package_cores)
    return share if fitting >= ranks else 0
