"""Elastic training with injected faults.

    elastic_training.py FOLDER momentum|adam|shards|parameters run|fit

With `tfring.elastic.run`, a step uses the same rows for any number of ranks, so
that the weights equal the weights of an undisturbed run. With
`tfring.elastic.fit`, a validation follows each short epoch. The script trains
twice; only the second training is tested. It forks children.

A worker records its steps in `FOLDER/progress/NAME`, reads a fault such as
"commit kill" or "step kill 13", of the 13th step, from `FOLDER/faults/NAME`,
and fails at its start while there is a file `FOLDER/faults/joiners`. It trains
until the file `FOLDER/enough` exists, and so many steps as that file says.
"""

import contextlib
import ctypes
import functools
import hashlib
import json
import multiprocessing
import os
import random
import signal
import socket
import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tfring
from tfring._core import runtime, tcp_job
from tfring.elastic import fitting

# Every number of ranks up to eight divides it.
STEP_ROWS = 840
EPOCH_STEPS = 40
FEATURES = 16
# The batch size of a rank in `fit`, and the steps of an epoch on five ranks.
FIT_BATCH, FIT_STEPS = 24, 12
# The length of the first training, in steps or epochs.
FIRST = {"run": 8, "fit": 1}
_STEPS_PER_CHILD = 7
_NAME = os.environ.get("TFRING_ELASTIC_WORKER", "")


def data():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(STEP_ROWS * EPOCH_STEPS, FEATURES))
    noise = generator.normal(size=(len(x), 1))
    y = x[:, :1] - 2 * x[:, 1:2] + noise
    return x.astype("float32"), y.astype("float32")


class Traced(keras.layers.Layer):
    """Records the job of each trace of a step, by its number in the process."""

    def call(self, inputs, training=False):
        if training and State.harm and not tf.executing_eagerly():
            State.harm.note("traced", runtime.job_number())
        return inputs


def make_model(optimizer, units=32, scope=contextlib.nullcontext):
    keras.utils.set_random_seed(0)
    with scope():
        model = keras.Sequential(
            [
                keras.Input((FEATURES,)),
                Traced(),
                keras.layers.Dense(units, activation="tanh"),
                keras.layers.Dense(1),
            ]
        )
    model.compile(optimizer, "mse", jit_compile=False)
    return model


def make_optimizer(kind):
    if kind in ("momentum", "parameters"):
        return keras.optimizers.SGD(0.01, momentum=0.9)
    # A large epsilon does not magnify rounding errors of small gradients.
    return keras.optimizers.Adam(0.001, epsilon=0.001)


def order_of(epoch):
    return np.random.default_rng(epoch).permutation(STEP_ROWS * EPOCH_STEPS)


def train_alone(optimizer, steps):
    """Returns the weights of the same training in one process, by `run`."""
    x, y = data()
    model = make_model(make_optimizer(optimizer))
    for epoch in range(-(-steps // EPOCH_STEPS)):
        left = steps - epoch * EPOCH_STEPS
        order = order_of(epoch)[: left * STEP_ROWS]
        model.fit(x[order], y[order], STEP_ROWS, shuffle=False, verbose=0)
    return np.concatenate([each.ravel() for each in model.get_weights()])


class Harm:
    """Injects the faults of this worker, and records its steps."""

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

    def at(self, place, step=0):
        """Does what is ordered for here; returns the order."""
        try:
            where, what, *when = self._fault.read_text().split()
        except (FileNotFoundError, ValueError):
            return ""
        if where != place or (when and int(when[0]) != step):
            return ""
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
            case "leave":
                sys.exit(0)
            case "terminate":
                os.kill(os.getpid(), signal.SIGTERM)
            case "hang":
                time.sleep(10_000)
            case "freeze":
                # The interpreter with all of its threads.
                ctypes.PyDLL(None).sleep(10_000)
            case "cut":
                cut_a_connection()
        return what


def cut_a_connection():
    """Ends one of this process's connections, and says nothing."""
    open_ones = []
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if not path.is_socket():
                continue
            found = socket.socket(fileno=os.dup(int(path.name)))
            if found.family == socket.AF_INET:
                found.getpeername()  # or it is none
                open_ones.append(found)
    random.choice(open_ones).shutdown(socket.SHUT_RDWR)
    for each in open_ones:
        each.close()


def fork_a_child():
    """One that is ended by SIGTERM, as data loaders end theirs."""
    child = multiprocessing.get_context("fork").Process(
        target=time.sleep, args=(10_000,)
    )
    child.start()
    child.terminate()
    child.join()


class State(tfring.elastic.KerasState):
    """Injects faults into commits, and records the successful commits."""

    harm: Harm | None = None

    def steps_made(self):
        return int(self.model.optimizer.iterations)

    def save(self):
        self.harm.at("commit")
        super().save()

    def _snapshot(self, is_collective=True):
        snapshot = super()._snapshot(is_collective)
        # This is in the middle of `commit`, and at the end of `sync`.
        if is_collective:
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
                self.harm.note("done", self.steps_made())


class Steps(keras.callbacks.Callback):
    """Records the start of each step, and stops all ranks at the same step."""

    def __init__(self, harm, is_enough, end):
        super().__init__()
        self._harm = harm
        self._is_enough = is_enough
        self._end = end

    def on_train_batch_begin(self, batch, logs=None):
        step = int(self.model.optimizer.iterations)
        self._harm.note("begun", step)
        self._harm.at("step", step)

    def on_train_batch_end(self, batch, logs=None):
        done = int(self.model.optimizer.iterations)
        if done % _STEPS_PER_CHILD == 0:
            fork_a_child()
        enough = tf.constant(float(self._is_enough(done)))
        if tfring.allreduce(enough, op=tfring.Max) > 0:
            self._end()
            self.model.stop_training = True

    def on_test_batch_begin(self, batch, logs=None):
        self._harm.at("validation")


class Position(keras.callbacks.Callback):
    """Counts batches and epochs; the last epoch may be partial."""

    def __init__(self, state):
        super().__init__()
        self._state = state

    def on_train_batch_end(self, batch, logs=None):
        self._state.batch += 1
        if self._state.batch == EPOCH_STEPS:
            self._state.epoch, self._state.batch = self._state.epoch + 1, 0
        self._state.commit()


def train_by_run(model, harm, is_enough, epoch, batch):
    """Trains from a step of an epoch on, and returns the next one."""
    x, y = data()
    state = State(model, epoch=epoch, batch=batch, is_over=False)
    state.register_reset_callbacks([lambda: harm.at("reset")])

    def end():
        state.is_over = True

    @tfring.elastic.run
    def train(state):
        rank, size = tfring.rank(), tfring.size()
        while not state.is_over:
            begin = state.batch * STEP_ROWS
            own = order_of(state.epoch)[begin + rank :: size]
            state.model.fit(
                x[own],
                y[own],
                STEP_ROWS // size,
                shuffle=False,
                callbacks=[Steps(harm, is_enough, end), Position(state)],
                verbose=0,
            )
        harm.at("end")
        return [state.epoch, state.batch]

    return train(state)


def train_by_fit(model, harm, is_enough, epochs, *, keep_traces):
    x, y = (each[: 5 * FIT_BATCH * FIT_STEPS] for each in data())
    return tfring.elastic.fit(
        model,
        x,
        y,
        batch_size=FIT_BATCH,
        epochs=epochs,
        seed=3,
        validation_data=(x[:FIT_BATCH], y[:FIT_BATCH]),
        callbacks=lambda: [
            Steps(harm, is_enough, lambda: None),
            tfring.callbacks.MetricAverageCallback(),
        ],
        reset_callbacks=[lambda: harm.at("reset")],
        verbose=0,
        keep_traces=keep_traces,
    )


def main():
    folder, kind, how = Path(sys.argv[1]), *sys.argv[2:]
    if (folder / "faults" / "joiners").exists():
        sys.exit(3)
    harm = Harm(folder)
    harm.note("started", 0)
    harm.at("import")
    tfring.init()
    another = harm.at("build") == "another"
    model = make_model(
        tfring.DistributedOptimizer(
            make_optimizer(kind), shard_states=kind in ("shards", "parameters")
        ),
        units=33 if another else 32,
        scope=functools.partial(tfring.shard_parameters, min_elements=30)
        if kind == "parameters"
        else contextlib.nullcontext,
    )
    harm.note("built", 0)
    enough = folder / "enough"

    def is_enough(steps):
        return enough.exists() and steps >= int(enough.read_text() or 0)

    State.harm = harm
    fitting.KerasState = State
    if how == "run":
        first = train_by_run(model, harm, lambda n: n >= FIRST[how], 0, 0)
        train_by_run(model, harm, is_enough, *first)
    else:
        fit = functools.partial(
            train_by_fit, model, harm, keep_traces=kind == "adam"
        )
        fit(lambda n: False, FIRST[how])
        fit(is_enough, 10_000)
    with tfring.whole_states(model):
        weights = b"".join(each.tobytes() for each in model.get_weights())
    result = {
        "worker": _NAME,
        "rank": tfring.rank(),
        "size": tfring.size(),
        "steps": int(model.optimizer.iterations),
        "digest": hashlib.sha256(weights).hexdigest(),
        "weights": weights.hex() if tfring.rank() == 0 else "",
    }
    print("result", json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
