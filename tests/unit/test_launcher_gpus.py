"""How ranks share GPUs, with files in the place of devices."""

import subprocess

import pytest

from tfring.launcher import gpus

OPEN_MPI, MPICH, SLURM = (
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "SLURM_STEP_TASKS_PER_NODE",
)


@pytest.fixture
def growth(tmp_path):
    """What TF_FORCE_GPU_ALLOW_GROWTH is for a rank, on so many GPUs."""

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
        assert words[0] == variables.get("CUDA_VISIBLE_DEVICES", "unset")
        return words[1]

    return run


@pytest.mark.parametrize("name", [OPEN_MPI, MPICH, SLURM])
def test_grows_where_there_are_more_ranks_than_gpus(growth, name):
    assert growth(4, **{name: "4"}) == "unset"
    assert growth(4, **{name: "5"}) == "true"


def test_the_ranks_of_slurms_first_machine_count(growth):
    assert growth(2, **{SLURM: "3(x2),1"}) == "true"
    assert growth(2, **{SLURM: "2(x3)"}) == "unset"


def test_visible_gpus_are_those_that_count(growth):
    visible = {"CUDA_VISIBLE_DEVICES": "0"}
    assert growth(4, **visible, **{OPEN_MPI: "2"}) == "true"
    visible = {"CUDA_VISIBLE_DEVICES": "2,GPU-8a1b"}
    assert growth(4, **visible, **{OPEN_MPI: "2"}) == "unset"
    assert growth(4, **visible, **{OPEN_MPI: "3"}) == "true"


def test_what_is_set_is_left_alone(growth):
    asked = {"TF_FORCE_GPU_ALLOW_GROWTH": "false"}
    assert growth(2, **asked, **{OPEN_MPI: "6"}) == "false"


def test_without_a_gpu_nothing_is_set(growth):
    assert growth(0, **{OPEN_MPI: "2"}) == "unset"
    assert growth(2) == "unset"  # which no launcher has started


def test_whether_there_may_be_gpus(tmp_path):
    pattern = str(tmp_path / "nvidia[0-9]*")
    (tmp_path / "nvidiactl").touch()
    assert not gpus.may_exist(pattern)
    (tmp_path / "nvidia0").touch()
    assert gpus.may_exist(pattern)
