"""How supervisors are started: as a child, or by ssh on another machine."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from tfring.launcher import processes
from tfring.launcher.elastic.elastic_job import ElasticJob
from tfring.launcher.hosts import Host
from tfring.rendezvous import wire

# A supervisor has this long to connect.
CONNECT_SECONDS = 60.0

_MODULE = "tfring.launcher.elastic.supervisor"
# MPI launchers' variables for a program with ssh's arguments, which serve
# elastic jobs, too.
_AGENTS = (
    "PRTE_MCA_plm_ssh_agent",
    "OMPI_MCA_plm_rsh_agent",
    "HYDRA_LAUNCHER_EXEC",
)
_SSH = "ssh -x -o BatchMode=yes -o ConnectTimeout=10 --"


def _command(host: str) -> list[str]:
    program = [sys.executable, "-m", _MODULE]
    if Host(host, 1).is_local():
        return program
    agent = next(filter(None, map(os.environ.get, _AGENTS)), _SSH)
    words = ["exec", "env", f"PYTHONPATH={os.environ.get('PYTHONPATH', '')}"]
    directory = shlex.quote(str(Path.cwd()))
    return [
        *shlex.split(agent),
        host,
        f"cd {directory} && {shlex.join([*words, *program])}",
    ]


def _address_for(host: str, job: ElasticJob) -> str:
    """The address of this machine at which a host reaches it."""
    if job.interface:
        return job.interface
    remote = host
    if Host(host, 1).is_local():
        others = [each.name for each in job.hosts if not each.is_local()]
        if not others and not job.script:
            return "127.0.0.1"
        remote = others[0] if others else socket.gethostname()
    family, kind, _, _, address = socket.getaddrinfo(
        remote, 9, type=socket.SOCK_DGRAM
    )[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # Nothing is sent.
        return str(probe.getsockname()[0])


class Agent:
    """A supervisor's process, or its ssh's."""

    def __init__(
        self,
        host: str,
        job: ElasticJob,
        token: str,
        listen: Callable[[str], wire.Address],
    ) -> None:
        """Starts a supervisor, which must be connected at `connect_by`.

        `listen` has the rendezvous listen at an address of this machine, and
        returns where.

        Raises:
            OSError: There is no such program, or no such host.
        """
        self.connect_by = time.monotonic() + CONNECT_SECONDS
        address = _address_for(host, job)
        configuration = job.configuration(host, token, listen(address))
        if Host(host, 1).is_local():
            configuration["interface"] = address
        else:
            configuration["environment"] = {
                name: job.environment[name] for name in job.exported
            }
        # Its last line says why a host cannot be reached.
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            _command(host),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            start_new_session=True,
            preexec_fn=processes.end_with_parent,
        )
        # A long environment is not taken before ssh is connected.
        line = json.dumps(configuration).encode() + b"\n"
        self._writer = threading.Thread(
            target=self._configure, args=(line,), daemon=True
        )
        self._writer.start()

    def _configure(self, line: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def why_ended(self) -> str:
        """Returns the last line that it has written; "" while it runs."""
        if self._process.poll() is None:
            return ""
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip()
        line = said.rpartition("\n")[2].strip().rstrip(".")
        return line or "its supervisor has ended"

    def close(self) -> None:
        """Ends the connection to it, which ends it."""
        self._writer.join(timeout=1.0)
        if self._process.stdin is not None and not self._writer.is_alive():
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    def kill(self) -> None:
        """Kills it; a supervisor on another machine ends by itself."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._writer.join(timeout=1.0)
        self._errors.close()
