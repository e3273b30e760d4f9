"""Measures faults' cost to an elastic job: seconds to the next step, and rows.

  .venv/bin/python benchmarks/elastic.py --kinds=kill,spare --faults=10
  .venv/bin/python benchmarks/elastic.py --kinds=lost_host,cut --ranks=3
  .venv/bin/python benchmarks/elastic.py --no-steps --throughput

Each kind of fault has a job of its own, which trains by `tfring.elastic.fit`
and is harmed again and again, each time when it is whole:

  kill       a worker is killed, and replaced
  spare      a worker is killed, and a waiting spare takes its place
  stop       a worker is stopped
  lost_host  all processes of a host are killed at once, and it comes back
  cut        a host's link is cut for six seconds, after which a worker can join

The last two take root: their hosts are network namespaces of this machine
(tools/host_network.py), with a rank each. `survivor` is the time from the fault
to the next step of another worker. `joiner` is the time to the first step of
the worker that takes the lost one's place, less `imports`: the time from the
start of its process until its script had imported Keras and tfring. A spare has
imported them before.

Choose no more ranks than cores: otherwise ranks wait for one another.
"""

import argparse
import contextlib
import dataclasses
import os
import random
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import program
from elastic_jobs import Job, Worker

SCRIPT = Path(__file__).with_name("elastic_training.py")
BETWEEN_HOSTS = ("lost_host", "cut")
CUT_SECONDS = 6


@dataclasses.dataclass(frozen=True)
class Fault:
    """The cost of a fault in seconds, as the module's docstring explains it."""

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
    """A job that trains until it is closed, and suffers faults."""

    def __init__(
        self,
        kind: str,
        options: argparse.Namespace,
        network: program.HostNetwork | None,
    ) -> None:
        self._options = options
        super().__init__(
            SCRIPT,
            (options.layers, options.width, options.batch_size),
            ranks=options.ranks,
            spares=int(kind == "spare"),
            network=network,
        )

    def suffer(self, kind: str, dice: random.Random) -> Fault:
        """Gives a worker a fault, and waits until the job is whole again."""
        self.wait_until_whole(self._options.rest_seconds)
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
            """Returns the times of the others' steps after the new start."""
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
                self.network.signal(victim.host, signal.SIGKILL)
            case "cut":
                self.network.cut(victim.host)
                time.sleep(CUT_SECONDS)
                self.network.mend(victim.host)

    def rate(self, begin: Callable[[], object]) -> float:
        """Returns the rows per second of a turn that begins with a call."""
        start = time.monotonic()
        begin()
        end = start + self._options.seconds_between_faults
        time.sleep(max(end - time.monotonic(), 0))
        self.look()
        steps = sum(
            start <= step.time < end
            for worker in self.workers.values()
            for step in worker.steps
        )
        return (
            steps
            * self._options.batch_size
            / self._options.seconds_between_faults
        )


@contextlib.contextmanager
def job(kind: str, options: argparse.Namespace) -> Iterator[HarmedJob]:
    """Yields a job for faults of a kind, once it is whole."""
    with contextlib.ExitStack() as stack:
        network = None
        if kind in BETWEEN_HOSTS:
            network = stack.enter_context(program.network(options.ranks, 1000))
        made = stack.enter_context(
            contextlib.closing(HarmedJob(kind, options, network))
        )
        made.wait_until_whole(options.rest_seconds)
        yield made


def measure_steps(
    kind: str, options: argparse.Namespace, dice: random.Random
) -> list[Fault]:
    faults = []
    with job(kind, options) as harmed:
        for number in range(options.faults):
            if number:
                harmed.wait_until_whole(options.rest_seconds)
            faults.append(harmed.suffer(kind, dice))
    return faults


def measure_throughput(
    options: argparse.Namespace, dice: random.Random
) -> list[Turn]:
    turns = []
    with job("kill", options) as harmed:
        for _ in range(options.turns):
            undisturbed = harmed.rate(lambda: None)
            disturbed = harmed.rate(lambda: harmed.suffer("kill", dice))
            turns.append(Turn(undisturbed, disturbed))
            harmed.wait_until_whole(options.rest_seconds)
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


def main() -> None:
    parser = program.parser(__doc__)
    parser.add_argument(
        "--kinds",
        type=program.words,
        default=f"kill,spare,stop,{','.join(BETWEEN_HOSTS)}",
        help="of faults",
    )
    parser.add_argument("--ranks", type=int, default=2, help="that train")
    parser.add_argument("--faults", type=int, default=10, help="of each kind")
    parser.add_argument(
        "--rest_seconds",
        type=float,
        default=2,
        help="from when the job is whole to the next fault",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the choice of who is harmed"
    )
    parser.add_argument("--layers", type=int, default=10, help="of the model")
    parser.add_argument("--width", type=int, default=256, help="of its layers")
    parser.add_argument(
        "--batch_size", type=int, default=128, help="rows of each rank"
    )
    parser.add_argument(
        "--steps",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="measure seconds to the next step",
    )
    parser.add_argument(
        "--throughput", action="store_true", help="measure rows per second"
    )
    parser.add_argument(
        "--seconds_between_faults",
        type=float,
        default=60,
        help="of a turn: undisturbed, or with a worker killed at its beginning",
    )
    parser.add_argument("--turns", type=int, default=1, help="of each")
    options = parser.parse_args()
    dice = random.Random(options.seed)
    faults, turns = [], []
    if options.steps:
        for kind in options.kinds:
            faults += measure_steps(kind, options, dice)
        print_steps(faults)
    if options.throughput:
        turns = measure_throughput(options, dice)
        print_throughput(turns)
    program.write_figures(
        options,
        faults=[dataclasses.asdict(fault) for fault in faults],
        turns=[dataclasses.asdict(turn) for turn in turns],
    )


if __name__ == "__main__":
    main()
