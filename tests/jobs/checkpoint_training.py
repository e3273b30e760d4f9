"""A rank's part of the trainings that `checkpoint_kills.py` kills.

checkpoint_training.py rows|arrays|shared|order|bits
"""

import hashlib
import json
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import tfring

ROWS, BATCH, EPOCHS = 240, 2, 3
# A step takes as long as this, at least.
STEP_SECONDS = 0.02


class Steps(keras.callbacks.Callback):
    """Prints when a step begins."""

    def __init__(self, checkpoint):
        super().__init__()
        self.checkpoint = checkpoint

    def on_train_batch_begin(self, batch, logs=None):
        time.sleep(STEP_SECONDS)
        if tfring.rank() == 0:
            step = self.checkpoint._saver.step
            print(f"step {step} at {time.time():.3f}", flush=True)


def counting_model():
    """Returns a model whose weights count how often rows were trained on."""
    model = keras.Sequential(
        [
            keras.Input((ROWS,)),
            keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros"),
        ]
    )
    model.compile(
        tfring.DistributedOptimizer(keras.optimizers.SGD(1.0), op=tfring.Sum),
        keras.losses.MeanAbsoluteError(reduction="sum"),
    )
    return model


def counts(model):
    return model.get_weights()[0].ravel().tolist()


ALL_ROWS = np.eye(ROWS, dtype="float32"), np.full((ROWS, 1), 1e9)


def rows(callbacks):
    """Trains by `tfring.elastic.fit`, on any number of ranks."""
    model = counting_model()
    tfring.elastic.fit(
        *(model, *ALL_ROWS),
        batch_size=BATCH,
        epochs=EPOCHS,
        verbose=0,
        callbacks=callbacks,
    )
    return counts(model)


def plain_fit(callbacks, **data):
    model = counting_model()
    model.fit(**data, epochs=EPOCHS, verbose=0, callbacks=callbacks)
    return counts(model)


def arrays(callbacks):
    """Trains by `fit` with the rows of all ranks, on any number of ranks."""
    callbacks[-1].of_all_ranks = True
    x, y = ALL_ROWS
    return plain_fit(callbacks, x=x, y=y, batch_size=BATCH)


def of_row(row):
    return tf.one_hot(row, ROWS), [1e9]


def shared(callbacks):
    """Trains by `fit` on a shared dataset, on any number of ranks."""
    own = tfring.data.shard(tf.data.Dataset.range(ROWS), seed=1).map(of_row)
    return plain_fit(callbacks, x=own.batch(BATCH).prefetch(2))


def order(callbacks):
    """Trains in an order without a seed, on as many ranks as before."""
    own = tf.data.Dataset.range(ROWS).shard(tfring.size(), tfring.rank())
    own = own.shuffle(ROWS).map(of_row, num_parallel_calls=2)
    return plain_fit(callbacks, x=own.batch(BATCH).prefetch(2))


def bits(callbacks):
    """Returns a digest of this rank's weights and moving statistics."""
    keras.utils.set_random_seed(tfring.rank())
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(512, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(512),
            keras.layers.Dense(1),
        ]
    )
    optimizer = tfring.DistributedOptimizer("adam", shard_states=True)
    model.compile(optimizer, "mse")
    x = np.random.default_rng(tfring.rank()).normal(size=(ROWS, 8))
    model.fit(
        *(x, x.sum(1)),
        batch_size=2 * BATCH,
        epochs=EPOCHS,
        verbose=0,
        callbacks=[
            tfring.callbacks.BroadcastGlobalVariablesCallback(0),
            *callbacks,
        ],
    )
    values = b"".join(value.tobytes() for value in model.get_weights())
    return hashlib.sha256(values).hexdigest()


def main():
    tfring.init()
    checkpoint = tfring.callbacks.Checkpoint("checkpoints", every_steps=2)
    kinds = rows, arrays, shared, order, bits
    train = {each.__name__: each for each in kinds}[sys.argv[1]]
    result = train([Steps(checkpoint), checkpoint])
    print("result", json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
