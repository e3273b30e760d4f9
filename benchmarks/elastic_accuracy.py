"""Compares test accuracies of trainings with faults and without.

  .venv/bin/python benchmarks/elastic_accuracy.py --faults=20 --seeds=0,1,2

A small CNN learns handwritten digits by `tfring.elastic.fit` to the end, once
undisturbed and once with faults, for each seed of weights, images' order and
faults. The kinds of faults are:

  kill       a worker is killed
  stop       a worker is stopped
  terminate  a worker gets SIGTERM, and leaves with its next commit
  exception  a worker's step raises an error

Each fault happens when the job has been whole for up to two seconds. A rank
that is left trains alone, on smaller batches, until another has joined. Steps
of the disturbed trainings are longer, so that there is time for all faults.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import random
import signal
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import program
from elastic_jobs import Job

SCRIPT = Path(__file__).with_name("elastic_digits.py")
# The limit from the last fault to the end of the training.
END_SECONDS = 600


@dataclasses.dataclass(frozen=True)
class Result:
    """A job's result, the same on all ranks."""

    accuracy: float
    loss: float
    steps: int
    weights: str


@dataclasses.dataclass(frozen=True)
class Pair:
    """The results with a seed, and how often each kind of fault happened."""

    seed: int
    undisturbed: Result
    disturbed: Result
    faults: dict[str, int]


def train(
    seed: int,
    faults: Sequence[str],
    dice: random.Random,
    options: argparse.Namespace,
) -> Result:
    """Trains a job to the end, with one fault after the other."""
    step_seconds = options.step_seconds if faults else 0
    with contextlib.closing(
        Job(SCRIPT, (seed, options.epochs, step_seconds), ranks=options.ranks)
    ) as job:
        for number, kind in enumerate(faults):
            try:
                job.wait_until_whole(dice.uniform(0, 2))
            except RuntimeError as error:
                raise SystemExit(
                    f"the training was over after {number} faults; give more "
                    "epochs."
                ) from error
            harm(job, kind, dice.choice(job.training()))
        status = job.process.wait(END_SECONDS)
        if status != 0:
            raise RuntimeError(f"the job has ended with status {status}.")
        results = {
            Result(**json.loads(path.read_text()))
            for path in (job.folder / "results").iterdir()
        }
    if len(results) != 1:
        raise RuntimeError(f"the ranks have different results: {results}")
    return results.pop()


def harm(job: Job, kind: str, victim: str) -> None:
    job.lost.add(victim)
    pid = job.workers[victim].pid
    match kind:
        case "kill":
            os.kill(pid, signal.SIGKILL)
        case "stop":
            os.kill(pid, signal.SIGSTOP)
        case "terminate":
            os.kill(pid, signal.SIGTERM)
        case "exception":
            (job.folder / "faults" / victim).touch()
        case _:
            raise SystemExit(f"{kind} is no kind of fault.")


def measure(seed: int, options: argparse.Namespace) -> Pair:
    dice = random.Random(seed)
    faults = dice.choices(options.kinds, k=options.faults)
    return Pair(
        seed,
        train(seed, (), dice, options),
        train(seed, faults, dice, options),
        dict(Counter(faults)),
    )


def table(pairs: Sequence[Pair]) -> str:
    lines = [f"{'seed':>4}  {'undisturbed':>18}  {'disturbed':>18}  faults"]
    for pair in pairs:
        of_jobs = "  ".join(
            f"{each.accuracy:7.2%} {each.steps:4} steps"
            for each in (pair.undisturbed, pair.disturbed)
        )
        kinds = ", ".join(f"{n} {kind}" for kind, n in pair.faults.items())
        lines.append(f"{pair.seed:4}  {of_jobs}  {kinds}")
    means = "  ".join(
        f"{statistics.mean(each.accuracy for each in of_kind):7.2%}{'':11}"
        for of_kind in (
            [pair.undisturbed for pair in pairs],
            [pair.disturbed for pair in pairs],
        )
    )
    return "\n".join([*lines, f"mean  {means}"])


def main() -> None:
    parser = program.parser(__doc__)
    parser.add_argument(
        "--seeds",
        type=program.numbers,
        default="0,1,2",
        help="each is a pair of jobs",
    )
    parser.add_argument("--ranks", type=int, default=2, help="that train")
    parser.add_argument(
        "--faults",
        type=int,
        default=20,
        help="in each job that is disturbed",
    )
    parser.add_argument(
        "--kinds",
        type=program.words,
        default="kill,stop,terminate,exception",
        help="of faults",
    )
    parser.add_argument(
        "--epochs", type=int, default=40, help="passes over the images"
    )
    parser.add_argument(
        "--step_seconds",
        type=float,
        default=0.1,
        help="by how much steps are longer where there are faults",
    )
    options = parser.parse_args()
    pairs = [measure(seed, options) for seed in options.seeds]
    print(table(pairs))
    program.write_figures(
        options, pairs=[dataclasses.asdict(pair) for pair in pairs]
    )


if __name__ == "__main__":
    main()
