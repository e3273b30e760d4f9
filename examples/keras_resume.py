"""Training goes on after a crash, as if nothing had happened.

    tfringrun -np 2 python examples/keras_resume.py --crash_in_epoch 3
    tfringrun -np 2 python examples/keras_resume.py

Each rank saves its part of the training every few steps, in a folder that all
ranks see. The first command dies in the middle of the third epoch; the second
goes on with the batch after the last checkpoint, and prints the same digest as
a run without a crash. kill -USR1 of tfringrun ends the job after a checkpoint,
with status 75.
"""

import hashlib
import os
import signal

import keras
from absl import app, flags
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import tfring

_CHECKPOINTS = flags.DEFINE_string("checkpoints", "digits", "The folder.")
_EPOCHS = flags.DEFINE_integer("epochs", 5, "Passes over the images.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "Images a step, per rank.")
_CRASH_IN_EPOCH = flags.DEFINE_integer(
    "crash_in_epoch", None, "From 1; the last rank kills itself in its middle."
)


class Crash(keras.callbacks.Callback):
    """Says where training begins, and ends a rank as if it lost power."""

    begun = False

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if not self.begun:
            print(f"beginning at epoch {self.epoch + 1}, batch {batch + 1}")
            self.begun = True
        is_here = self.epoch + 1 == _CRASH_IN_EPOCH.value
        if is_here and batch == self.params["steps"] // 2:
            os.kill(os.getpid(), signal.SIGKILL)


def digest(model):
    """Returns a digest of the weights and the optimizer's variables."""
    variables = [*model.weights, *model.optimizer.variables]
    values = b"".join(variable.numpy().tobytes() for variable in variables)
    return hashlib.sha256(values).digest()


def main(_):
    tfring.init()
    rank, size = tfring.rank(), tfring.size()
    images, labels = load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split(
        images.astype("float32") / 16, labels, train_size=1440, random_state=0
    )
    steps = len(x) // size // _BATCH_SIZE.value
    mine = slice(rank, steps * _BATCH_SIZE.value * size, size)

    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dropout(0.1),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    optimizer = keras.optimizers.Adam(1e-3 * size)
    model.compile(
        tfring.DistributedOptimizer(optimizer),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    callbacks = [
        tfring.callbacks.BroadcastGlobalVariablesCallback(0),
        tfring.callbacks.Checkpoint(_CHECKPOINTS.value, every_steps=5),
    ]
    if rank == size - 1:
        callbacks.append(Crash())
    model.fit(
        *(x[mine], y[mine]),
        _BATCH_SIZE.value,
        _EPOCHS.value,
        callbacks=callbacks,
        verbose=0,
    )
    digests = tfring.allgather([list(digest(model))]).numpy()
    identical = bool((digests == digests[0]).all())
    if rank == 0:
        _, accuracy = model.evaluate(x_test, y_test, verbose=0)
        print(f"test accuracy {accuracy:.4f}, digest {digest(model).hex()}")
        print(f"state identical on all ranks: {'yes' if identical else 'NO'}")
    return 0 if identical else 1


if __name__ == "__main__":
    app.run(main)
