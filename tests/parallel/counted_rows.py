"""Trainings whose weights say how often each row was trained on.

    counted_rows.py EPOCH STEP KIND...

As a program it trains on data of each kind, up to a step of an epoch or to the
end, with a checkpoint, and prints the counts.
"""

import contextlib
import json
import sys

import keras
import numpy as np
import tensorflow as tf
from helpers import CutOffError, compiled

import tfring

ROWS, BATCH, EPOCHS = 100, 4, 3
# The kinds of data that other ranks go on with in the middle of an epoch.
KINDS = ("arrays", "batches", "dataset", "repeated", "endless")


class CutOffAt(keras.callbacks.Callback):
    """Ends a training before a step, when its last checkpoint is complete."""

    def __init__(self, checkpoint, epoch, step):
        super().__init__()
        self.checkpoint = checkpoint
        self.when = epoch, step

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if (self.epoch, batch) >= self.when:
            self.checkpoint._saver.wait()
            raise CutOffError


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return ROWS // BATCH

    def __getitem__(self, index):
        return data_of(np.arange(index * BATCH, (index + 1) * BATCH))


def data_of(rows):
    return np.eye(ROWS, dtype="float32")[rows], np.full((len(rows), 1), 1e9)


def arguments(kind, rank, size):
    """Returns the arguments of `fit` with data of a kind."""
    if kind == "batches":
        return {"x": Batches()}
    if kind.endswith("arrays"):
        own = slice(rank, None, size) if kind == "own arrays" else slice(None)
        x, y = data_of(np.arange(ROWS)[own])
        return {"x": x, "y": y, "batch_size": BATCH}
    if kind.startswith("unseeded"):
        return own_dataset(kind, rank, size)
    rows, seed = tf.data.Dataset.range(ROWS), 3
    if kind == "endless":
        # A shuffle would mix the rows of two epochs.
        rows, seed = rows.repeat(), None
    own = tfring.data.shard(rows, seed=seed)
    if kind == "shuffled":
        own = own.shuffle(9, seed=1)
    own = own.map(of_row).batch(BATCH).prefetch(2)
    if kind == "dataset":
        return {"x": own}
    if kind == "endless":
        return {"x": own, "steps_per_epoch": ROWS // size // BATCH}
    return {"x": own.repeat(), "steps_per_epoch": int(own.cardinality())}


def of_row(row):
    return tf.one_hot(row, ROWS), [1e9]


def own_dataset(kind, rank, size):
    """Returns the rank's own rows, in an order that no seed gives again."""
    rows = tf.data.Dataset.range(ROWS).shard(size, rank)
    rows = rows.shuffle(ROWS // 2 if "smaller" in kind else ROWS)
    if "repeated" in kind:
        rows = rows.repeat()
    if "unknown" in kind:
        rows = rows.filter(lambda row: True)
    if "function" in kind:
        rows = rows.map(
            lambda row: tf.ensure_shape(
                tf.numpy_function(lambda each: each, [row], tf.int64), []
            )
        )
    rows = rows.map(of_row, num_parallel_calls=2).batch(BATCH).prefetch(2)
    if "repeated" in kind:
        return {"x": rows, "steps_per_epoch": ROWS // size // BATCH}
    return {"x": rows}


def count(kind, folder, cut_off, rank, size, **options):
    """Trains up to `cut_off`, an epoch and a step; returns the counts."""
    # Training on a row increments its weight.
    model = compiled(
        tfring.DistributedOptimizer(keras.optimizers.SGD(1.0), op=tfring.Sum),
        keras.Input((ROWS,)),
        keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros"),
        loss=keras.losses.MeanAbsoluteError(reduction="sum"),
        **options,
    )
    checkpoint = tfring.callbacks.Checkpoint(
        folder, every_steps=1, of_all_ranks=kind in ("arrays", "batches")
    )
    with contextlib.suppress(CutOffError):
        model.fit(
            **arguments(kind, rank, size),
            epochs=EPOCHS,
            verbose=0,
            callbacks=[checkpoint, CutOffAt(checkpoint, *cut_off)],
        )
    return model.get_weights()[0].ravel()


def main():
    tfring.init()
    epoch, step, *kinds = sys.argv[1:]
    for kind in kinds:
        cut_off = int(epoch), int(step)
        counts = count(kind, kind, cut_off, tfring.rank(), tfring.size())
        print("counts", json.dumps([kind, counts.tolist()]), flush=True)


if __name__ == "__main__":
    main()
