"""Kills jobs at random, and starts them again with other ranks.

    python tests/jobs/checkpoint_kills.py --kills 200 --seed 0

It is run by hand, and takes about ten seconds for a kill. Each training is
killed again and again until it ends: the whole job, its launcher or one rank,
at a random time, while checkpoints are written all the time. Some trainings
have the same number of ranks at each start. Their weights must be those of a
training that nobody has killed; or, if the order of rows has no seed, count
each row once an epoch. The others have 1 to 3 ranks, train by `fit` or
`tfring.elastic.fit`, elastic or not, and count each row once an epoch, too.
Each start must go on with the step of the newest checkpoint that is whole.
"""

import argparse
import collections
import contextlib
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from checkpoint_training import BATCH, EPOCHS, ROWS
from jobs import LEAN, TFRINGRUN, running

from tfring._checkpoint.folder import Folder

PROGRAM = Path(__file__).with_name("checkpoint_training.py")
# A job that prints nothing for this long hangs.
SILENCE_SECONDS = 120
MOST_KILLS_OF_A_TRAINING = 8
SIZES = (1, 2, 3)
KINDS = ("rows", "bits", "shared", "arrays", "order")


class Job:
    """A job in a folder, and what it has printed."""

    def __init__(self, folder, kind, ranks, *, elastic=False):
        folder.mkdir(exist_ok=True)
        self._marker = f"TFRING_KILLED_JOB={folder}/{random.getrandbits(64)}"
        self._path = folder / "output"
        options = ["-np", ranks]
        if elastic:
            options += ["--elastic", "--min-np", 1, "--max-np", ranks]
        self._began = time.time()
        name, _, value = self._marker.partition("=")
        with self._path.open("w") as output:
            self.process = subprocess.Popen(
                [*TFRINGRUN, *map(str, options), sys.executable, PROGRAM, kind],
                env={
                    **os.environ,
                    **LEAN,
                    name: value,
                    "TF_CPP_MIN_LOG_LEVEL": "2",
                    "TF_NUM_INTRAOP_THREADS": "1",
                },
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self):
        return self._path.read_text(errors="replace")

    def results(self):
        lines = re.findall(r"result (.*)", self.output)
        return [json.loads(each) for each in lines]

    def first_step(self):
        """Returns the first step, and after how many seconds it began."""
        self.wait_until(lambda: "step" in self.output or self.has_ended())
        found = re.search(r"step (\d+) at ([\d.]+)\n", self.output)
        if found is None:
            return None
        return int(found[1]), float(found[2]) - self._began

    def wait_until(self, condition):
        size, since = 0, time.monotonic()
        while not condition():
            now = self._path.stat().st_size
            if now != size:
                size, since = now, time.monotonic()
            assert time.monotonic() < since + SILENCE_SECONDS, self.output
            time.sleep(0.02)

    def wait(self, seconds):
        end = time.monotonic() + seconds
        self.wait_until(lambda: time.monotonic() >= end or self.has_ended())

    def has_ended(self):
        return self.process.poll() is not None

    def end(self):
        """Waits until nothing of it is left."""
        self.process.wait()
        self.wait_until(lambda: not running(self._marker))

    def kill(self, what, chance):
        pids = running(self._marker)
        if what == "launcher":
            pids = [self.process.pid]
        elif what == "one rank":
            pids = [chance.choice(self._ranks() or pids)]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _ranks(self):
        found = []
        for pid in running(self._marker):
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if line[1:2] == [os.fsencode(PROGRAM)]:
                    found.append(pid)
        return found


class Kills:
    """Counts kills, and times what comes after them."""

    def __init__(self, chance):
        self._chance = chance
        self.counts = collections.Counter()
        self.restart_seconds = []

    def of_training(self, folder, kind, size, most):
        """Trains to the end, and kills it meanwhile; returns the last job."""
        end = self.counts.total() + most
        while True:
            ranks, elastic = size, False
            if kind in ("rows", "shared", "arrays"):
                ranks = self._chance.choice(SIZES)
            if kind == "rows":
                elastic = self._chance.random() < 0.5
            job = self._start(folder, kind, ranks, elastic)
            kills = self.counts.total()
            if kills < end:
                job.wait(self._chance.expovariate(1.0))
                if not job.has_ended():
                    self._kill(job, elastic and ranks > 1)
            job.end()
            if job.process.returncode == 0:
                return job
            assert self.counts.total() > kills, job.output

    def _start(self, folder, kind, ranks, elastic):
        found = Folder(folder / "checkpoints")
        whole = [n for n in found.numbers() if found.problem(n) is None]
        newest = found.manifest(whole[0])["step"] if whole else 0
        job = Job(folder, kind, ranks, elastic=elastic)
        first = job.first_step()
        if first is not None:  # The training was not at its end.
            step, seconds = first
            assert step == newest, (step, newest, job.output)
            if whole:
                self.restart_seconds.append(seconds)
        return job

    def _kill(self, job, goes_on):
        what = self._chance.choice(["whole job", "launcher", "one rank"])
        job.kill(what, self._chance)
        self.counts[what] += 1
        if what == "one rank" and goes_on:
            job.wait(self._chance.uniform(0, 3))
            if not job.has_ended():
                job.kill("whole job", self._chance)
                self.counts["whole job after one rank"] += 1

    def describe(self):
        times = self.restart_seconds or [0]
        return (
            f"{self.counts.total()} kills have passed: {dict(self.counts)}. A "
            f"restart takes {statistics.median(times):.1f} s, {min(times):.1f} "
            f"to {max(times):.1f}"
        )


def check_rows(job):
    for counts in job.results():
        assert max(counts) == EPOCHS, counts
        # Too few for a step of all ranks are left out at the end of an epoch.
        assert sum(counts) > EPOCHS * (ROWS - max(SIZES) * BATCH), counts


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    ends_at = time.monotonic() + 60 * options.minutes
    work = Path(tempfile.mkdtemp(prefix="tfring-kills-"))
    whole = {}
    for size in SIZES if "bits" in options.kinds else ():
        job = Job(work / f"whole-{size}", "bits", size)
        job.end()
        whole[size] = sorted(job.results())
    kills, trainings = Kills(chance), 0
    while kills.counts.total() < options.kills and time.monotonic() < ends_at:
        kind = options.kinds[trainings % len(options.kinds)]
        size = chance.choice(SIZES)
        folder = work / f"training-{trainings}"
        job = kills.of_training(folder, kind, size, MOST_KILLS_OF_A_TRAINING)
        if kind == "order":
            assert all(set(each) == {EPOCHS} for each in job.results())
        elif kind != "bits":
            check_rows(job)
        else:
            # Each rank has moving statistics of its own.
            assert sorted(job.results()) == whole[size], job.output
        trainings += 1
        shutil.rmtree(folder)
        print(
            f"{trainings} trainings, of {kind}, {kills.describe()}.", flush=True
        )
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
