"""How ranks share GPUs, with files in the place of devices."""

import pytest

from tfring.launcher import rank_wrapper

ELASTIC, OPEN_MPI, MPICH, SLURM = (
    "TFRING_ELASTIC_SLOTS",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "SLURM_STEP_TASKS_PER_NODE",
)
VISIBLE, GROWTH = "CUDA_VISIBLE_DEVICES", "TF_FORCE_GPU_ALLOW_GROWTH"


@pytest.mark.parametrize(
    ("gpus_here", "variables", "expected"),
    [
        *((4, {name: "4"}, "unset") for name in (OPEN_MPI, MPICH, SLURM)),
        *((4, {name: "5"}, "true") for name in (OPEN_MPI, MPICH, SLURM)),
        # The ranks of Slurm's first machine count,
        (2, {SLURM: "3(x2),1"}, "true"),
        (2, {SLURM: "2(x3)"}, "unset"),
        # and the GPUs that are visible.
        (4, {VISIBLE: "0", OPEN_MPI: "2"}, "true"),
        (4, {VISIBLE: "2,GPU-8a1b", OPEN_MPI: "2"}, "unset"),
        (4, {VISIBLE: "2,GPU-8a1b", OPEN_MPI: "3"}, "true"),
        (2, {GROWTH: "false", OPEN_MPI: "6"}, "unset"),
        (2, {ELASTIC: "3", SLURM: "1"}, "true"),
        (0, {OPEN_MPI: "2"}, "unset"),
        (2, {}, "unset"),  # No launcher has started it.
    ],
)
def test_grows_where_ranks_share(tmp_path, gpus_here, variables, expected):
    assert rank_wrapper.count_gpus(tmp_path) == 0
    for number in range(gpus_here):
        (tmp_path / f"nvidia{number}").touch()
    (tmp_path / "nvidiactl").touch()
    assert rank_wrapper.count_gpus(tmp_path) == gpus_here
    found = rank_wrapper.share_gpus(variables, tmp_path)
    assert found == ({} if expected == "unset" else {GROWTH: expected})
