"""A rank's part of the trainings that `checkpoint_kills.py` kills.

checkpoint_training.py rows|bits
"""

import hashlib
import json
import sys
import time

import keras
import numpy as np

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


def rows(callbacks):
    """Returns how often each row was trained on, on any number of ranks."""
    model = keras.Sequential(
        [
            keras.Input((ROWS,)),
            keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros"),
        ]
    )
    # Training on a row increments its weight.
    optimizer = keras.optimizers.SGD(float(BATCH))
    model.compile(
        tfring.DistributedOptimizer(optimizer, op=tfring.Sum),
        keras.losses.MeanAbsoluteError(),
    )
    tfring.elastic.fit(
        *(model, np.eye(ROWS, dtype="float32"), np.full((ROWS, 1), 1e9)),
        batch_size=BATCH,
        epochs=EPOCHS,
        verbose=0,
        callbacks=callbacks,
    )
    return model.get_weights()[0].ravel().tolist()


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
    train = {"rows": rows, "bits": bits}[sys.argv[1]]
    result = train([Steps(checkpoint), checkpoint])
    print("result", json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
