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
    # Prints what UCX has read when `import tfring` has opened it.
    script = (
        "import ctypes, re, tfring\n"
        "from pathlib import Path\n"
        "maps = Path('/proc/self/maps').read_text()\n"
        "if found := re.search(r'/\\S*/libucs\\.so\\S*', maps):\n"
        "    value = ctypes.create_string_buffer(16)\n"
        "    ucs = ctypes.CDLL(found[0])\n"
        "    ucs.ucs_global_opts_get_value(b'MEMTYPE_CACHE', value, 16)\n"
        "    print(value.value.decode())\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("UCX_MEMTYPE_CACHE", None)
    done = run_python("-c", script, env={**environment, **given})
    assert done.returncode == 0, done.stderr
    if not done.stdout:
        pytest.skip("this MPI has no UCX")
    assert done.stdout.split() == [expected]
