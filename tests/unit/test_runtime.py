"""Checks that `init` makes before there is a job."""

import pytest

from tfring._core import mpi_job


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
