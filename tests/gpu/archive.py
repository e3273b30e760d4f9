"""The archive of tools/gpu_archive.py, unpacked where there is no TensorFlow.

`make gpu-archive` runs it, after it has built the library. The environment has
the little that the machine is to have: Python, NumPy and ml_dtypes, and for one
part JAX, which `make gpu-archive` installs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from importlib import metadata
from pathlib import Path

import pytest
import recorder
from job_runner import Jobs
from validate import Result, read_results

import bare_gpu

ROOT = Path(__file__).parents[2]
FAKES = (bare_gpu.FAKE_DRIVER, bare_gpu.FAKE_NCCL)
PARTS = [
    *("facts", "probe", "kernels", "ipc", "staged"),
    *("sanitizer", "lost", "jax", "bandwidth", "nccl"),
]
JAX_PYTHON = ROOT / "build/jax-venv/bin/python"

pytestmark = pytest.mark.timeout(900)


def call(*command: object, **options: object) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=850,
        check=False,
        **options,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """The archive, unpacked, with the fakes that this machine needs."""
    folder = tmp_path_factory.mktemp("machine")
    archive = folder / "archive.tar.gz"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    packer = ROOT / "tools/gpu_archive.py"
    call(sys.executable, packer, f"--python={version}", archive)
    assert archive.stat().st_size < 32 << 20
    with tarfile.open(archive) as files:
        files.extractall(folder)
    [unpacked] = (path for path in folder.iterdir() if path.is_dir())
    if bare_gpu.is_fake():
        for fake in FAKES:
            to = unpacked / fake.relative_to(ROOT)
            to.parent.mkdir(parents=True)
            shutil.copy(fake, to)
    return unpacked


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """A Python with NumPy and ml_dtypes alone."""
    environment = tmp_path_factory.mktemp("python")
    call(sys.executable, "-m", "venv", "--without-pip", environment)
    [packages] = environment.glob("lib/python*/site-packages")
    for name in "numpy", "ml_dtypes":
        for file in metadata.files(name) or []:
            top = packages / file.parts[0]
            if file.parts[0] != ".." and not top.exists():
                top.symlink_to(Path(file.locate()).parents[len(file.parts) - 2])
    # A plugin of the machine's pytest that does not fit ours.
    plugin = packages / "unfit-1.0.dist-info"
    plugin.mkdir()
    (plugin / "METADATA").write_text("Name: unfit\nVersion: 1.0\n")
    (plugin / "entry_points.txt").write_text("[pytest11]\nunfit = unfit\n")
    return environment / "bin/python"


def bare(programs):
    """This environment, without variables that point to another Python."""
    hidden = ("PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "MPI4PY_LIBMPI")
    kept = {k: v for k, v in os.environ.items() if k not in hidden}
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    return {**kept, "PATH": path}


@pytest.fixture
def programs(tmp_path):
    """NVIDIA's programs, which take notes of how they are called."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name, does in (
        ("compute-sanitizer", 'shift; "$@"; exit ${SANITIZER_STATUS-0}'),
        ("nvidia-cuda-mps-control", "[ $# = 1 ] || cat >> $0.notes"),
    ):
        script = folder / name
        script.write_text(f'#!/bin/sh\necho "$@" >> $0.notes\n{does}\n')
        script.chmod(0o755)
    return folder


def test_nothing_needs_tensorflow(tree, python):
    library = tree / "tfring/libtfring_ops.so"
    assert "tensorflow" not in call("readelf", "-d", library)
    missing = subprocess.run(
        [python, "-c", "import tensorflow"], env=bare(tree), capture_output=True
    )
    assert b"No module named 'tensorflow'" in missing.stderr


def test_all_parts(tree, python, programs, tmp_path):
    output = call(
        *(python, "tests/gpu/validate.py", "--bytes=64k", "--ranks=1,2"),
        f"--output={tmp_path}",
        cwd=tree,
        env=bare(programs),
    )
    report = (tmp_path / "report.md").read_text()
    assert report == output
    table = report[report.index("| part ") :].partition("\n\n")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines()[2:]]
    # Some parts are run at one rank and at two.
    assert list(dict.fromkeys(row[0].strip() for row in rows)) == PARTS
    for name, _, good, failed, _ in rows:
        assert (int(good) > 0) == (name.strip() != "jax")
        assert int(failed) == 0
    assert "- jax, 2 ranks: 1 skipped: no jax in this Python\n" in report
    assert "**failed**" not in report
    assert (tmp_path / "jobs.log").read_text()
    notes = (programs / "compute-sanitizer.notes").read_text()
    assert notes.startswith(f"--error-exitcode=9 {python} -m pytest")


def test_jax_calls_the_handlers(tree):
    output = call(
        *(JAX_PYTHON, "tests/gpu/validate.py", "--parts=jax", "--ranks=2"),
        cwd=tree,
        env=bare(JAX_PYTHON.parent),
    )
    # One platform's; JAX has no GPU where the driver is a fake one.
    if bare_gpu.is_fake():
        assert "| jax | 2 | 5 | 0 | 5 |" in output
        assert "- jax, 2 ranks: 5 skipped: this JAX has no gpu\n" in output
    else:
        assert re.search(r"\| jax \| 2 \| (5|10) \| 0 \| ", output)


def test_an_error_that_the_sanitizer_sees_is_a_failure(tree, python, programs):
    done = subprocess.run(
        [python, "tests/gpu/validate.py", "--parts=sanitizer", "--mps"],
        cwd=tree,
        env={**bare(programs), "SANITIZER_STATUS": "9"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1
    assert "**failed** `the job`: exit status 9" in done.stdout
    assert re.search(r"\| sanitizer \| 1 \| [1-9]\d \| 1 \| 0 \|", done.stdout)
    control = (programs / "nvidia-cuda-mps-control.notes").read_text()
    assert control == "-d\n\nquit\n"


def test_no_job_begins_too_late(tree, python, programs, tmp_path):
    output = call(
        *(python, "tests/gpu/validate.py", "--parts=kernels,bandwidth"),
        *("--minutes=0.0001", f"--output={tmp_path}"),
        cwd=tree,
        env=bare(programs),
    )
    assert output.count("1 skipped: no time is left") == 2
    assert re.search(r"^TensorFlow +none", output, re.MULTILINE)


def test_a_job_that_takes_too_long_ends_with_its_processes():
    script = "echo begun; (trap '' TERM; sleep 1000) & sleep 1000"
    problem, output = Jobs(1.0, None).run(["sh", "-c", script], {})
    assert problem == "it took more than 1 s"
    assert output == "begun\n"


def test_the_rank_that_failed_says_why(tmp_path):
    def write(rank, *lines):
        keys = "test", "outcome", "message"
        text = [
            json.dumps(dict(zip(keys, line, strict=True))) for line in lines
        ]
        (tmp_path / f"{rank}.jsonl").write_text("\n".join(text))

    write(0, ("good", "ok", "of rank 0"), ("bad", "begun", ""))
    write(1, ("good", "ok", "of rank 1"), ("bad", "failed", "1 is not 2"))
    good, bad = Result("good", "ok", "of rank 0"), "exit status 1"
    assert read_results(tmp_path, 2, bad) == (
        False,
        [good, Result("bad", "failed", "1 is not 2")],
    )
    write(1, (recorder.END, "ok", ""))
    assert read_results(tmp_path, 2, bad) == (
        False,
        [good, Result("bad", "failed", bad)],
    )
