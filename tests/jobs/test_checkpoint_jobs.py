"""callbacks.Checkpoint: whole jobs that are killed, or told to end, go on."""

import os
import random
import re
import signal
import sys
from pathlib import Path

import pytest
from jobs import SLOW, TFRINGRUN, printed

COUNTED_ROWS = Path(__file__).parents[1] / "parallel/counted_rows.py"

SCRIPT = (
    SLOW
    + """
import hashlib
import importlib
import sys
import numpy as np

hvd = importlib.import_module(sys.argv[1])
hvd.init()
keras.utils.set_random_seed(1)
model = keras.Sequential([
    keras.Input((8,)), keras.layers.Dense(8, activation="relu"),
    keras.layers.Dropout(0.2), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam()), "mse")

x = np.random.default_rng(tfring.rank()).normal(size=(160, 8))
history = model.fit(
    x, x.sum(1), batch_size=8, epochs=4, verbose=0, callbacks=[
        hvd.callbacks.BroadcastGlobalVariablesCallback(0), Slow(),
        hvd.callbacks.LearningRateWarmupCallback(1e-3, warmup_epochs=3),
        tfring.callbacks.Checkpoint(
            "checkpoints", every_steps=3, requeue=True)])
values = b"".join(v.tobytes() for v in model.get_weights())
print("result", hashlib.sha256(values).hexdigest(), history.history["loss"])
"""
)
# The steps of an epoch.
STEPS = 20


def step_in(output):
    """Returns the first step in some output, or None."""
    found = re.search(r"step (\d+) (\d+)\n", output)
    return found and STEPS * int(found[1]) + int(found[2])


@pytest.fixture
def train(start, write_script, tmp_path):
    """Returns a function that trains, and does something at a step.

    It returns the exit status, the first step and the output.
    """
    script = write_script(SCRIPT)
    scontrol = tmp_path / "scontrol"
    scontrol.write_text('#!/bin/sh\necho "$*" $(ls checkpoints) >> asked\n')
    scontrol.chmod(0o755)
    slurm = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "17",
    }

    def train(ranks=2, at_step=None, act=None, names="tfring"):
        options = ["--horovod"] if names.startswith("horovod") else []
        command = [*TFRINGRUN, *options, "-np", ranks]
        process = start([*command, sys.executable, script, names], env=slurm)
        lines = []
        for line in process.stdout:
            lines.append(line)
            if at_step is not None and step_in(line) == at_step:
                process.send_signal(act)
        output = "".join(lines)
        return process.wait(), step_in(output), output

    return train


def test_a_warning_of_the_batch_system(train, tmp_path):
    """The script is one of Horovod's, under `tfringrun --horovod`."""
    names = "horovod.tensorflow.keras"
    status, first, output = train(at_step=30, act=signal.SIGUSR1, names=names)
    assert (status, first) == (75, 0), output
    assert re.search(
        r"^tfringrun: rank \d \(host \S+\) has saved and asks for another "
        r"start: exit status 75\.$",
        output,
        re.MULTILINE,
    )
    assert "failed first" not in output
    # One rank has asked, once, and the checkpoints remain.
    [asked] = (tmp_path / "asked").read_text().splitlines()
    found = sorted(each.name for each in (tmp_path / "checkpoints").iterdir())
    assert asked.split() == ["requeue", "17", *found]
    status, first, output = train(at_step=60, act=signal.SIGTERM, names=names)
    assert status == 75, output
    # The checkpoint is of the step after which the ranks have agreed.
    assert first > 30, output


@pytest.mark.thorough
@pytest.mark.timeout(400)
@pytest.mark.parametrize("names", ["tfring", "horovod.tensorflow.keras"])
def test_a_job_that_is_killed_at_random(train, tmp_path, names):
    def result(output):
        return set(re.findall(r"result (.*)", output))

    status, _, output = train(names=names)
    assert status == 0, output
    (tmp_path / "checkpoints").rename(tmp_path / "uninterrupted")
    steps = random.Random(0)
    reached = 0
    while True:
        at_step = reached + steps.randrange(5, 30)
        status, first, again = train(
            at_step=at_step, act=signal.SIGKILL, names=names
        )
        if status == 0:
            break
        # Checkpoints that were being written may be lost, but no others.
        assert first >= reached - 3, again
        reached = first
    assert len(result(output)) == 2  # Each rank has losses of its own.
    assert result(again) == result(output)


@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_other_ranks_train_on_each_row_once_in_an_epoch(start):
    kinds = ["arrays", "batches", "dataset", "repeated", "endless"]

    def counts(ranks, epoch, step):
        command = [sys.executable, COUNTED_ROWS, epoch, step, *kinds]
        process = start([*TFRINGRUN, "-np", ranks, *command])
        output = process.stdout.read()
        assert process.wait() == 0, output
        return printed(output, "counts")

    for kind, rows in [*counts(2, 0, 7), *counts(3, 0, 6)]:
        assert max(rows) == 1, kind
    for kind, rows in counts(1, 3, 0):
        assert set(rows) == {3.0}, kind


TABLE = """
import sys
import keras, numpy as np
import tfring, tfring.layers

tfring.init()
if sys.argv[1] == "train":
    model = keras.Sequential([
        keras.Input((3,), dtype="int32"), tfring.layers.ShardedEmbedding(9, 4),
        keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile(tfring.DistributedOptimizer(keras.optimizers.Adam()), "mse")
    x = np.arange(24).reshape(8, 3) % 9
    model.fit(x, x.sum(1), verbose=0, callbacks=[
        tfring.callbacks.BroadcastGlobalVariablesCallback(0),
        tfring.callbacks.Checkpoint("checkpoints")])
else:
    model = keras.models.load_model("model.keras")
x = np.arange(24).reshape(8, 3) % 9
print("result", model.predict(x, verbose=0).ravel().round(5).tolist())
"""


@pytest.mark.thorough
def test_a_keras_file_of_a_sharded_table(start, write_script):
    """The process that makes the file has not imported tfring's layers."""
    script = write_script(TABLE)

    def output_of(*command):
        process = start(command)
        output = process.stdout.read()
        assert process.wait() == 0, output
        return output

    trained = output_of(*TFRINGRUN, "-np", 2, sys.executable, script, "train")
    command = "-m", "tfring.checkpoint", "checkpoints", "--to", "model.keras"
    output_of(sys.executable, *command)
    made = output_of(sys.executable, script, "load")
    [result] = re.findall(r"result (.*)", made)
    assert re.findall(r"result (.*)", trained) == [result, result]
