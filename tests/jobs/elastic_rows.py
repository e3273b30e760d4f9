"""`tfring.elastic.fit` of a model that counts rows, for test_elastic_rows.py.

    elastic_rows.py DATA [jit_compile]

Each row has a weight, and training on the row increments it. One worker is
killed in the middle of an epoch. The script runs no code between a new start
and the next step, so the remaining workers continue with their traces.
"""

import json
import os
import signal
import sys

import keras
import numpy as np
import tensorflow as tf

import tfring

ROWS, BATCH, EPOCHS, RANKS = 203, 2, 3, 3
KILLED_IN = (1, 7)
WORKER = os.environ.get("TFRING_ELASTIC_WORKER", "")


def one_hot(rows):
    return tf.one_hot(rows, ROWS), tf.zeros([tf.size(rows), 1])


class Numbered(keras.utils.PyDataset):
    def __len__(self):
        return ROWS // BATCH

    def __getitem__(self, index):
        rows = np.arange(index * BATCH, (index + 1) * BATCH)
        return np.eye(ROWS, dtype="float32")[rows], np.zeros((BATCH, 1))


def left(epoch, taken):
    mine = tfring.data.shard(
        tf.data.Dataset.range(ROWS), seed=epoch, skip=taken
    )
    return mine.batch(BATCH, drop_remainder=True).map(one_hot)


DATA = {
    "PyDataset": lambda: {"x": Numbered(workers=2)},
    "Dataset": lambda: {
        "x": tf.data.Dataset.range(ROWS)
        .batch(BATCH, drop_remainder=True)
        .map(one_hot)
    },
    "function": lambda: {"x": left, "batch_size": BATCH},
    "arrays": lambda: {
        "x": np.eye(ROWS, dtype="float32"),
        "y": np.zeros((ROWS, 1)),
        "batch_size": BATCH,
    },
}


class Killed(keras.callbacks.Callback):
    """Has no code that runs between a new start and the next step."""

    epoch = 0

    def on_train_batch_end(self, batch, logs=None):
        if batch == 0:
            print(f"{tfring.size()} ranks in epoch {self.epoch}", flush=True)
        # At the end of the batch before.
        if WORKER == "w2" and (self.epoch, batch + 1) == KILLED_IN:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_epoch_end(self, epoch, logs=None):
        self.epoch = epoch + 1


def main():
    tfring.init()
    model = keras.Sequential(
        [
            keras.Input((ROWS,)),
            keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros"),
        ]
    )
    # The mean of a rank's rows, and the sum of all ranks' means.
    model.compile(
        tfring.DistributedOptimizer(
            keras.optimizers.SGD(float(BATCH)), op=tfring.Sum
        ),
        loss=lambda targets, outputs: -outputs,
        jit_compile="jit_compile" in sys.argv,
    )
    tfring.elastic.fit(
        model,
        **DATA[sys.argv[1]](),
        epochs=EPOCHS,
        callbacks=[Killed()],
        verbose=2,
    )
    counts = model.get_weights()[0].ravel().tolist()
    print("counts", json.dumps(counts), flush=True)


if __name__ == "__main__":
    main()
