"""Elastic jobs of this machine that train, for the benchmarks of their faults.

Their workers record their steps: see elastic_training.py.
"""

import dataclasses
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from program import ROOT, HostNetwork

PATIENCE_SECONDS = 300
# The time that a spare needs to be ready after it has built its model.
SPARE_SECONDS = 5


class Step(NamedTuple):
    """A step in the worker's `starts`-th job, which has `size` ranks."""

    starts: int
    size: int
    time: float


@dataclasses.dataclass
class Worker:
    """The records of a worker."""

    host: str = ""
    pid: int = 0
    import_seconds: float = 0.0
    built: float = math.inf
    steps: list[Step] = dataclasses.field(default_factory=list)

    def take(self, line: str) -> None:
        """Takes a line of its record."""
        match line.split():
            case ["process", host, pid, started, imported]:
                self.host, self.pid = host, int(pid)
                self.import_seconds = float(imported) - float(started)
            case ["built", at]:
                self.built = float(at)
            case ["step", starts, size, at]:
                self.steps.append(Step(int(starts), int(size), float(at)))

    def trains(self, size: int) -> bool:
        """Tells if it has just done a step in a job of `size` ranks."""
        return (
            bool(self.steps)
            and self.steps[-1].size == size
            and self.steps[-1].time > time.monotonic() - 1
        )

    def waits(self) -> bool:
        """Tells if it seems to be a spare that is ready."""
        return not self.steps and self.built < time.monotonic() - SPARE_SECONDS


class Job:
    """A job over TCP that trains, until it is closed or has ended.

    Attributes:
        folder: The files of its workers and its script: records, faults and
            results.
        workers: Their records, by name.
        lost: The names of workers with a fault.
        process: Its launcher.
    """

    def __init__(
        self,
        script: Path,
        arguments: Sequence[object],
        *,
        ranks: int,
        spares: int = 0,
        network: HostNetwork | None = None,
    ) -> None:
        """Starts it.

        Args:
            script: The workers' script; its first argument is the folder.
            arguments: Its other arguments.
            ranks: The number of workers that train. One that is left trains
                alone.
            spares: The number of spares.
            network: Its hosts, with a rank each; None for this machine.
        """
        self.network = network
        self._ranks, self._spares = ranks, spares
        self._files = tempfile.TemporaryDirectory()
        self.folder = Path(self._files.name)
        for name in ("records", "faults", "results"):
            (self.folder / name).mkdir()
        # The characters of each file that have been read.
        self._read: Counter[str] = Counter()
        self.workers: dict[str, Worker] = {}
        self.lost: set[str] = set()
        start = network.popen if network else subprocess.Popen
        slots = f"localhost:{ranks + spares}"
        self.process = start(
            [
                # One host may lose many workers.
                *(sys.executable, ROOT / "tools/forgiving_tfringrun.py"),
                "--elastic",
                *("-H", network.slots(1) if network else slots),
                *("-np", str(ranks), "--min-np", "1", "--max-np", str(ranks)),
                *(("--spares", str(spares)) if spares else ()),
                *map(str, (sys.executable, script, self.folder, *arguments)),
            ],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "TF_NUM_INTRAOP_THREADS": "1",
            },
            stdin=subprocess.DEVNULL,
        )

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()
        self._files.cleanup()

    def look(self) -> None:
        """Reads the new records of the workers."""
        for path in (self.folder / "records").iterdir():
            worker = self.workers.setdefault(path.name, Worker())
            with path.open() as file:
                file.seek(self._read[path.name])
                # Its writer may be in the middle of a line.
                lines, newline, _ = file.read().rpartition("\n")
            self._read[path.name] += len(lines + newline)
            for line in lines.splitlines():
                worker.take(line)

    def training(self) -> list[str]:
        """Returns the workers that have just done a step of all ranks."""
        return sorted(
            name
            for name, worker in self.workers.items()
            if worker.trains(self._ranks) and name not in self.lost
        )

    def wait_until_whole(self, rest_seconds: float) -> None:
        """Waits for all ranks to train, and spares to wait, for a while."""
        while True:
            self.wait_for(self._is_whole)
            time.sleep(rest_seconds)
            self.look()
            if self._is_whole():
                return

    def _is_whole(self) -> bool:
        waiting = sum(worker.waits() for worker in self.workers.values())
        return len(self.training()) == self._ranks and waiting >= self._spares

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Waits until the records meet a condition.

        Raises:
            RuntimeError: The job has ended.
            TimeoutError: They do not within `PATIENCE_SECONDS`.
        """
        end = time.monotonic() + PATIENCE_SECONDS
        self.look()
        while not condition():
            if self.process.poll() is not None:
                raise RuntimeError("the job has ended.")
            if time.monotonic() > end:
                raise TimeoutError(f"the job hangs: {self.workers}")
            time.sleep(0.05)
            self.look()
