"""Launches of elastic jobs, and the records of workers that train."""

import contextlib
import dataclasses
import os
import random
import re
import sys
from pathlib import Path

from jobs import JOB_SECONDS, running, wait_until

WORKER = Path(__file__).parent / "elastic_worker.py"
# On a busy machine a worker may be silent for longer than the two seconds that
# a user's may.
PATIENT = {"TFRING_ELASTIC_SILENCE_SECONDS": "60"}
IMPATIENT = {"TFRING_ELASTIC_SILENCE_SECONDS": "2"}
# The arguments of workers that go on until `Elastic.let_end`.
ENDLESS = ("--steps=1000000000", "--until=ENOUGH")


class Elastic:
    """A job, its output so far, and its processes."""

    def __init__(self, start, options, arguments, env, launcher):
        # In the environment of all its processes.
        self.marker = f"TFRING_TEST_MARKER={random.getrandbits(64)}"
        name, _, value = self.marker.partition("=")
        self.process = start(
            [
                *(*launcher, "--elastic", *options),
                *(sys.executable, WORKER, *arguments),
            ],
            env={
                name: value,
                **PATIENT,
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                **env,
            },
        )
        self.output = ""
        self.directory = Path(f"/proc/{self.process.pid}/cwd").readlink()

    def read_until(self, pattern, times=1):
        while len(re.findall(pattern, self.output)) < times:
            line = self.process.stdout.readline()
            assert line, self.output
            self.output += line

    def let_end(self):
        (self.directory / "ENOUGH").touch()

    def finish(self, timeout=JOB_SECONDS):
        rest, _ = self.process.communicate(timeout=timeout)
        self.output += rest
        return self.process.returncode

    def pids(self, program):
        """Returns the processes with this word in their command line."""
        found = []
        for pid in running(self.marker):
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
                if program.encode() in line:
                    found.append(pid)
        return sorted(found)

    def workers(self):
        pids = self.pids("elastic_worker")
        return [pid for pid in pids if pid != self.process.pid]

    def check_end(self, status=0):
        """The job ends with this status, and leaves no process behind."""
        assert self.finish() == status, self.output
        self.wait_until_nothing_is_left()

    def wait_until_nothing_is_left(self):
        wait_until(lambda: not running(self.marker))


@dataclasses.dataclass
class Note:
    """A line of a worker's record: see `elastic_training.Harm`."""

    worker: str
    kind: str
    generation: int
    step: int
    time: float
    size: int


class Records:
    """The records that all workers of a job have written."""

    def __init__(self, folder):
        self._folder = folder
        self._read = {}
        self.notes = []

    def look(self):
        for path in self._folder.iterdir():
            text = path.read_text(encoding="ascii")
            # Its writer may be in the middle of a line.
            whole = text[: text.rfind("\n") + 1]
            lines = whole[self._read.get(path.name, 0) :].splitlines()
            self._read[path.name] = len(whole)
            for line in lines:
                kind, generation, step, at, size = line.split()
                self.notes.append(
                    Note(
                        path.name,
                        kind,
                        int(generation),
                        int(step),
                        float(at),
                        int(size),
                    )
                )
        return self.notes

    def generation(self):
        return max((note.generation for note in self.look()), default=0)

    def trained(self):
        """Returns who has trained in the newest generation, and its size."""
        newest = self.generation()
        of_it = [n for n in self.notes if n.generation == newest and newest]
        size = max((n.size for n in of_it), default=0)
        return {n.worker for n in of_it if n.kind == "done"}, size

    def done_again(self):
        """Returns how many steps each generation has repeated."""
        last, again = -1, {}
        begun = [note for note in self.look() if note.kind == "begun"]
        for generation in sorted({note.generation for note in begun}):
            steps = [n.step for n in begun if n.generation == generation]
            again[generation] = last + 1 - min(steps)
            last = max(*steps, last)
        return again
