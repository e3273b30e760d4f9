"""How much of the communication overlaps: over TCP as in elastic jobs, and MPI.

  .venv/bin/python benchmarks/elastic_overlap.py --model=cnn --rounds=3

Two jobs train the model of `tfring-bench step` between hosts by turns, with a
rank on each, which are network namespaces of this machine: it takes root
(tools/host_network.py). `overlap` is the share of the time in which buckets ran
in which no operation waited for them, by the timeline, of the rank that has the
least and the one that has the most; `step` is the time of a step.

Let the hosts be no more than the cores: each rank has one for itself.
"""

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from absl import app, flags
from elastic_jobs import ROOT, HostNetwork, missing

from tfring.timeline import summary

SCRIPT = Path(__file__).with_name("elastic_overlap_training.py")

HOSTS = flags.DEFINE_integer("hosts", 2, "How many, with a rank each.")
RATE_MBIT = flags.DEFINE_integer(
    "rate_mbit", 1000, "Of each host's link, in each direction, in Mbit/s."
)
MODEL = flags.DEFINE_enum("model", "cnn", ["cnn", "mlp"], "What is trained.")
JIT = flags.DEFINE_bool("jit", False, "Whether XLA compiles the step.")
BATCH_SIZE = flags.DEFINE_integer("batch_size", 64, "Rows of each rank.")
STEPS = flags.DEFINE_integer("steps", 50, "That are recorded in a turn.")
ROUNDS = flags.DEFINE_integer("rounds", 3, "How many turns each job has.")
JSON = flags.DEFINE_string("json", None, "A file for all figures.")


@dataclasses.dataclass(frozen=True)
class Turn:
    """The overlap in a job's timeline, and its time for a step."""

    who: str
    least_overlap: float
    most_overlap: float
    step_seconds: float


def measure(network: HostNetwork, who: str, options: Sequence[str]) -> Turn:
    with tempfile.TemporaryDirectory() as folder:
        job = network.popen(
            [
                *(sys.executable, "-m", "tfring.run"),
                *("-H", network.slots(1), *options),
                *(sys.executable, str(SCRIPT), folder, MODEL.value),
                *map(str, (BATCH_SIZE.value, STEPS.value, int(JIT.value))),
            ],
            env={
                "PYTHONPATH": str(ROOT),
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "TF_NUM_INTRAOP_THREADS": "1",
                "TF_NUM_INTEROP_THREADS": "1",
            },
            stdin=subprocess.DEVNULL,
        )
        if job.wait() != 0:
            raise RuntimeError(f"the job of {who} has failed.")
        events = summary.read(Path(folder) / "timeline.json")
        overlaps = [
            rank.overlap for rank in summary.summarize(events).ranks.values()
        ]
        seconds = float((Path(folder) / "step_seconds").read_text())
    return Turn(who, min(overlaps), max(overlaps), seconds)


def main(arguments: Sequence[str]) -> None:
    if len(arguments) > 1:
        raise app.UsageError(f"expected flags only, got {arguments[1:]}.")
    if reason := missing():
        raise app.UsageError(f"there can be no hosts here: {reason}.")
    if HOSTS.value > len(os.sched_getaffinity(0)):
        raise app.UsageError("there are more hosts than cores.")
    jobs = {
        "MPI": (),
        "TCP": ("--elastic", "--min-np", str(HOSTS.value)),
    }
    turns = []
    with HostNetwork(HOSTS.value, rate=f"{RATE_MBIT.value}mbit") as network:
        for _ in range(ROUNDS.value):
            for who, options in jobs.items():
                turns.append(measure(network, who, options))
    print(f"{'':3}  {'overlap':>14}  {'step':>8}")
    for turn in turns:
        print(
            f"{turn.who}  {turn.least_overlap:6.1%} {turn.most_overlap:6.1%}  "
            f"{1000 * turn.step_seconds:6.1f} ms"
        )
    for who in jobs:
        seconds = [turn.step_seconds for turn in turns if turn.who == who]
        print(f"{who}: {1000 * statistics.median(seconds):.1f} ms, the median")
    if JSON.value:
        content = {
            "rate_mbit": RATE_MBIT.value,
            "model": MODEL.value,
            "jit": JIT.value,
            "batch_size": BATCH_SIZE.value,
            "turns": [dataclasses.asdict(turn) for turn in turns],
        }
        Path(JSON.value).write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    app.run(main)
