"""Training that comes to harm, for test_chaos_training.py.

    chaos_training.py FOLDER OPTIMIZER

Each step is on the same rows, whatever the number of ranks, so that the weights
are those of an undisturbed run. A worker writes what it does to
`FOLDER/progress/NAME`, looks for harm in `FOLDER/faults/NAME`, as in "commit
kill", and trains until there is a file `FOLDER/enough`.
"""

import contextlib
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tfring
from tfring._core import tcp_job

# All numbers of ranks up to eight divide it.
STEP_ROWS = 840
EPOCH_STEPS = 40
FEATURES = 16
_NAME = os.environ.get("TFRING_ELASTIC_WORKER", "")


def data():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(STEP_ROWS * EPOCH_STEPS, FEATURES))
    noise = generator.normal(size=(len(x), 1))
    y = x[:, :1] - 2 * x[:, 1:2] + noise
    return x.astype("float32"), y.astype("float32")


def make_model(optimizer):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(32, activation="tanh"),
            keras.layers.Dense(1),
        ]
    )
    model.compile(optimizer, "mse", jit_compile=False)
    return model


def make_optimizer(kind):
    if kind == "momentum":
        return keras.optimizers.SGD(0.01, momentum=0.9)
    # Rounding is not to be magnified where gradients are small.
    return keras.optimizers.Adam(0.001, epsilon=0.001)


def order_of(epoch):
    return np.random.default_rng(epoch).permutation(STEP_ROWS * EPOCH_STEPS)


class Harm:
    """What is to happen to this worker, and the record of what it does."""

    def __init__(self, folder):
        self._fault = folder / "faults" / _NAME
        self._record = (folder / "progress" / _NAME).open(
            "a", buffering=1, encoding="ascii"
        )

    def note(self, kind, step):
        size = tfring.size() if tfring.is_initialized() else 0
        self._record.write(
            f"{kind} {tcp_job._generation} {step} {time.monotonic()} {size}\n"
        )

    def at(self, place):
        try:
            where, what = self._fault.read_text().split()
        except (FileNotFoundError, ValueError):
            return
        if where != place:
            return
        with contextlib.suppress(FileNotFoundError):
            self._fault.unlink()
        match what:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "exception":
                raise ArithmeticError("as the test wants it")
            case "exit":
                sys.exit(3)


class State(tfring.elastic.KerasState):
    def __init__(self, model, harm):
        self.harm = harm
        super().__init__(model, epoch=0, batch=0, is_over=False)

    def steps(self):
        return self.epoch * EPOCH_STEPS + self.batch

    def save(self):
        self.harm.at("commit")
        super().save()

    def _snapshot(self):
        snapshot = super()._snapshot()
        # In `commit` this is in its middle, in `sync` at its end.
        self.harm.at("save")
        return snapshot

    def sync(self):
        self.harm.at("sync")
        super().sync()

    def commit(self):
        try:
            super().commit()
        finally:
            if sys.exc_info()[0] in (
                None,
                tfring.elastic.HostsUpdatedInterrupt,
            ):
                self.harm.note("done", self.steps())


class Steps(keras.callbacks.Callback):
    """Says when a step begins, and ends the training for all at once."""

    def __init__(self, state, enough):
        super().__init__()
        self._state = state
        self._enough = enough

    def on_train_batch_begin(self, batch, logs=None):
        self._state.harm.note("begun", self._state.steps())
        self._state.harm.at("step")

    def on_train_batch_end(self, batch, logs=None):
        enough = tf.constant(float(self._enough.exists()))
        if tfring.allreduce(enough, op=tfring.Max) > 0:
            self._state.is_over = True
            self.model.stop_training = True


class Position(keras.callbacks.Callback):
    """Counts batches and epochs, of which the last may be a part."""

    def __init__(self, state):
        super().__init__()
        self._state = state

    def on_train_batch_end(self, batch, logs=None):
        self._state.batch += 1
        if self._state.batch == EPOCH_STEPS:
            self._state.epoch, self._state.batch = self._state.epoch + 1, 0
        self._state.commit()


@tfring.elastic.run
def train(state, x, y, enough):
    rank, size = tfring.rank(), tfring.size()
    while not state.is_over:
        begin = state.batch * STEP_ROWS
        own = order_of(state.epoch)[begin + rank :: size]
        state.model.fit(
            x[own],
            y[own],
            STEP_ROWS // size,
            shuffle=False,
            callbacks=[Steps(state, enough), Position(state)],
            verbose=0,
        )
    state.harm.at("end")


def main():
    folder, kind = Path(sys.argv[1]), sys.argv[2]
    harm = Harm(folder)
    harm.note("started", 0)
    harm.at("import")
    tfring.init()
    harm.at("build")
    model = make_model(
        tfring.DistributedOptimizer(
            make_optimizer(kind), shard_states=kind == "shards"
        )
    )
    state = State(model, harm)
    state.register_reset_callbacks([lambda: harm.at("reset")])
    harm.note("built", 0)
    train(state, *data(), folder / "enough")
    weights = b"".join(each.tobytes() for each in model.get_weights())
    result = {
        "worker": _NAME,
        "rank": tfring.rank(),
        "size": tfring.size(),
        "steps": state.steps(),
        "iterations": int(model.optimizer.iterations),
        "digest": hashlib.sha256(weights).hexdigest(),
        "weights": weights.hex() if tfring.rank() == 0 else "",
    }
    print("result", json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
