"""Runs jobs with a limit of time, for validate.py."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
# The limit of a job; TensorFlow may compile much in one.
_JOB_SECONDS = 900.0
_END_SECONDS = 15.0
_PYTHON_PATH = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
_MPS = "nvidia-cuda-mps-control"


class Jobs:
    """Runs jobs, each within the time that is left, and keeps their output."""

    def __init__(self, seconds: float, log: Path | None) -> None:
        self._end = time.monotonic() + seconds
        self._log = log

    def seconds_left(self) -> float:
        """Returns how long a job may take."""
        return min(_JOB_SECONDS, self._end - time.monotonic())

    def run(
        self, command: Sequence[str], environment: dict[str, str]
    ) -> tuple[str, str]:
        """Runs a job; returns "", or how it failed, and what it printed."""
        seconds = self.seconds_left()
        job = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **environment, "PYTHONPATH": _PYTHON_PATH},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = job.communicate(timeout=max(seconds, 1))
            problem = f"exit status {job.returncode}" * (job.returncode != 0)
        except subprocess.TimeoutExpired:
            output = _end(job)
            problem = f"it took more than {seconds:.0f} s"
        if self._log:
            with self._log.open("a") as file:
                print(*command, output, problem, sep="\n", file=file)
        return problem, output


def _end(job: subprocess.Popen[str]) -> str:
    """Ends a job with all its processes; returns what it has printed."""
    for number in signal.SIGTERM, signal.SIGKILL:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return job.communicate(timeout=_END_SECONDS)[0]
    return ""


@contextlib.contextmanager
def multi_process_service() -> Iterator[None]:
    """Lets ranks that share a GPU run at once, by a server of this job's own.

    Raises:
      FileNotFoundError: the driver has not brought the program for it.
    """
    with tempfile.TemporaryDirectory() as directory:
        os.environ["CUDA_MPS_PIPE_DIRECTORY"] = directory
        os.environ["CUDA_MPS_LOG_DIRECTORY"] = directory
        subprocess.run([_MPS, "-d"], check=True, timeout=_END_SECONDS)
        try:
            yield
        finally:
            subprocess.run(
                [_MPS], input=b"quit\n", check=False, timeout=4 * _END_SECONDS
            )
