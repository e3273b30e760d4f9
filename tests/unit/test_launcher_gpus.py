"""How ranks share GPUs, with files in the place of devices."""

import subprocess

import pytest

from tfring.launcher import gpus

OPEN_MPI, MPICH, SLURM = (
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "SLURM_STEP_TASKS_PER_NODE",
)
VISIBLE, GROWTH = "CUDA_VISIBLE_DEVICES", "TF_FORCE_GPU_ALLOW_GROWTH"


@pytest.fixture
def growth(tmp_path):
    """Returns a function that returns TF_FORCE_GPU_ALLOW_GROWTH of a rank."""

    def run(count, **variables):
        for number in range(count):
            (tmp_path / f"nvidia{number}").touch()
        (tmp_path / "nvidiactl").touch()
        script = (
            "echo ${CUDA_VISIBLE_DEVICES-unset} "
            '${TF_FORCE_GPU_ALLOW_GROWTH-unset} "$1" ${gpus-unset}'
        )
        command = gpus.share_memory(
            ["/bin/sh", "-c", script, "name", "two words"],
            str(tmp_path / "nvidia[0-9]*"),
        )
        process = subprocess.run(
            command, env=variables, check=True, capture_output=True, text=True
        )
        words = process.stdout.split()
        assert words[2:] == ["two", "words", "unset"]
        # A rank sees all GPUs, as scripts choose one by their local rank.
        assert words[0] == variables.get(VISIBLE, "unset")
        return words[1]

    return run


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
        (2, {GROWTH: "false", OPEN_MPI: "6"}, "false"),
        (0, {OPEN_MPI: "2"}, "unset"),
        (2, {}, "unset"),  # No launcher has started it.
    ],
)
def test_grows_where_ranks_share(growth, gpus_here, variables, expected):
    assert growth(gpus_here, **variables) == expected


def test_whether_there_may_be_gpus(tmp_path):
    pattern = str(tmp_path / "nvidia[0-9]*")
    (tmp_path / "nvidiactl").touch()
    assert not gpus.may_exist(pattern)
    (tmp_path / "nvidia0").touch()
    assert gpus.may_exist(pattern)
