"""What a fault costs an elastic job: seconds to the next step, and rows.

  .venv/bin/python benchmarks/elastic.py --kinds=kill,spare --faults=10
  .venv/bin/python benchmarks/elastic.py --kinds=lost_host,cut --ranks=3
  .venv/bin/python benchmarks/elastic.py --nosteps --throughput

Each kind of fault has a job of its own, which trains by `tfring.elastic.fit`
and is harmed again and again, each time when it is whole:

  kill       a worker is killed, and replaced
  spare      the same, where a spare waits to take its place
  stop       a worker is stopped
  lost_host  all processes of a host are killed at once, and it comes back
  cut        a host's link is cut, for six seconds; only then can one join

The last two take root: their hosts are network namespaces of this machine
(tools/host_network.py), with a rank each. `survivor` is the time from the fault
to the next step of another worker; `joiner`, to the first step of the one that
takes the lost one's place, less what that took from its process's start to the
end of `tfring.init`, which is mostly imports.

Let the ranks be no more than the cores, or they wait for one another.
"""

import contextlib
import dataclasses
import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from absl import app, flags

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))
from host_network import HostNetwork, missing  # noqa: E402

BETWEEN_HOSTS = ("lost_host", "cut")
CUT_SECONDS = 6
PATIENCE_SECONDS = 100
# From when a spare has joined its own job to when it has nothing to do.
SPARE_SECONDS = 5

KINDS = flags.DEFINE_list(
    "kinds", ["kill", "spare", "stop", *BETWEEN_HOSTS], "Kinds of faults."
)
RANKS = flags.DEFINE_integer("ranks", 2, "How many workers train.")
FAULTS = flags.DEFINE_integer("faults", 10, "How many of each kind.")
REST_SECONDS = flags.DEFINE_float(
    "rest_seconds", 2, "From when the job is whole to the next fault."
)
SEED = flags.DEFINE_integer("seed", 0, "Of the choice of who is harmed.")
LAYERS = flags.DEFINE_integer("layers", 10, "Of the model.")
WIDTH = flags.DEFINE_integer("width", 256, "Of its layers.")
BATCH_SIZE = flags.DEFINE_integer("batch_size", 128, "Rows of each rank.")
STEPS = flags.DEFINE_bool("steps", True, "Measure seconds to the next step.")
THROUGHPUT = flags.DEFINE_bool("throughput", False, "Measure rows per second.")
SECONDS_BETWEEN_FAULTS = flags.DEFINE_float(
    "seconds_between_faults",
    60,
    "Of a turn: undisturbed, or with a worker killed at its beginning.",
)
TURNS = flags.DEFINE_integer("turns", 1, "How many of each.")
JSON = flags.DEFINE_string("json", None, "A file for all figures.")


class Step(NamedTuple):
    """A step, and the job in which it was: the worker's n-th, and its size."""

    starts: int
    size: int
    time: float


@dataclasses.dataclass
class Worker:
    """What a worker has recorded."""

    host: str = ""
    pid: int = 0
    started: float = 0.0
    built: float = math.inf
    steps: list[Step] = dataclasses.field(default_factory=list)

    def trains(self) -> bool:
        """Tells if it has just done a step of all ranks."""
        return (
            bool(self.steps)
            and self.steps[-1].size == RANKS.value
            and self.steps[-1].time > time.monotonic() - 1
        )

    def waits(self) -> bool:
        """Tells if it is a spare that is ready, as far as can be seen."""
        return not self.steps and self.built < time.monotonic() - SPARE_SECONDS


@dataclasses.dataclass(frozen=True)
class Fault:
    """What one has cost, in seconds; a joiner was there before if a spare."""

    kind: str
    survivor: float
    joiner: float


@dataclasses.dataclass(frozen=True)
class Turn:
    """Rows per second, of all ranks together."""

    undisturbed: float
    disturbed: float

    @property
    def share(self) -> float:
        return self.disturbed / self.undisturbed


class Job:
    """A job over TCP that trains until it is closed."""

    def __init__(self, kind: str, network: HostNetwork | None) -> None:
        self.network = network
        self._spares = int(kind == "spare")
        self._files = tempfile.TemporaryDirectory()
        self._folder = Path(self._files.name)
        self._lines: dict[str, int] = {}
        self.workers: dict[str, Worker] = {}
        start = network.popen if network else subprocess.Popen
        slots = f"localhost:{RANKS.value + self._spares}"
        model = (LAYERS.value, WIDTH.value, BATCH_SIZE.value)
        self._process = start(
            [
                *(sys.executable, "-m", "tfring.run", "--elastic"),
                *("-H", network.slots(1) if network else slots),
                *("-np", str(RANKS.value), "--min-np", "1"),
                *("--max-np", str(RANKS.value)),
                *(("--spares", "1") if self._spares else ()),
                *(sys.executable, str(ROOT / "benchmarks/elastic_training.py")),
                *map(str, (self._folder, *model)),
            ],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "TF_NUM_INTRAOP_THREADS": "1",
                # One host may lose so many.
                "TFRING_ELASTIC_PROGRESS_SECONDS": "0.1",
            },
            stdin=subprocess.DEVNULL,
        )

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._files.cleanup()

    def look(self) -> None:
        """Reads what the workers have recorded since the last time."""
        for path in self._folder.iterdir():
            # Its writer may be in the middle of a line.
            lines = path.read_text().split("\n")[:-1]
            worker = self.workers.setdefault(path.name, Worker())
            for line in lines[self._lines.get(path.name, 0) :]:
                match line.split():
                    case ["process", host, pid, _, at]:
                        worker.host, worker.pid = host, int(pid)
                        worker.started = float(at)
                    case ["built", at]:
                        worker.built = float(at)
                    case ["step", starts, size, at]:
                        step = Step(int(starts), int(size), float(at))
                        worker.steps.append(step)
            self._lines[path.name] = len(lines)

    def wait_until_whole(self) -> None:
        """Waits for all ranks to train, and spares to wait, for a while."""
        while True:
            self._wait_for(self._is_whole)
            time.sleep(REST_SECONDS.value)
            self.look()
            if self._is_whole():
                return

    def _is_whole(self) -> bool:
        workers = self.workers.values()
        return (
            sum(worker.trains() for worker in workers) == RANKS.value
            and sum(worker.waits() for worker in workers) >= self._spares
        )

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE_SECONDS
        self.look()
        while not condition():
            if self._process.poll() is not None:
                raise RuntimeError("the job has ended.")
            if time.monotonic() > end:
                raise TimeoutError(f"the job hangs: {self.workers}")
            time.sleep(0.05)
            self.look()

    def suffer(self, kind: str, dice: random.Random) -> Fault:
        """Has a fault happen to a worker, and waits for what follows."""
        self.look()
        others = {
            name: worker.steps[-1].starts
            for name, worker in self.workers.items()
            if worker.trains()
        }
        name = dice.choice(sorted(others))
        del others[name]
        trained = {name for name, w in self.workers.items() if w.steps}
        at = time.monotonic()
        self._harm(kind, self.workers[name])

        def survivors() -> list[float]:
            """When each has done its first step after the new start."""
            return [
                step.time
                for other, starts in others.items()
                for step in self.workers[other].steps
                if step.starts > starts
            ]

        def joiners() -> list[Worker]:
            return [
                worker
                for name, worker in self.workers.items()
                if name not in trained and worker.steps
            ]

        self._wait_for(lambda: bool(survivors() and joiners()))
        joiner = min(joiners(), key=lambda worker: worker.steps[0].time)
        imports = joiner.built - joiner.started if joiner.started > at else 0
        return Fault(
            kind,
            min(survivors()) - at,
            joiner.steps[0].time - at - imports,
        )

    def _harm(self, kind: str, victim: Worker) -> None:
        match kind:
            case "kill" | "spare":
                os.kill(victim.pid, signal.SIGKILL)
            case "stop":
                os.kill(victim.pid, signal.SIGSTOP)
            case "lost_host":
                for pid in self.network.processes(victim.host):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            case "cut":
                self.network.cut(victim.host)
                time.sleep(CUT_SECONDS)
                self.network.mend(victim.host)

    def rate(self, begin: Callable[[], object]) -> float:
        """Returns the rows per second of a turn that begins with a call."""
        start = time.monotonic()
        begin()
        end = start + SECONDS_BETWEEN_FAULTS.value
        time.sleep(max(end - time.monotonic(), 0))
        self.look()
        steps = sum(
            start <= step.time < end
            for worker in self.workers.values()
            for step in worker.steps
        )
        return steps * BATCH_SIZE.value / SECONDS_BETWEEN_FAULTS.value


@contextlib.contextmanager
def job(kind: str) -> Iterator[Job]:
    """A job for faults of a kind, once it is whole."""
    with contextlib.ExitStack() as stack:
        network = None
        if kind in BETWEEN_HOSTS:
            if reason := missing():
                raise app.UsageError(f"there can be no hosts here: {reason}.")
            network = stack.enter_context(
                HostNetwork(RANKS.value, rate="1gbit")
            )
        made = stack.enter_context(contextlib.closing(Job(kind, network)))
        made.wait_until_whole()
        yield made


def measure_steps(kind: str, dice: random.Random) -> list[Fault]:
    faults = []
    with job(kind) as harmed:
        for number in range(FAULTS.value):
            if number:
                harmed.wait_until_whole()
            faults.append(harmed.suffer(kind, dice))
    return faults


def measure_throughput(dice: random.Random) -> list[Turn]:
    turns = []
    with job("kill") as harmed:
        for _ in range(TURNS.value):
            undisturbed = harmed.rate(lambda: None)
            disturbed = harmed.rate(lambda: harmed.suffer("kill", dice))
            turns.append(Turn(undisturbed, disturbed))
            harmed.wait_until_whole()
    return turns


def print_steps(faults: Sequence[Fault]) -> None:
    print(f"{'':10} {'':8} {'median':>8} {'least':>8} {'most':>8}")
    for kind in dict.fromkeys(fault.kind for fault in faults):
        of_kind = [fault for fault in faults if fault.kind == kind]
        for who in ("survivor", "joiner"):
            seconds = [getattr(fault, who) for fault in of_kind]
            print(
                f"{kind:10} {who:8} {statistics.median(seconds):6.2f} s "
                f"{min(seconds):6.2f} s {max(seconds):6.2f} s"
            )


def print_throughput(turns: Sequence[Turn]) -> None:
    for turn in turns:
        print(
            f"{turn.undisturbed:8.0f} rows/s undisturbed, "
            f"{turn.disturbed:8.0f} with a fault: {turn.share:.1%}"
        )


def main(arguments: Sequence[str]) -> None:
    if len(arguments) > 1:
        raise app.UsageError(f"expected flags only, got {arguments[1:]}.")
    dice = random.Random(SEED.value)
    faults, turns = [], []
    if STEPS.value:
        for kind in KINDS.value:
            faults += measure_steps(kind, dice)
        print_steps(faults)
    if THROUGHPUT.value:
        turns = measure_throughput(dice)
        print_throughput(turns)
    if JSON.value:
        content = {
            "ranks": RANKS.value,
            "layers": LAYERS.value,
            "width": WIDTH.value,
            "batch_size": BATCH_SIZE.value,
            "seconds_between_faults": SECONDS_BETWEEN_FAULTS.value,
            "faults": [dataclasses.asdict(fault) for fault in faults],
            "turns": [dataclasses.asdict(turn) for turn in turns],
        }
        Path(JSON.value).write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    app.run(main)
