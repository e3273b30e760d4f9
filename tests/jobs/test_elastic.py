"""A rank is killed, and those that are left go on from the last commit."""

import re
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from jobs import JOB_SECONDS, TFRINGRUN, WHOLE
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from tfring import _build_info
from tfring.launcher import mpi_launchers

EXAMPLES = Path(__file__).parents[2] / "examples"

_LAUNCHER = mpi_launchers.find_launcher(
    _build_info.MPI_VERSION, _build_info.MPIRUN
)
_GOES_ON = (
    _LAUNCHER.family is mpi_launchers.Family.OPEN_MPI and _LAUNCHER.major >= 5
)


@pytest.mark.skipif(not _GOES_ON, reason="this MPI ends with any of its ranks")
@pytest.mark.parametrize("shard_states", [False, True])
def test_the_others_go_on_when_a_rank_is_killed(start, tmp_path, shard_states):
    """The example, and the same training on the batches of all ranks at once.

    So a commit that has not been taken back to, an average over the ranks that
    there were, or momenta that are lost with a rank, would show in the weights.
    """
    command = [*TFRINGRUN, "-np", "3", "--elastic", sys.executable]
    weights = tmp_path / "all.weights.h5"
    job = start(
        [
            *(*command, EXAMPLES / "elastic.py", f"--weights={weights}"),
            *("--epochs=3", "--kill_in_epoch=2"),
            f"--shard_states={shard_states}",
        ],
        env=WHOLE,
    )
    output, _ = job.communicate(timeout=JOB_SECONDS)
    assert job.returncode == 0, output
    starts = re.findall(r"from (epoch \d, batch \d+, on \d) ranks", output)
    # It was killed before the 8th batch.
    assert starts == ["epoch 1, batch 1, on 3", "epoch 2, batch 6, on 2"]
    reasons = re.findall("back to the last commit: (.*)", output)
    assert len(reasons) == 2
    assert all(reason.startswith("a rank is lost") for reason in reasons)
    assert "weights identical on all ranks: yes" in output

    x, x_test, y, y_test = train_test_split(
        *load_digits(return_X_y=True), train_size=1440, random_state=0
    )
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    optimizer = keras.optimizers.SGD(momentum=0.9)
    model.compile(
        optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    # Epoch, ranks, batches from and to.
    for epoch, ranks, begin, end in (
        (0, 3, 0, 15),
        (1, 3, 0, 5),
        (1, 2, 5, 22),
        (2, 2, 0, 22),
    ):
        order = np.random.default_rng(epoch).permutation(len(x))
        rows = order[begin * 32 * ranks : end * 32 * ranks]
        optimizer.learning_rate = 0.02 * ranks
        model.fit(x[rows] / 16, y[rows], 32 * ranks, shuffle=False, verbose=0)
    expected = model.get_weights()
    _, accuracy = model.evaluate(x_test / 16, y_test, verbose=0)
    assert f"test accuracy {accuracy:.3f}"[:-1] in output
    model.load_weights(weights, skip_mismatch=False)
    for got, value in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(got, value, atol=1e-4)


# How a rank ends before the others can go on without it, and with what status.
@pytest.mark.skipif(not _GOES_ON, reason="this MPI ends with any of its ranks")
@pytest.mark.parametrize(
    ("end", "status"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", 137)]
)
def test_a_rank_that_never_starts_ends_the_job(run_job, end, status):
    job = run_job(
        2,
        f"""
import os, sys
if os.environ["OMPI_COMM_WORLD_RANK"] == "1": {end}
from mpi4py import MPI
""",
        options=["--elastic"],
    )
    assert job.returncode == status, job.stdout


@pytest.mark.skipif(not _GOES_ON, reason="this MPI ends with any of its ranks")
def test_a_process_set_of_all_that_are_left(run_job):
    job = run_job(
        3,
        """
import os, signal
import tfring

tfring.init()

@tfring.elastic.run
def train(state):
    pair = tfring.add_process_set([0, 1])
    if pair.included():
        total = tfring.allreduce(1.0, op=tfring.Sum, process_set=pair)
        print(tfring.size(), "ranks, of which", int(total), "have a set")
    if tfring.size() == 3 and tfring.rank() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    tfring.barrier()

train(tfring.elastic.ObjectState(tfring.broadcast_object))
""",
        options=["--elastic"],
    )
    assert job.returncode == 0, job.stdout
    for size in (3, 2):
        line = f"{size} ranks, of which 2 have a set"
        assert job.stdout.count(line) == 2, job.stdout


def test_a_rank_that_does_not_come_back(run_job):
    job = run_job(
        2,
        """
import tfring

tfring.init()

@tfring.elastic.run
def train(state):
    if tfring.rank() == 1:
        raise ValueError("not the job's")
    tfring.barrier()

state = tfring.elastic.ObjectState(tfring.broadcast_object)
try:
    train(state)
except ValueError:
    tfring.shutdown()
    import time
    time.sleep(1000)
""",
        env={"TFRING_STALL_SHUTDOWN_TIME_SECONDS": "5"},
    )
    assert job.returncode == 1, job.stdout
    assert "some have not come for 5 s" in job.stdout


def test_another_mpi_is_told_apart(start):
    if _GOES_ON:
        pytest.skip("this MPI goes on")
    job = start([*TFRINGRUN, "--elastic", "-np", "2", "true"])
    output, _ = job.communicate(timeout=JOB_SECONDS)
    assert job.returncode == 2
    assert "--elastic needs" in output
