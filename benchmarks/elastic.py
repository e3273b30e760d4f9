"""Measures faults' cost to an elastic job: seconds to the next step, and rows.

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
takes the lost one's place, less `imports`: what its process took from its start
until its script had imported Keras and tfring. A spare has done so before.

Let the ranks be no more than the cores, or they wait for one another.
"""

import contextlib
import dataclasses
import json
import os
import random
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from absl import app, flags
from elastic_jobs import HostNetwork, Job, Worker, missing

SCRIPT = Path(__file__).with_name("elastic_training.py")
BETWEEN_HOSTS = ("lost_host", "cut")
CUT_SECONDS = 6

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


@dataclasses.dataclass(frozen=True)
class Fault:
    """The cost of a fault, in seconds; see above."""

    kind: str
    survivor: float
    joiner: float
    imports: float


@dataclasses.dataclass(frozen=True)
class Turn:
    """Rows per second, of all ranks together."""

    undisturbed: float
    disturbed: float

    @property
    def share(self) -> float:
        return self.disturbed / self.undisturbed


class HarmedJob(Job):
    """A job without end, with faults."""

    def __init__(self, kind: str, network: HostNetwork | None) -> None:
        super().__init__(
            SCRIPT,
            (LAYERS.value, WIDTH.value, BATCH_SIZE.value),
            ranks=RANKS.value,
            spares=int(kind == "spare"),
            network=network,
        )

    def suffer(self, kind: str, dice: random.Random) -> Fault:
        """Gives a worker a fault, and waits until the job is whole again."""
        self.wait_until_whole(REST_SECONDS.value)
        others = {
            name: self.workers[name].steps[-1].starts
            for name in self.training()
        }
        name = dice.choice(sorted(others))
        del others[name]
        trained = {name for name, w in self.workers.items() if w.steps}
        waited = {name for name, w in self.workers.items() if w.waits()}
        at = time.monotonic()
        self.lost.add(name)
        self._harm(kind, self.workers[name])

        def survivors() -> list[float]:
            """When each has done its first step after the new start."""
            return [
                step.time
                for other, starts in others.items()
                for step in self.workers[other].steps
                if step.starts > starts
            ]

        def joiners() -> list[str]:
            return [
                name
                for name, worker in self.workers.items()
                if name not in trained and worker.steps
            ]

        self.wait_for(lambda: bool(survivors() and joiners()))
        first = min(
            joiners(), key=lambda name: self.workers[name].steps[0].time
        )
        joiner = self.workers[first]
        imports = 0.0 if first in waited else joiner.import_seconds
        return Fault(
            kind,
            min(survivors()) - at,
            joiner.steps[0].time - at - imports,
            imports,
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
def job(kind: str) -> Iterator[HarmedJob]:
    """A job for faults of a kind, once it is whole."""
    with contextlib.ExitStack() as stack:
        network = None
        if kind in BETWEEN_HOSTS:
            if reason := missing():
                raise app.UsageError(f"there can be no hosts here: {reason}.")
            network = stack.enter_context(
                HostNetwork(RANKS.value, rate="1gbit")
            )
        made = stack.enter_context(contextlib.closing(HarmedJob(kind, network)))
        made.wait_until_whole(REST_SECONDS.value)
        yield made


def measure_steps(kind: str, dice: random.Random) -> list[Fault]:
    faults = []
    with job(kind) as harmed:
        for number in range(FAULTS.value):
            if number:
                harmed.wait_until_whole(REST_SECONDS.value)
            faults.append(harmed.suffer(kind, dice))
    return faults


def measure_throughput(dice: random.Random) -> list[Turn]:
    turns = []
    with job("kill") as harmed:
        for _ in range(TURNS.value):
            undisturbed = harmed.rate(lambda: None)
            disturbed = harmed.rate(lambda: harmed.suffer("kill", dice))
            turns.append(Turn(undisturbed, disturbed))
            harmed.wait_until_whole(REST_SECONDS.value)
    return turns


def print_steps(faults: Sequence[Fault]) -> None:
    print(f"{'':10} {'':8} {'median':>8} {'least':>8} {'most':>8}")
    for kind in dict.fromkeys(fault.kind for fault in faults):
        of_kind = [fault for fault in faults if fault.kind == kind]
        for who in ("survivor", "joiner", "imports"):
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
