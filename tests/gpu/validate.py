"""Tests tfring on this machine's GPU: `make gpu-validation`.

Every part is a job of its own, by tfringrun: first what needs no TensorFlow, by
the C API, then TensorFlow. A job that crashes or hangs costs the test that it
was in; the next job goes on with the rest. The summary is Markdown, for
docs/gpu-validation.md.

Where there is no GPU, it is the fake one of tests/fake_cuda and
tests/fake_gpu, and what that cannot do is not counted as seen.

  .venv/bin/python tests/gpu/validate.py --parts=kernels,ipc --ranks=2
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import recorder

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import bare_gpu  # noqa: E402

# The limit of a job; TensorFlow may compile much in one.
_JOB_SECONDS = 900
# Seldom does more than one test of a part crash.
_MOST_JOBS = 10

_BRIEF = {"TFRING_STALL_SHUTDOWN_TIME_SECONDS": "30"}
_ON_GPU = {**_BRIEF, "TFRING_TEST_DEVICE": "GPU:0"}
_BY_HOST = {"TFRING_CUDA_IPC": "0", "TFRING_CUDA_AWARE_MPI": "0"}


@dataclasses.dataclass(frozen=True)
class Part:
    """Files of tests, and where they are run."""

    files: tuple[str, ...]
    ranks: tuple[int, ...]
    environment: dict[str, str]


PARTS = {
    "kernels": Part(("tests/gpu/kernels.py",), (1,), _BRIEF),
    "ipc": Part(("tests/gpu/engine.py",), (2, 3, 4), _BRIEF),
    "staged": Part(("tests/gpu/engine.py",), (2, 4), {**_BRIEF, **_BY_HOST}),
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


@dataclasses.dataclass
class Result:
    """How a test went on all ranks."""

    test: str
    outcome: str  # "ok", "failed" or "skipped"
    message: str


def run(part: Part, ranks: int, verbose: bool) -> list[Result]:
    """Runs the tests of a part, in as many jobs as it takes."""
    results: list[Result] = []
    for _ in range(_MOST_JOBS):
        with tempfile.TemporaryDirectory() as directory:
            done = "\n".join(result.test for result in results)
            Path(directory, "done").write_text(done)
            problem = _run_job(part, ranks, directory, verbose)
            ended, new = _read(Path(directory), ranks, problem)
        results += new
        if ended:
            return results
        if not new:
            return [*results, Result("the job", "failed", problem)]
    return [*results, Result("the job", "failed", "too many crashes")]


def _run_job(part: Part, ranks: int, directory: str, verbose: bool) -> str:
    """Returns how it ended, for who finds that it ended too early."""
    command = [
        *(sys.executable, "-m", "tfring.run", "-np", str(ranks)),
        *(sys.executable, "-m", "pytest", "-q", "-p", "tests.gpu.recorder"),
        *part.files,
    ]
    environment = {
        "CUDA_VISIBLE_DEVICES": "0",  # or each rank gets a GPU of its own
        **os.environ,
        **part.environment,
        "PYTHONPATH": str(ROOT),
        recorder.RESULTS: directory,
    }
    log = Path(directory, "log")
    with log.open("w") as file:
        output = None if verbose else file
        job = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=output
        )
        try:
            status = job.wait(_JOB_SECONDS)
        except subprocess.TimeoutExpired:
            job.terminate()
            job.wait()
            return f"it took more than {_JOB_SECONDS} s"
    lines = log.read_text(errors="replace").splitlines()
    return f"exit status {status}: " + " / ".join(lines[-5:])


def _read(
    directory: Path, ranks: int, problem: str
) -> tuple[bool, list[Result]]:
    """Returns True if all ranks came to their end, and their results.

    A test is as good as its worst rank.
    """
    results: dict[str, Result] = {}
    ended = 0
    for rank in range(ranks):
        path = directory / f"{rank}.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        last = {
            line["test"]: line for line in (json.loads(line) for line in lines)
        }
        ended += last.pop(recorder.END, None) is not None
        for test, line in last.items():
            outcome, message = line["outcome"], line["message"]
            if outcome == "begun":
                outcome, message = "failed", problem
            known = results.get(test)
            if known is None or (
                outcome == "failed" and known.outcome != "failed"
            ):
                results[test] = Result(test, outcome, message)
    return ended == ranks, list(results.values())


def versions() -> list[str]:
    """The date, and what this machine has."""
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


def row(name: str, ranks: int, results: Sequence[Result]) -> str:
    """A line of the table."""
    of = {
        outcome: sum(result.outcome == outcome for result in results)
        for outcome in ("ok", "failed", "skipped")
    }
    return (
        f"| {name} | {ranks} | {of['ok']} | {of['failed']} | {of['skipped']} |"
    )


def details(name: str, ranks: int, results: Sequence[Result]) -> list[str]:
    """A line for each failure, and for each reason not to run a test."""
    where = f"- {name}, {ranks} ranks: "
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


def main() -> int:
    """Runs the parts; 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--ranks", default="", help="these alone: 2,4")
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    only = [
        int(number) for number in (arguments.ranks or "").split(",") if number
    ]

    print(*versions(), sep="  \n", flush=True)
    print("\n| part | ranks | ok | failed | skipped |\n|---|---|---|---|---|")
    notes: list[str] = []
    for name in arguments.parts.split(","):
        part = PARTS[name]
        for ranks in part.ranks:
            if only and ranks not in only:
                continue
            results = run(part, ranks, arguments.verbose)
            print(row(name, ranks, results), flush=True)
            notes += details(name, ranks, results)
    print("", *notes, sep="\n")
    return int(any("**failed**" in note for note in notes))


if __name__ == "__main__":
    sys.exit(main())
