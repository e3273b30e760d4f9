"""elastic.fit with a Checkpoint: a whole elastic job ends, and goes on."""

import random
import re
import signal
import sys

import pytest
from elastic_launches import PATIENT
from jobs import SLOW, TFRINGRUN, printed

# Training on a row increments its weight.
SCRIPT = (
    SLOW
    + """
import json
import numpy as np

ROWS, BATCH = 120, 2
tfring.init()
model = keras.Sequential([
    keras.Input((ROWS,)),
    keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
model.compile(
    tfring.DistributedOptimizer(
        keras.optimizers.SGD(float(BATCH)), op=tfring.Sum),
    keras.losses.MeanAbsoluteError())

tfring.elastic.fit(
    model, np.eye(ROWS, dtype="float32"), np.full((ROWS, 1), 1e9),
    batch_size=BATCH, epochs=3, verbose=0,
    callbacks=[
        Slow(), tfring.callbacks.Checkpoint("checkpoints", every_steps=2)])
print("counts", json.dumps(model.get_weights()[0].ravel().tolist()))
"""
)
LOOP = """
import json, time
import keras
import tensorflow as tf
import tfring

ROWS, BATCH = 120, 2
tfring.init()
model = keras.Sequential([
    keras.Input((ROWS,)),
    keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
optimizer = tfring.DistributedOptimizer(
    keras.optimizers.SGD(1.0), op=tfring.Sum)
model.compile(optimizer)
state = tfring.elastic.TensorFlowKerasState(model, optimizer)
saved = tfring.Checkpoint("loop", model, state=state, every_steps=2)

@tfring.elastic.run
def train(state):
    saved.restore()
    while saved.epoch < 3:
        order = tfring.data.shard(
            tf.data.Dataset.range(ROWS),
            seed=saved.epoch, skip=saved.taken * BATCH)
        for rows in order.batch(BATCH, drop_remainder=True):
            time.sleep(0.01)
            if tfring.rank() == 0:
                print(f"step {saved.epoch} {saved.taken}", flush=True)
            with tf.GradientTape() as tape:
                loss = -tf.reduce_sum(model(tf.one_hot(rows, ROWS)))
            weights = model.trainable_variables
            optimizer.apply(tape.gradient(loss, weights), weights)
            saved.step()
        saved.end_epoch()
    saved.close()

train(state)
print("counts", json.dumps(model.get_weights()[0].ravel().tolist()))
"""
EPOCHS, ROWS, BATCH = 3, 120, 2


@pytest.fixture(params=[SCRIPT])
def train(request, start, write_script):
    """Returns a function that trains, and signals the job after some steps.

    It returns the exit status and the output.
    """
    script = write_script(request.param)

    def train(*options, after=None, act=None):
        process = start(
            [*TFRINGRUN, *options, sys.executable, script], env=PATIENT
        )
        lines, steps = [], 0
        for line in process.stdout:
            lines.append(line)
            steps += "step" in line
            if steps == after:
                process.send_signal(act)
                after = None
        return process.wait(), "".join(lines)

    return train


def elastic(ranks):
    return ("--elastic", "-np", ranks, "--min-np", ranks, "--max-np", ranks)


def test_it_goes_on_with_fewer_ranks(train):
    status, output = train(*elastic(2), after=35, act=signal.SIGUSR1)
    assert status == 75, output
    assert "has saved and asks for another start: exit status 75" in output
    status, output = train("-np", 1)
    assert status == 0, output
    assert re.search(r"step (\d+)", output)[1] == "1"
    assert printed(output, "counts") == [ROWS * [float(EPOCHS)]]


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("train", [SCRIPT, LOOP], indirect=True)
def test_it_is_killed_and_has_other_ranks_each_time(train):
    """Each row is once in an epoch, or too few were left for a step."""
    chance = random.Random(0)
    for ranks in (3, 2, 3, 1):
        after = chance.randrange(5, 12)
        act = chance.choice([signal.SIGKILL, signal.SIGTERM])
        _, output = train(*elastic(ranks), after=after, act=act)
        assert "counts" not in output
    status, output = train("-np", 2)
    assert status == 0, output
    for counts in printed(output, "counts"):
        assert max(counts) == EPOCHS
        assert sum(counts) > EPOCHS * (ROWS - 3 * BATCH)
