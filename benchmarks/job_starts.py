"""Times jobs that start, add one tensor up, and end.

  .venv/bin/python benchmarks/job_starts.py --starts=10 --trees=../old,.

Without tfring's part the same takes as long as processes that import
TensorFlow side by side. These and the jobs of each kind and version take turns,
because another minute has another load. Of the versions that have it, the table
of `--verbose` is summed up, too.

The kinds spark and ray take an environment with these (`make engines` makes
one). They start a session or a cluster of this machine first, and sum up how
long that takes, and then the job.

Let Python keep its compiled modules (PYTHONDONTWRITEBYTECODE unset): compiling
tfring takes a rank longer than all else that it does here.
"""

import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import program

_RANK = """
import tensorflow as tf
import tfring

def work():
    tfring.init()
    tfring.allreduce(tf.ones([4]))
"""
_WORK = """
import sys, time

def work():
    import tensorflow as tf
    import tfring
    tfring.init()
    tfring.allreduce(tf.ones([4]))

began = time.monotonic()

def reach(stage):
    global began
    now = time.monotonic()
    print(f"tfring: {now - began:.2f} s until {stage}", file=sys.stderr)
    began = now
"""
_PROGRAMS = {
    "run": """
import tfring

tfring.run(work, np=RANKS, verbose=HAS_STAGES)
""",
    "spark": """
from pyspark.sql import SparkSession
import tfring.spark

conf = {"spark.ui.enabled": "false"}
master = "local-cluster[RANKS,1,1024]"
SparkSession.builder.config(map=conf).master(master).getOrCreate()
reach("the session ran")
tfring.spark.run(work, num_proc=RANKS)
reach("the job had ended")
""",
    "ray": """
import ray
import tfring.ray

ray.init(num_cpus=RANKS, include_dashboard=False)
reach("the cluster ran")
executor = tfring.ray.RayExecutor(RANKS)
executor.start()
executor.run(work)
executor.shutdown()
reach("the job had ended")
""",
}
_STAGE = re.compile(r"^tfring\S*: +(\d+\.\d+) s until (.*)$", re.MULTILINE)


def job(kind: str, ranks: int, tree: Path, folder: Path) -> list[str]:
    """Returns the command of a job of the version in `tree`."""
    has_stages = (tree / "tfring/launcher/stages.py").exists()
    script = folder / f"{kind}_job.py"
    if kind in _PROGRAMS:
        text = _WORK + _PROGRAMS[kind].replace("RANKS", str(ranks))
        script.write_text(text.replace("HAS_STAGES", str(has_stages)))
        return [sys.executable, str(script)]
    script.write_text(_RANK + "\nwork()\n")
    return [
        *(sys.executable, "-m", "tfring.run", "-np", str(ranks)),
        *["--elastic"] * (kind == "elastic"),
        *["--verbose"] * has_stages,
        *(sys.executable, str(script)),
    ]


def timed(commands: list[list[str]], tree: Path) -> tuple[float, str]:
    """Runs commands side by side; returns the seconds, and what they said."""
    environment = program.environment_of(tree)
    environment["PYSPARK_PYTHON"] = sys.executable
    began_at = time.monotonic()
    running = [
        subprocess.Popen(
            command,
            cwd=tree,  # `python -m` looks there first.
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command in commands
    ]
    said = "".join(process.communicate()[1] for process in running)
    seconds = time.monotonic() - began_at
    if any(process.returncode for process in running):
        raise SystemExit(f"{commands[0]}: {said}")
    return seconds, said


def main() -> None:
    parser = program.parser(__doc__)
    program.add_versions(parser)
    parser.add_argument(
        "--kinds",
        type=program.words,
        default="mpi,elastic,run",
        help="of jobs; also spark and ray",
    )
    options = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = {}

    def take(name: str, commands: list[list[str]], tree: Path) -> None:
        seconds, said = timed(commands, tree)
        rows = found.setdefault(name, {})
        rows.setdefault("in all", []).append(seconds)
        for spent, stage in _STAGE.findall(said):
            rows.setdefault(stage, []).append(float(spent))

    alone = [[sys.executable, "-c", "import tensorflow"]] * options.ranks
    with tempfile.TemporaryDirectory() as folder:
        for start in range(options.starts):
            take("side by side", alone, Path.cwd())
            for kind in options.kinds:
                for name in options.trees:
                    tree = Path(name).resolve()
                    command = job(kind, options.ranks, tree, Path(folder))
                    take(f"{kind}, {name}", [command], tree)
            print(
                f"{start + 1} of {options.starts}", file=sys.stderr, flush=True
            )
    for name, rows in found.items():
        for stage, seconds in rows.items():
            least, most = min(seconds), max(seconds)
            median = statistics.median(seconds)
            print(f"{name:20} {median:6.2f} ({least:.2f} - {most:.2f}) {stage}")
    program.write_figures(options, seconds=found)


if __name__ == "__main__":
    main()
