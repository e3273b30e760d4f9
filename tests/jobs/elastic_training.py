"""Training with injected faults of workers, for test_elastic_tcp.py.

TFRING_TEST_FAULTS is a JSON list of [worker, step, fault]; at step -1 a worker
has another model.
"""

import ctypes
import json
import os
import signal
import sys

import keras
import numpy as np

import tfring

EPOCHS, BATCHES, BATCH_SIZE = 3, 20, 8
FEATURES = 16
IMAGES = 960


def data():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(IMAGES, FEATURES)).astype("float32")
    return x, (x[:, :1] - 2 * x[:, 1:2]).astype("float32")


def make_model(optimizer, units=32):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(units, activation="tanh"),
            keras.layers.Dense(1),
        ]
    )
    model.compile(optimizer, "mse")
    return model


def order_of(epoch, ranks):
    """Returns the rows of an epoch; the ranks of a step take them in turn."""
    order = np.random.default_rng(epoch).permutation(IMAGES)
    return order[: BATCHES * BATCH_SIZE * ranks]


def own_faults():
    """Returns the faults of this worker by step."""
    worker = os.environ["TFRING_ELASTIC_WORKER"]
    return {
        step: fault
        for name, step, fault in json.loads(os.environ["TFRING_TEST_FAULTS"])
        if name == worker
    }


class Faults(keras.callbacks.Callback):
    """Fails where the test wants it, and counts the steps that are begun."""

    def __init__(self, state):
        super().__init__()
        self.state = state
        self.begun = 0
        self.first = None
        self.faults = own_faults()

    def on_train_batch_begin(self, batch, logs=None):
        self.begun += 1
        step = self.state.epoch * BATCHES + self.state.batch
        if self.first is None:
            self.first = step
        match self.faults.get(step):
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "hang":
                # The interpreter with all of its threads.
                ctypes.PyDLL(None).sleep(1000)
            case "exception":
                raise ArithmeticError("as the test wants it")
            case "exit":
                sys.exit(3)
            case "terminate":
                os.kill(os.getpid(), signal.SIGTERM)


@tfring.elastic.run
def train(state, x, y, callbacks):
    rank, size = tfring.rank(), tfring.size()
    while state.epoch < EPOCHS:
        begin = state.batch * BATCH_SIZE * size
        own = order_of(state.epoch, size)[begin + rank :: size]
        state.model.fit(
            x[own],
            y[own],
            BATCH_SIZE,
            shuffle=False,
            callbacks=callbacks,
            verbose=0,
        )


def main():
    tfring.init()
    began_with = tfring.size()
    x, y = data()
    model = make_model(
        tfring.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9)),
        units=33 if -1 in own_faults() else 32,
    )
    state = tfring.elastic.KerasState(model, epoch=0, batch=0)
    faults = Faults(state)
    train(
        state,
        x,
        y,
        [
            faults,
            tfring.elastic.UpdateEpochStateCallback(state),
            tfring.elastic.UpdateBatchStateCallback(state),
            tfring.elastic.CommitStateCallback(state),
        ],
    )
    result = {
        "worker": os.environ["TFRING_ELASTIC_WORKER"],
        "began with": began_with,
        "rank": tfring.rank(),
        "size": tfring.size(),
        "first": faults.first,
        "begun": faults.begun,
        "weights": [weight.tobytes().hex() for weight in model.get_weights()],
    }
    print("result", json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
