"""Checks that `init` makes before there is a job."""

import os
from pathlib import Path

import pytest
from programs import run_python

from tfring._core import mpi_job

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("variable", "launcher"),
    [
        ("SLURM_STEP_NUM_TASKS", "srun"),
        ("OMPI_COMM_WORLD_SIZE", "mpirun"),
    ],
)
def test_each_task_a_job_of_its_own(monkeypatch, variable, launcher):
    for name, _, _ in mpi_job._LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    mpi_job._check_all_tasks_are_ranks(1)
    monkeypatch.setenv(variable, "2")
    mpi_job._check_all_tasks_are_ranks(2)
    with pytest.raises(RuntimeError, match=f"^{launcher} started 2 tasks"):
        mpi_job._check_all_tasks_are_ranks(1)
    monkeypatch.setenv(variable, "1")
    mpi_job._check_all_tasks_are_ranks(1)


@pytest.mark.parametrize(
    ("given", "expected"), [({}, "n"), ({"UCX_MEMTYPE_CACHE": "try"}, "try")]
)
def test_ucx_asks_the_driver_whose_memory_it_is(given, expected):
    # Prints the variable as the MPI library sees it when it is loaded.
    script = (
        "import ctypes\n"
        "from tfring._core import native\n"
        "native.mpi()\n"
        "getenv = ctypes.CDLL(None).getenv\n"
        "getenv.restype = ctypes.c_char_p\n"
        "print(getenv(b'UCX_MEMTYPE_CACHE').decode())\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("UCX_MEMTYPE_CACHE", None)
    done = run_python("-c", script, env={**environment, **given})
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [expected]
