"""Which GPU a rank sees, with files in the place of devices."""

import subprocess

import pytest

from tfring.launcher import gpus


@pytest.fixture
def seen(tmp_path):
    def run(count, **variables):
        for number in range(count):
            (tmp_path / f"nvidia{number}").touch()
        (tmp_path / "nvidiactl").touch()
        script = (
            "echo ${CUDA_VISIBLE_DEVICES-unset} "
            '${TF_FORCE_GPU_ALLOW_GROWTH-unset} "$1" ${gpus-unset}'
        )
        command = gpus.one_for_each_rank(
            ["/bin/sh", "-c", script, "name", "two words"],
            str(tmp_path / "nvidia[0-9]*"),
        )
        process = subprocess.run(
            command, env=variables, check=True, capture_output=True, text=True
        )
        words = process.stdout.split()
        assert words[2:] == ["two", "words", "unset"]
        return words[0], words[1]

    return run


@pytest.mark.parametrize(
    "names",
    [
        ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ],
)
def test_by_local_rank(seen, names):
    rank, size = names
    assert seen(4, **{rank: "3", size: "4"}) == ("3", "unset")


def test_slurm(seen):
    assert seen(2, SLURM_LOCALID="1") == ("1", "unset")


def test_more_ranks_than_gpus_share_and_grow(seen):
    ranks = {
        "OMPI_COMM_WORLD_LOCAL_RANK": "5",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "6",
    }
    assert seen(2, **ranks) == ("1", "true")
    ranks["TF_FORCE_GPU_ALLOW_GROWTH"] = "false"
    assert seen(2, **ranks) == ("1", "false")


@pytest.mark.parametrize("chosen", ["2", "none"])
def test_what_is_set_is_left_alone(seen, chosen):
    ranks = {
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "8",
    }
    assert seen(4, CUDA_VISIBLE_DEVICES=chosen, **ranks) == (chosen, "unset")


def test_without_a_gpu_nothing_is_set(seen):
    assert seen(0, OMPI_COMM_WORLD_LOCAL_RANK="0") == ("unset", "unset")


def test_whether_there_may_be_gpus(tmp_path):
    pattern = str(tmp_path / "nvidia[0-9]*")
    (tmp_path / "nvidiactl").touch()
    assert not gpus.may_exist(pattern)
    (tmp_path / "nvidia0").touch()
    assert gpus.may_exist(pattern)
