"""Elastic jobs with sharded parameters that lose ranks."""

import re

import pytest
from elastic_launches import PATIENT

pytestmark = pytest.mark.thorough

# Both names are this machine, so a job of two hosts runs on it.
HOSTS = "localhost:2,127.0.0.1:2"
SCRIPT = """
import os, signal, time
import keras
import numpy as np
import tensorflow as tf
import tfring
from tfring._memory.parameters import parameter_share

def make(optimizer):
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(32), keras.layers.Dense(8)]
    model = keras.Sequential([keras.Input((16,)), *layers])
    model.compile(optimizer, "mse")
    return model

def make_step(model, step):
    rng = np.random.default_rng(step)
    gradients = []
    for variable in model.trainable_variables:
        whole = rng.normal(size=variable.shape).astype("float32")
        share = parameter_share(variable)
        gradients.append(whole if share is None else share.of(whole))
    model.optimizer.apply(
        list(map(tf.constant, gradients)), model.trainable_variables
    )

tfring.init()
with tfring.shard_parameters(min_elements=64, within=WITHIN):
    model = make(tfring.DistributedOptimizer("adam", shard_states=True))
state = tfring.elastic.KerasState(model, step=0)
worker = os.environ["TFRING_ELASTIC_WORKER"]
host = os.environ["TFRING_ELASTIC_HOST"]

@tfring.elastic.run
def train(state):
    print("begins at step", state.step, "of", tfring.size(), flush=True)
    while state.step < 8:
        if state.step == 3 and worker in FIRST and IS_LOST:
            os.kill(os.getpid(), signal.SIGKILL)
        make_step(model, state.step)
        state.step += 1
        state.commit()
        SAVE

train(state)
with tfring.whole_states(model):
    got = model.get_weights()
alone = make("adam")
for step in range(8):
    make_step(alone, step)
for one, other in zip(got, alone.get_weights(), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
print("as one process", flush=True)
CHECK
"""

# Rank 0 reads weights until the worker `DIES`, which may be its own.
SAVE = """
        with tfring.whole_states(model, 0):
            if tfring.rank() == 0:
                for variable in model.trainable_variables:
                    variable.numpy()
                open("read", "w").close()
            is_lost = state.step == 3 and tfring.size() == 3
            if is_lost and worker == "DIES":
                while not os.path.exists("read"):
                    time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGKILL)
            while is_lost and tfring.rank() == 0:
                for variable in model.trainable_variables:
                    variable.numpy()
            if tfring.rank() == 0:
                model.save_weights("saved.weights.h5")
"""
CHECK = """
tfring.barrier()
alone.load_weights("saved.weights.h5")
for one, other in zip(got, alone.get_weights(), strict=True):
    np.testing.assert_array_equal(one, other)
print("as saved", flush=True)
"""


def script(ranks, is_lost, within=None, save="", check=""):
    first = {f"w{number + 1}" for number in range(ranks)}
    text = SCRIPT.replace("FIRST", repr(first)).replace("IS_LOST", is_lost)
    text = text.replace("        SAVE\n", save).replace("CHECK\n", check)
    return text.replace("WITHIN", repr(within))


@pytest.mark.parametrize("within", [None, "host"])
def test_a_machine_is_lost_and_none_of_its_shares(run_job, within):
    output = run_job(
        4,
        script(4, "host == '127.0.0.1'", within),
        options=["--elastic", "--min-np", "2", "-H", HOSTS],
        env=PATIENT,
    )
    assert output.count("begins at step 0 of 4") == 4
    begun = re.findall(r"begins at step 3 of (\d)", output)
    assert len(begun) == int(begun[0]) >= 2
    assert output.count("as one process") >= 2


def test_a_share_is_lost_with_its_copy(run_job):
    """The job ends with an error that advises `tfring.callbacks.Checkpoint`."""
    output = run_job(
        3,
        script(3, "worker != 'w1'"),
        options=["--elastic", "--min-np", "1"],
        env=PATIENT,
        status=1,
    )
    assert "both were lost at once" in output
    assert "tfring.callbacks.Checkpoint" in output
    assert "as one process" not in output


@pytest.mark.parametrize("dies", ["w1", "w2"])
def test_a_rank_is_lost_while_rank_0_saves(run_job, dies):
    output = run_job(
        3,
        script(3, "False", save=SAVE.replace("DIES", dies), check=CHECK),
        options=["--elastic", "--min-np", "2"],
        env=PATIENT,
    )
    assert output.count("begins at step 3 of") >= 2
    assert output.count("as saved") >= 2
