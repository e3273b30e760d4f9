"""The hosts that a user's script finds: `host:slots` lines, each second."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from typing import IO

from tfring.launcher import hosts as hosts_lib, processes

# Horovod's interval.
INTERVAL_SECONDS = 1.0
# A script that takes longer is killed, and started again.
LONGEST_SECONDS = 60.0


class Discovery:
    """Runs the script now and then, and does not wait for it."""

    def __init__(self, script: str) -> None:
        """Takes the path of a program without arguments."""
        self._script = script
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes]  # while it runs
        # When it is killed, if it runs, or else starts.
        self._due = 0.0
        # The last error.
        self.error = ""

    def poll(self, now: float) -> dict[str, int] | None:
        """Returns the slots by host, if they have just been found.

        If the script fails, `error` says how, and the hosts stay.
        """
        if self._process is None:
            if now >= self._due:
                self._start(now)
            return None
        status = self._process.poll()
        if status is None and now < self._due:
            return None
        self._output.seek(0)
        text = self._output.read().decode(errors="replace")
        self.close()
        self._due = now + INTERVAL_SECONDS
        self.error = ""
        if status is None:
            self.error = f"it did not end in {LONGEST_SECONDS:g} s"
        elif status != 0:
            self.error = f"it ended with status {status}"
        else:
            try:
                return parse(text)
            except ValueError as error:
                self.error = str(error).removesuffix(".")
        return None

    def close(self) -> None:
        """Kills the script, if it runs."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
            self._output.close()

    def _start(self, now: float) -> None:
        self._due = now + LONGEST_SECONDS
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                [self._script],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                start_new_session=True,
                preexec_fn=processes.end_with_parent,
            )
        except OSError as error:
            self._output.close()
            self.error = str(error)
            self._due = now + INTERVAL_SECONDS


def parse(text: str) -> dict[str, int]:
    """Reads a script's output.

    Raises:
        ValueError: A line is not as in `node1:4`, or a host is there twice.
    """
    slots: dict[str, int] = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        (host,) = hosts_lib.parse_hosts(line.strip().replace(",", "?"))
        if host.name in slots:
            raise ValueError(f"host {host.name} is there twice.")
        slots[host.name] = host.slots
    return slots
