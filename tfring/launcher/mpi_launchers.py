"""Finds the MPI launcher of this build and speaks its options."""

from __future__ import annotations

import dataclasses
import enum
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tfring.launcher import wrapper
from tfring.launcher.hosts import Host
from tfring.launcher.output import Marks
from tfring.launcher.surroundings import SHARED_MEMORY


class Family(enum.Enum):
    """Launchers that understand the same options."""

    OPEN_MPI = "Open MPI"
    HYDRA = "MPICH"  # Intel MPI and MVAPICH, too


# For each signal to the ranks, the signal that carries it: one that the MPI
# launcher passes on to all hosts. Open MPI passes on neither SIGTERM nor
# SIGINT, which end the job. Hydra passes on INT, QUIT, TERM, USR1 and ALRM
# only, and a second INT ends the job. SIGTERM itself is kept for ending the
# job, see `rank_wrapper`.
_CARRIERS: dict[Family, dict[int, int]] = {
    Family.OPEN_MPI: {
        signal.SIGUSR1: signal.SIGUSR1,
        signal.SIGUSR2: signal.SIGUSR2,
        signal.SIGTERM: signal.SIGALRM,
        signal.SIGINT: signal.SIGABRT,
    },
    Family.HYDRA: {
        signal.SIGUSR1: signal.SIGUSR1,
        signal.SIGUSR2: signal.SIGALRM,
        signal.SIGTERM: signal.SIGINT,
        signal.SIGINT: signal.SIGQUIT,
    },
}


# How long `mpirun --version` may take.
_ANSWER_SECONDS = 20.0


class LauncherNotFoundError(OSError):
    """There is no MPI launcher for the MPI that tfring was built with."""


@dataclasses.dataclass(frozen=True)
class MpiLauncher:
    """An `mpirun`, with the family and the version that it reports."""

    path: Path
    family: Family
    version: str

    @property
    def major(self) -> int:
        return int(re.split(r"\D", self.version)[0])  # also of "6rc1"

    @property
    def carriers(self) -> Mapping[int, int]:
        """For each signal to the ranks, the signal to send to this launcher."""
        return _CARRIERS[self.family]


@dataclasses.dataclass(frozen=True)
class Job:
    """A program, and the machines and options to run it with.

    Attributes:
        ranks: The number of processes.
        command: The program and its arguments, the same on every rank.
        hosts: The machines in order; with none the MPI launcher chooses.
        oversubscribe: There may be more ranks than slots or cores.
        cores_per_rank: How many cores to bind a rank to, or 0.
        exported: The names of the environment variables that ranks on other
            machines need. Ranks on this machine inherit all variables.
        one_machine: All ranks run here.
    """

    ranks: int
    command: Sequence[str]
    hosts: Sequence[Host] = ()
    oversubscribe: bool = False
    cores_per_rank: int = 0
    exported: Sequence[str] = ()
    one_machine: bool = False


def find_launcher(mpi_version: str, built_with: str = "") -> MpiLauncher:
    """Finds the launcher that belongs to the MPI that tfring was built with.

    The launcher beside this interpreter comes first, because an MPI wheel moves
    with its environment; then the build's path, then PATH. A launcher of
    another kind of MPI is not taken: it would start N jobs of one rank each.

    Args:
        mpi_version: The build's MPI, like "Open MPI 5.0.11".
        built_with: The build's `mpirun`, or "".

    Raises:
        LauncherNotFoundError: There is no such launcher; the message says which
            were found.
    """
    family = (
        Family.OPEN_MPI if mpi_version.startswith("Open MPI") else Family.HYDRA
    )
    seen = []
    fitting = []
    for path in _candidates(built_with):
        try:
            launcher = identify(path)
        except LauncherNotFoundError as error:
            seen.append(f"{path} ({error})")
            continue
        seen.append(f"{path} ({launcher.family.value} {launcher.version})")
        if launcher.family is family:
            if launcher.version == mpi_version.rpartition(" ")[2]:
                return launcher
            fitting.append(launcher)
    if fitting:
        return fitting[0]
    raise LauncherNotFoundError(
        f"tfring was built with {mpi_version}, but no mpirun of it works here. "
        f"Found: {', '.join(seen) or 'none'}. Put its mpirun on PATH, or "
        "install tfring again with the MPI that is here."
    )


def _candidates(built_with: str) -> Iterable[Path]:
    names = ("mpirun", "mpiexec", "mpirun.openmpi", "mpiexec.hydra")
    beside_interpreter = Path(sys.executable).parent
    paths = [str(beside_interpreter / "mpirun"), built_with]
    paths += [shutil.which(name) or "" for name in names]
    unique = dict.fromkeys(path for path in paths if path)
    return (Path(path) for path in unique if os.access(path, os.X_OK))


def identify(path: Path) -> MpiLauncher:
    """Asks a launcher for its family and version.

    Raises:
        LauncherNotFoundError: The launcher is of an unknown kind, or fails; the
            message has its answer.
    """
    try:
        answer = subprocess.run(
            [path, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except OSError as error:
        raise LauncherNotFoundError(error.strerror) from None
    except subprocess.TimeoutExpired:
        raise LauncherNotFoundError(
            f"no answer in {_ANSWER_SECONDS:g} s"
        ) from None
    said = answer.stdout
    if found := re.search(r"\((?:Open MPI|OpenRTE)\) (\d[\w.]*)", said):
        return MpiLauncher(path, Family.OPEN_MPI, found[1])
    if found := re.search(
        r"(?:HYDRA|Intel\(R\) MPI).*?Version:?\s+(\d[\w.]*)", said, re.DOTALL
    ):
        return MpiLauncher(path, Family.HYDRA, found[1])
    # Open MPI puts rulers around its message.
    words = re.findall(r"^.*\w.*$", answer.stderr + said, re.MULTILINE)
    first = f"says: {words[0].strip()}" if words else "says nothing"
    raise LauncherNotFoundError(f"exit status {answer.returncode}, {first}")


def command_line(launcher: MpiLauncher, job: Job) -> list[str]:
    """Returns the whole command line that starts `job`."""
    if launcher.family is Family.OPEN_MPI:
        options = _open_mpi_options(launcher, job)
    else:
        options = _hydra_options(job)
    meanings = {sent: meant for meant, sent in launcher.carriers.items()}
    command = [*wrapper.command_line(meanings), *job.command]
    return [str(launcher.path), "-np", str(job.ranks), *options, *command]


# Shared memory that Open MPI needs per rank, with a margin: a full /dev/shm
# fails the job.
_SHARED_BYTES_PER_RANK = 24 << 20


def environment(launcher: MpiLauncher, job: Job) -> dict[str, str]:
    """Returns default values of variables for the ranks of this machine.

    The ranks of one machine communicate through its memory. Without these
    variables each rank would listen for TCP from everywhere, and Open MPI 5
    would look for fabrics for a second.
    """
    if not job.one_machine:
        return {}
    if launcher.family is Family.HYDRA:
        # MPICH is built with UCX or with libfabric.
        return {"UCX_NET_DEVICES": "lo", "FI_TCP_IFACE": "lo"}
    needed = job.ranks * _SHARED_BYTES_PER_RANK
    return {"OMPI_MCA_btl": "^tcp,ofi" if _has_memory(needed) else "^ofi"}


def _has_memory(needed_bytes: int) -> bool:
    """Tells whether /dev/shm has this much room; without it ranks need TCP."""
    try:
        return shutil.disk_usage(SHARED_MEMORY).free >= needed_bytes
    except OSError:
        return False


def _open_mpi_options(launcher: MpiLauncher, job: Job) -> list[str]:
    options = []
    if os.geteuid() == 0:
        options.append("--allow-run-as-root")
    if job.hosts:
        options += ["-H", ",".join(map(str, job.hosts))]
    # By default Open MPI would bind each of two ranks to a single core.
    mapping = "slot"
    if job.cores_per_rank:
        mapping += f":PE={job.cores_per_rank}"
    if job.oversubscribe:
        mapping += ":OVERSUBSCRIBE"
    binding = "core" if job.cores_per_rank else "none"
    options += ["--map-by", mapping, "--bind-to", binding]
    # Open MPI 5 would not pass the end of its input on to rank 0.
    options += ["--stdin", "none"]
    if launcher.major >= 5:
        # Without `raw` Open MPI holds a line back until its end: a progress bar
        # would not move.
        options += ["--output", "tag:raw"]
    else:
        options += ["--tag-output"]
    for name in job.exported:
        options += ["-x", name]
    return options


def _hydra_options(job: Job) -> list[str]:
    # Hydra forwards the whole environment, and does not limit the ranks per
    # core.
    options = ["-prepend-pattern", "\x1e%r\x1f"]
    if job.hosts:
        options += ["-hosts", ",".join(map(str, job.hosts))]
    cores = job.cores_per_rank
    return [*options, "-bind-to", f"core:{cores}" if cores else "none"]


def marks(launcher: MpiLauncher) -> Marks:
    """Returns the marks of the ranks' output that `command_line` asks for."""
    mark, unfinished = rb"\x1e(?P<rank>\d+)\x1f", rb"\x1e[^\x1f]*\x1f?"
    if launcher.family is Family.OPEN_MPI:
        mark = rb"\[\d+,(?P<rank>\d+)\]<std(?:out|err|diag)>:"
        unfinished += rb"|\[[\d,]*(?:\][<a-z>]*)?"
        if launcher.major >= 5:
            # Open MPI puts rulers of 60 or 74 dashes around its own messages.
            mark += rb" |(?<!-)-{60}(?:-{14})?\n"
            unfinished += rb":?|-+"
    return Marks(
        pattern=re.compile(mark + rb"|" + wrapper.REPORT_PATTERN),
        unfinished=re.compile(rb"(?:" + unfinished + rb")\Z"),
        every_line=launcher.family is Family.HYDRA or launcher.major < 5,
    )


# Variables that describe this machine or this login, not the job.
_NOT_EXPORTED = re.compile(
    r"BASH_FUNC_.*|_|OLDPWD|PWD|SHLVL|HOSTNAME|SSH_.*|XDG_.*|DBUS_.*"
    r"|DISPLAY|WINDOWID|TERM|TERM_.*|LS_COLORS|MAIL|HOME|USER|LOGNAME|SHELL"
    r"|TMPDIR|INVOCATION_ID|JOURNAL_STREAM"
    # Set by an MPI launcher or a batch system for this process alone.
    r"|(?:PMIX?|PRTE|ORTE|OMPI_COMM|OPAL|HYDI?)_.*|SLURM_.*"
)


def exported_names(
    environment: Iterable[str], exports: Sequence[tuple[str, str | None]] = ()
) -> list[str]:
    """Returns the names of variables to copy to ranks on other machines.

    Those of `exports`, the options `-x`, are copied in any case.
    """
    return sorted(
        {name for name, _ in exports}.union(
            name
            for name in environment
            if re.fullmatch(r"[A-Za-z_]\w*", name)
            and not _NOT_EXPORTED.fullmatch(name)
        )
    )
