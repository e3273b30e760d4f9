"""Tests tfring on this machine's GPU: `make gpu-validation`.

Every part is a separate job of tfringrun. The first parts use the C API and
need no TensorFlow; the parts with TensorFlow follow, if it is installed. If a
job crashes or hangs, its current test fails, and the next job runs the
remaining tests. The report is Markdown, for docs/gpu-validation.md. The folder
--output also has it, with the output of the jobs.

A machine without a GPU uses the fake GPU of tests/gpu/fake. Tests that need a
real GPU are then skipped.

  .venv/bin/python tests/gpu/validate.py --parts=kernels,ipc --ranks=2
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]
import recorder  # noqa: E402
from job_runner import Jobs, multi_process_service  # noqa: E402

import bare_gpu  # noqa: E402

# Seldom does more than one test of a part crash.
_MOST_JOBS = 10

_BRIEF = {"TFRING_STALL_SHUTDOWN_TIME_SECONDS": "30"}
_ON_GPU = {**_BRIEF, "TFRING_TEST_DEVICE": "GPU:0"}
_BY_RING = {"TFRING_GPU_BACKEND": "ring"}
_BY_HOST = {**_BY_RING, "TFRING_CUDA_IPC": "0"}
_BY_NCCL = {"TFRING_GPU_BACKEND": "nccl"}
# Ranks share a GPU, and its memory.
_UNDER_JAX = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


@dataclasses.dataclass(frozen=True)
class Part:
    """Files of tests, and where they are run."""

    files: tuple[str, ...]  # and options of pytest
    ranks: tuple[int, ...]
    environment: dict[str, str]
    wrapper: tuple[str, ...] = ()  # the program that each rank is run by
    module: str = "pytest"  # of Python, which the tests need


@dataclasses.dataclass(frozen=True)
class Script:
    """A program that starts its own jobs, and prints Markdown."""

    file: str
    sized: bool = False  # takes --bytes


PARTS: dict[str, Part | Script] = {
    "facts": Part(("tests/gpu/facts.py",), (1,), _BRIEF),
    "probe": Part(("tests/gpu/probe.py",), (2,), _BRIEF),
    "kernels": Part(("tests/gpu/kernels.py",), (1,), _BRIEF),
    "ipc": Part(("tests/gpu/engine.py",), (2, 3, 4), {**_BRIEF, **_BY_RING}),
    "staged": Part(("tests/gpu/engine.py",), (2, 4), {**_BRIEF, **_BY_HOST}),
    "sanitizer": Part(
        ("tests/gpu/kernels.py", "-k", "float32 or bfloat16", "--timeout=400"),
        (1,),
        {**_BRIEF, "TFRING_TEST_SECONDS": "400"},
        ("compute-sanitizer", "--error-exitcode=9"),
    ),
    "lost": Script("tests/gpu/lost.py"),
    "jax": Part(
        ("tests/gpu/under_jit.py",),
        (1, 2, 3),
        {**_BRIEF, **_UNDER_JAX},
        module="jax",
    ),
    "bandwidth": Script("benchmarks/gpu.py", sized=True),
    "nccl": Part(("tests/gpu/nccl.py",), (1,), {**_BRIEF, **_BY_NCCL}),
    "tensorflow": Part(
        (
            "tests/parallel/on_gpu.py",
            "tests/parallel/test_collectives.py",
            "tests/parallel/test_reducescatter_alltoall.py",
        ),
        (1, 2),
        _ON_GPU,
    ),
    "offload": Part(("tests/parallel/on_gpu_offload.py",), (1, 2), _ON_GPU),
    "xla": Part(
        ("tests/parallel/test_xla.py", "tests/parallel/test_xla_stress.py"),
        (1, 2),
        _ON_GPU,
    ),
    "keras": Part(
        (
            "tests/parallel/on_gpu_training.py",
            "tests/parallel/test_optimizer.py",
            "tests/parallel/test_training.py",
        ),
        (1, 2),
        _ON_GPU,
    ),
}


def needs_tensorflow(part: Part | Script) -> bool:
    """Tells if a part is of tests of TensorFlow's operations."""
    return isinstance(part, Part) and part.files[0].startswith("tests/parallel")


@dataclasses.dataclass
class Result:
    """The outcome of a test on all ranks."""

    test: str
    outcome: str  # "ok", "failed" or "skipped"
    message: str


_NO_TIME = Result("the job", "skipped", "no time is left: --minutes")


def run(part: Part, ranks: int, jobs: Jobs) -> list[Result]:
    """Runs the tests of a part, in as many jobs as it takes."""
    if part.wrapper and not shutil.which(part.wrapper[0]):
        return [Result("the job", "skipped", f"no {part.wrapper[0]}")]
    if importlib.util.find_spec(part.module) is None:
        missing = f"no {part.module} in this Python"
        return [Result("the job", "skipped", missing)]
    results: list[Result] = []
    for _ in range(_MOST_JOBS):
        if jobs.seconds_left() <= 0:
            return [*results, _NO_TIME]
        with tempfile.TemporaryDirectory() as directory:
            done = "\n".join(result.test for result in results)
            Path(directory, "done").write_text(done)
            environment = {
                "CUDA_VISIBLE_DEVICES": "0",  # or each rank gets its own
                **os.environ,
                **part.environment,
                # The machine's may not fit this pytest.
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                recorder.RESULTS: directory,
            }
            problem, output = jobs.run(
                [
                    *(sys.executable, "-m", "tfring.run", "-np", str(ranks)),
                    *(*part.wrapper, sys.executable, "-m", "pytest", "-q"),
                    *("-p", "pytest_timeout", "-p", "recorder", *part.files),
                ],
                environment,
            )
            if problem:
                problem += ": " + " / ".join(output.splitlines()[-5:])
            ended, new = read_results(Path(directory), ranks, problem)
        results += new
        if ended:
            if problem and all(one.outcome != "failed" for one in results):
                results.append(Result("the job", "failed", problem))
            return results
        if not new:
            return [*results, Result("the job", "failed", problem)]
    return [*results, Result("the job", "failed", "too many crashes")]


def run_script(script: Script, nbytes: str, jobs: Jobs) -> tuple[Result, str]:
    """Runs a script; returns how it went, and the Markdown that it printed."""
    if jobs.seconds_left() <= 0:
        return _NO_TIME, ""
    command = [sys.executable, script.file]
    problem, output = jobs.run(
        command + [f"--bytes={nbytes}"] * script.sized, {}
    )
    outcome = "failed" if problem else "ok"
    return Result(script.file, outcome, problem), output


# The severity of a rank's outcome.
_GRAVITY = {"ok": 0, "skipped": 0, "begun": 1, "failed": 2}


def read_results(
    directory: Path, ranks: int, problem: str
) -> tuple[bool, list[Result]]:
    """Returns True if all ranks finished, and the results of the tests.

    A test has the outcome and the message of its worst rank. A test that was
    cut short has no message, and gets `problem`.
    """
    worst: dict[str, dict[str, str]] = {}
    ended = 0
    for rank in range(ranks):
        path = directory / f"{rank}.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        last = {
            line["test"]: line for line in (json.loads(line) for line in lines)
        }
        ended += last.pop(recorder.END, None) is not None
        for test, line in last.items():
            known = worst.setdefault(test, line)
            if _GRAVITY[line["outcome"]] > _GRAVITY[known["outcome"]]:
                worst[test] = line
    results = [
        Result(test, "failed", problem)
        if line["outcome"] == "begun"
        else Result(**line)
        for test, line in worst.items()
    ]
    return ended == ranks, results


def versions() -> list[str]:
    """Returns the date and the versions on this machine."""
    report = subprocess.run(
        [sys.executable, "-m", "tfring.run", "--check-build"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    return [
        f"Date: {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} "
        f"UTC, {platform.platform()}",
        f"GPU: {bare_gpu.name()}",
        *(line.strip() for line in report.stdout.splitlines()),
        *report.stderr.splitlines()[-3:] * (report.returncode != 0),
    ]


def row(name: str, ranks: str, results: Sequence[Result]) -> str:
    """A line of the table."""
    of = {
        outcome: sum(result.outcome == outcome for result in results)
        for outcome in ("ok", "failed", "skipped")
    }
    return (
        f"| {name} | {ranks} | {of['ok']} | {of['failed']} | {of['skipped']} |"
    )


def details(name: str, ranks: str, results: Sequence[Result]) -> list[str]:
    """A line for each failure, and for each reason not to run a test."""
    where = f"- {name}{ranks}: "
    lines = [
        f"{where}**failed** `{result.test}`: {_brief(result.message)}"
        for result in results
        if result.outcome == "failed"
    ]
    lines += [
        f"{where}`{result.test}`: {result.message}"
        for result in results
        if result.outcome == "ok" and result.message
    ]
    skipped = [result for result in results if result.outcome == "skipped"]
    for reason in sorted({result.message for result in skipped}):
        number = sum(result.message == reason for result in skipped)
        lines.append(f"{where}{number} skipped: {_brief(reason)}")
    return lines


def _brief(message: str) -> str:
    return " ".join(message.split())[:400]


class Report:
    """Prints the report line by line, and also writes it to a file."""

    def __init__(self, file: Path | None) -> None:
        self._file = file

    def say(self, *lines: str, end: str = "\n") -> None:
        """Adds lines."""
        text = end.join(lines) + end
        print(text, end="", flush=True)
        if self._file:
            with self._file.open("a") as file:
                file.write(text)


def parse_arguments() -> argparse.Namespace:
    """Returns what the command line says."""
    bare = importlib.util.find_spec("tensorflow") is None
    parts = [
        name
        for name, part in PARTS.items()
        if not bare or not needs_tensorflow(part)
    ]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default=",".join(parts))
    parser.add_argument("--ranks", default="", help="these alone: 2,4")
    parser.add_argument(
        "--mps",
        action="store_true",
        help="with a server of CUDA's Multi-Process Service",
    )
    parser.add_argument("--minutes", type=float, help="no job begins later")
    parser.add_argument(
        "--bytes", default="256m", help="of bandwidth's tensors"
    )
    parser.add_argument("--output", type=Path, help="a folder for the report")
    return parser.parse_args()


def run_parts(
    arguments: argparse.Namespace, report: Report, jobs: Jobs
) -> list[str]:
    """Reports the table of all parts; returns the lines that follow it."""
    only = [int(number) for number in arguments.ranks.split(",") if number]
    report.say("", "| part | ranks | ok | failed | skipped |", "|---" * 5 + "|")
    notes: list[str] = []
    for name in arguments.parts.split(","):
        part = PARTS[name]
        if isinstance(part, Script):
            result, text = run_script(part, arguments.bytes, jobs)
            report.say(row(name, "", [result]))
            notes += [*details(name, "", [result]), "", f"## {name}", "", text]
            continue
        for ranks in part.ranks:
            if only and ranks not in only:
                continue
            results = run(part, ranks, jobs)
            report.say(row(name, str(ranks), results))
            notes += details(name, f", {ranks} ranks", results)
    return notes


def main() -> int:
    """Runs the parts; 1 if anything failed."""
    arguments = parse_arguments()
    folder = arguments.output
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
    report = Report(folder and folder / "report.md")
    seconds = 60 * arguments.minutes if arguments.minutes else float("inf")
    jobs = Jobs(seconds, folder and folder / "jobs.log")
    with contextlib.ExitStack() as stack:
        if arguments.mps:
            stack.enter_context(multi_process_service())
        report.say(*versions(), end="  \n")
        notes = run_parts(arguments, report, jobs)
    report.say("", *notes)
    return int(any("**failed**" in note for note in notes))


if __name__ == "__main__":
    sys.exit(main())
