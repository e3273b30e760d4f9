"""Measures how much communication overlaps, over TCP and over MPI.

  .venv/bin/python benchmarks/elastic_overlap.py --model=cnn --rounds=3

Two jobs train the model of steps.py by turns, with a rank on each host. The
hosts are network namespaces of this machine, which takes root
(tools/host_network.py). `overlap` comes from the timeline: the share of the
time of running buckets in which no operation waited for them, on the rank with
the least and on the rank with the most. `step` is the time of a step.

Choose no more hosts than cores: each rank has a core for itself.
"""

import argparse
import dataclasses
import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import program

from tfring.timeline import summary

SCRIPT = Path(__file__).with_name("elastic_overlap_training.py")


@dataclasses.dataclass(frozen=True)
class Turn:
    """The overlap in a job's timeline, and its time for a step."""

    who: str
    least_overlap: float
    most_overlap: float
    step_seconds: float


def measure(
    network: program.HostNetwork,
    who: str,
    launcher: Sequence[str],
    options: argparse.Namespace,
) -> Turn:
    flags = (options.model, options.batch_size, options.steps, int(options.jit))
    with tempfile.TemporaryDirectory() as folder:
        program.run_job(
            [SCRIPT, folder, *flags],
            launcher=["-H", network.slots(1), *launcher],
            start=network.popen,
            env={
                "PYTHONPATH": str(program.ROOT),
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "TF_NUM_INTRAOP_THREADS": "1",
                "TF_NUM_INTEROP_THREADS": "1",
            },
        )
        events = summary.read(Path(folder) / "timeline.json")
        overlaps = [
            rank.overlap for rank in summary.summarize(events).ranks.values()
        ]
        seconds = float((Path(folder) / "step_seconds").read_text())
    return Turn(who, min(overlaps), max(overlaps), seconds)


def main() -> None:
    parser = program.parser(__doc__)
    parser.add_argument("--hosts", type=int, default=2, help="of a rank each")
    parser.add_argument(
        "--rate_mbit",
        type=int,
        default=1000,
        help="of each host's link, in each direction, in Mbit/s",
    )
    parser.add_argument("--model", choices=["cnn", "mlp"], default="cnn")
    parser.add_argument("--jit", action="store_true", help="by XLA")
    parser.add_argument("--batch_size", type=int, default=64, help="of a rank")
    parser.add_argument("--steps", type=int, default=50, help="of a turn")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each")
    options = parser.parse_args()
    if options.hosts > len(os.sched_getaffinity(0)):
        parser.error("there are more hosts than cores.")
    jobs = {"MPI": (), "TCP": ("--elastic", "--min-np", str(options.hosts))}
    with program.network(options.hosts, options.rate_mbit) as network:
        turns = [
            measure(network, who, launcher, options)
            for _ in range(options.rounds)
            for who, launcher in jobs.items()
        ]
    print(f"{'':3}  {'overlap':>14}  {'step':>8}")
    for turn in turns:
        print(
            f"{turn.who}  {turn.least_overlap:6.1%} {turn.most_overlap:6.1%}  "
            f"{1000 * turn.step_seconds:6.1f} ms"
        )
    for who in jobs:
        seconds = [turn.step_seconds for turn in turns if turn.who == who]
        print(f"{who}: {1000 * statistics.median(seconds):.1f} ms, the median")
    program.write_figures(
        options, turns=[dataclasses.asdict(turn) for turn in turns]
    )


if __name__ == "__main__":
    main()
