"""A rank is killed, and those that are left go on from the last commit."""

import re

import pytest
from jobs import TFRINGRUN

from tfring import _build_info
from tfring.run import mpi_launchers

_LAUNCHER = mpi_launchers.find_launcher(
    _build_info.MPI_VERSION, _build_info.MPIRUN
)
_GOES_ON = (
    _LAUNCHER.family is mpi_launchers.Family.OPEN_MPI and _LAUNCHER.major >= 5
)

# Rank 1 of 3 is killed before the third batch of the second epoch. Every rank
# has data of its own, so that the result tells whose batches were in it.
TRAINING = """
import os
import keras
import numpy as np
import tfring

EPOCHS, BATCHES = 2, 5
RATE = 0.1

tfring.init()
rank, size = tfring.rank(), tfring.size()
x = np.random.default_rng(rank).normal(size=(BATCHES, 3)).astype("float32")
y = x.sum(axis=1, keepdims=True) + rank
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(RATE, momentum=0.9)
model.compile(tfring.DistributedOptimizer(optimizer), "mse")
model.set_weights([np.full((3, 1), 1.0 + rank), np.zeros(1)])
state = tfring.elastic.KerasState(model, batch=0, epoch=0)
sizes = []
state.register_reset_callbacks([lambda: sizes.append(tfring.size())])

class Die(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if (rank, state.epoch, state.batch) == (1, 1, 2):
            os.kill(os.getpid(), 9)

@tfring.elastic.run
def train(state):
    while state.epoch < EPOCHS:
        rest = slice(state.batch, None)
        model.fit(x[rest], y[rest], 1, shuffle=False, verbose=0, callbacks=[
            Die(),
            tfring.elastic.UpdateEpochStateCallback(state),
            tfring.elastic.UpdateBatchStateCallback(state),
            tfring.elastic.CommitStateCallback(state)])
    return "trained"

assert train(state) == "trained"
assert sizes == [2], sizes
assert (tfring.rank(), tfring.size()) == (rank // 2, 2)

# The same in NumPy.
kernel, bias = np.full(3, 1.0), 0.0
velocity = [np.zeros(3), 0.0]
data = [np.random.default_rng(r).normal(size=(BATCHES, 3)) for r in range(3)]
for step in range(EPOCHS * BATCHES):
    ranks = [0, 1, 2] if step < BATCHES + 2 else [0, 2]
    gradients = [np.zeros(3), 0.0]
    for r in ranks:
        one = data[r][step % BATCHES].astype("float32")
        error = 2 * (one @ kernel + bias - (one.sum() + r)) / len(ranks)
        gradients = [gradients[0] + error * one, gradients[1] + error]
    velocity = [0.9 * v - RATE * g for v, g in zip(velocity, gradients)]
    kernel, bias = kernel + velocity[0], bias + velocity[1]
np.testing.assert_allclose(model.get_weights()[0][:, 0], kernel, rtol=1e-4)
np.testing.assert_allclose(model.get_weights()[1][0], bias, rtol=1e-4)
print("weights", b"".join(w.tobytes() for w in model.get_weights()).hex())
"""


@pytest.mark.skipif(not _GOES_ON, reason="this MPI ends with any of its ranks")
def test_the_others_go_on_when_a_rank_is_killed(run_job):
    job = run_job(3, TRAINING, timeout=120, options=["--elastic"])
    assert job.returncode == 0, job.stdout
    weights = re.findall(r"^\[(\d)\] weights (\w+)$", job.stdout, re.MULTILINE)
    assert sorted(rank for rank, _ in weights) == ["0", "2"], job.stdout
    assert weights[0][1] == weights[1][1]


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
    time.sleep(50)
""",
        env={"TFRING_STALL_SHUTDOWN_TIME_SECONDS": "5"},
    )
    assert job.returncode == 1, job.stdout
    assert "some have not come for 5 s" in job.stdout


def test_another_mpi_is_told_apart(start):
    if _GOES_ON:
        pytest.skip("this MPI goes on")
    job = start([*TFRINGRUN, "--elastic", "-np", "2", "true"])
    output, _ = job.communicate(timeout=30)
    assert job.returncode == 2
    assert "--elastic needs" in output
