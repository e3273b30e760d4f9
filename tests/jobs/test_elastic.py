"""Jobs of `tfring.elastic.run`: the example, process sets, jobs of MPI."""

import itertools
import re
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from elastic_launches import PATIENT
from jobs import TFRINGRUN, WHOLE
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from tfring.launcher.stages import Stage

EXAMPLES = Path(__file__).parents[2] / "examples"
EPOCHS, BATCH_SIZE = 3, 32


@pytest.mark.parametrize(
    "shard_states", [False, pytest.param(True, marks=pytest.mark.thorough)]
)
def test_the_example_trains_on_each_image_once(run, tmp_path, shard_states):
    """It is the same training on the batches of all ranks at once.

    So a commit that has not been taken back to, an average over the ranks that
    there were, or momenta that are lost with a rank, would show in the weights.
    """
    weights = tmp_path / "all.weights.h5"
    output = run(
        [
            *(*TFRINGRUN, "-np", "3", "--elastic", "--verbose"),
            *(sys.executable, EXAMPLES / "elastic.py", f"--weights={weights}"),
            *(f"--epochs={EPOCHS}", "--kill_in_epoch=2"),
            f"--shard_states={shard_states}",
        ],
        env={**WHOLE, **PATIENT},
    )
    assert "killed by SIGKILL" in output
    assert "weights identical on all ranks: yes" in output
    # At the end, where the seconds went.
    told = re.findall(r"^tfringrun: +\d+\.\d\d s until (.*)$", output, re.M)
    assert told == [stage.value for stage in Stage]

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
    starts = [
        (int(epoch) - 1, int(image) - 1, int(ranks))
        for epoch, image, ranks in re.findall(
            r"from epoch (\d+), image (\d+), on (\d+) ranks", output
        )
    ]
    # It was killed before the 8th batch, and each 5th is committed.
    assert starts[:2] == [(0, 0, 3), (1, 5 * 3 * BATCH_SIZE, 2)]
    for (epoch, taken, ranks), until in itertools.pairwise(
        [*starts, (EPOCHS, 0, 0)]
    ):
        optimizer.learning_rate = 0.02 * ranks
        while (epoch, taken) < until[:2]:
            order = np.random.default_rng(epoch).permutation(len(x))
            end = until[1] if epoch == until[0] else len(x)
            steps = (end - taken) // (BATCH_SIZE * ranks)
            rows = order[taken:][: steps * BATCH_SIZE * ranks]
            if steps > 0:
                images = (x[rows] / 16, y[rows])
                model.fit(*images, BATCH_SIZE * ranks, shuffle=False, verbose=0)
            if epoch == until[0]:
                break
            epoch, taken = epoch + 1, 0
    expected = model.get_weights()
    _, accuracy = model.evaluate(x_test / 16, y_test, verbose=0)
    assert f"test accuracy {accuracy:.3f}"[:-1] in output
    model.load_weights(weights, skip_mismatch=False)
    for got, value in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(got, value, atol=1e-4)


def test_a_process_set_of_all_that_are_left(run_job):
    output = run_job(
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
    tfring.barrier()
    if tfring.size() == 3 and tfring.rank() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    tfring.barrier()

train(tfring.elastic.ObjectState(tfring.broadcast_object))
""",
        options=["--elastic"],
        env=PATIENT,
    )
    for size in (3, 2):
        line = f"{size} ranks, of which 2 have a set"
        assert output.count(line) == 2, output


def test_a_rank_is_lost_within_a_round(run_job):
    """All go back to the last meeting; who joins has the outer state, too."""
    output = run_job(
        2,
        """
import os, signal
import keras
import numpy as np
import tfring

tfring.init()
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
optimizer = tfring.DistributedOptimizer(
    keras.optimizers.SGD(0.01), sync=tfring.DiLoCo(every=4)
)
model.compile(optimizer, "mse")
state = tfring.elastic.KerasState(model, step=0)
worker = os.environ["TFRING_ELASTIC_WORKER"]

@tfring.elastic.run
def train(state):
    print("begins at step", state.step, "of", tfring.size())
    while state.step < 12 or tfring.size() < 2:
        x = np.random.default_rng(tfring.rank()).normal(size=(8, 4))
        model.train_on_batch(x, x.sum(1, keepdims=True))
        state.step += 1
        if worker == "w2" and state.step == 6:
            os.kill(os.getpid(), signal.SIGKILL)
        state.commit()

train(state)
optimizer.meet()
print("digest", np.concatenate(model.get_weights(), None).tobytes().hex())
""",
        options=["--elastic"],
        env=PATIENT,
    )
    assert output.count("begins at step 0 of 2") == 2
    assert output.count("begins at step 4 of 1") == 1
    digests = re.findall(r"digest (\w+)", output)
    assert len(digests) == 2
    assert digests[0] == digests[1]


def test_who_comes_later_joins_the_training_that_the_others_are_in(run_job):
    output = run_job(
        2,
        """
import os, signal, time
import tfring

tfring.init()
worker = os.environ["TFRING_ELASTIC_WORKER"]

@tfring.elastic.run
def first(state):
    state.sum = float(tfring.allreduce(1.0, op=tfring.Sum))
    state.commit()
    return [state.sum]

@tfring.elastic.run
def second(state):
    while state.steps < 3 or tfring.size() < 2:
        if worker == "w2" and state.steps == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        state.total += float(tfring.allreduce(1.0))
        state.steps += 1
        state.commit()
    return None

sums = first(tfring.elastic.ObjectState(tfring.broadcast_object, sum=0))
state = tfring.elastic.ObjectState(
    tfring.broadcast_object, steps=0, total=sums[0] if worker != "w3" else 99
)
second(state)
print(worker, sums, state.total - state.steps)
""",
        options=["--elastic"],
        env=PATIENT,
    )
    for worker in ("w1", "w3"):
        assert f"{worker} [2.0] 2.0" in output, output


def test_a_rank_that_does_not_come_back(run_job):
    output = run_job(
        2,
        """
import os
import tfring

tfring.init()
# From here on: the ranks need longer for their imports.
os.environ["TFRING_INIT_TIMEOUT_SECONDS"] = "5"

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
        status=1,
    )
    assert "rank 1 did not come" in output
