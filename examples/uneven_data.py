"""Ranks with different amounts of data train together, by join.

    tfringrun -np 3 python examples/uneven_data.py

Rank 1 has twice as many samples of wine as rank 0, rank 2 three times as many,
and so they have different numbers of batches. A rank that has no more batches
joins while the others go on without it, until the epoch is over for all.
"""

import hashlib

import keras
import numpy as np
from absl import app, flags
from sklearn.datasets import load_wine

import tfring

_EPOCHS = flags.DEFINE_integer("epochs", 20, "Passes over the samples.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 8, "Samples a step, per rank.")
_MIN_ACCURACY = flags.DEFINE_float("min_accuracy", 0.95, "To end in success.")


class BatchCounter(keras.callbacks.Callback):
    """Counts the batches of this rank's own data."""

    count = 0

    def on_train_batch_end(self, batch, logs=None):
        self.count += 1


def load_data():
    wine = load_wine()
    x = (wine.data - wine.data.mean(axis=0)) / wine.data.std(axis=0)
    order = np.random.default_rng(0).permutation(len(x))
    return x[order].astype("float32"), wine.target[order]


def rows_of(rank, size, count):
    ends = np.cumsum(np.arange(size + 1)) * count // (size * (size + 1) // 2)
    return slice(ends[rank], ends[rank + 1])


def make_model():
    model = keras.Sequential(
        [
            keras.Input((13,)),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    optimizer = tfring.DistributedOptimizer(keras.optimizers.Adam(1e-2))
    model.compile(
        optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return model


def identical_on_all_ranks(model):
    state = [v.numpy() for v in model.weights + model.optimizer.variables]
    digest = hashlib.sha256(b"".join(value.tobytes() for value in state))
    digests = tfring.allgather(
        np.frombuffer(digest.digest(), np.uint8)[np.newaxis]
    ).numpy()
    return bool((digests == digests[0]).all())


def main(_):
    tfring.init()
    rank, size = tfring.rank(), tfring.size()
    x, y = load_data()
    own = rows_of(rank, size, len(x))

    keras.utils.set_random_seed(rank)
    model = make_model()
    batches = BatchCounter()
    history = model.fit(
        x[own],
        y[own],
        batch_size=_BATCH_SIZE.value,
        epochs=_EPOCHS.value,
        validation_data=(x, y),
        callbacks=[
            tfring.callbacks.JoinCallback(),  # first: others come after it
            tfring.callbacks.BroadcastGlobalVariablesCallback(0),
            tfring.callbacks.MetricAverageCallback(),
            batches,
        ],
        verbose=0,
    ).history

    accuracy = history["val_accuracy"][-1]
    identical = identical_on_all_ranks(model)
    counts = tfring.allgather([batches.count]).numpy().tolist()
    if rank == 0:
        print(f"batches by rank: {counts}")
        print(f"steps of the optimizer: {int(model.optimizer.iterations)}")
        print(f"accuracy on all samples: {accuracy:.4f}")
        print(f"state identical on all ranks: {'yes' if identical else 'NO'}")
    return 0 if identical and accuracy >= _MIN_ACCURACY.value else 1


if __name__ == "__main__":
    app.run(main)
