"""Training goes on after a crash, as if nothing had happened.

    tfringrun -np 2 python examples/keras_resume.py --crash_in_epoch 3
    tfringrun -np 2 python examples/keras_resume.py

Rank 0 saves model and optimizer after every epoch. The first command dies in
the third epoch; the second resumes at its beginning, and prints the same digest
as a run without a crash. Only rank 0 needs to see the file. State that Keras
does not save is not resumed: the seeds of dropout, the order of shuffled data.
"""

import hashlib
import os
import signal
from pathlib import Path

import keras
import tensorflow as tf
from absl import app, flags
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import tfring

_CHECKPOINT = flags.DEFINE_string(
    "checkpoint", "digits.weights.h5", "The file."
)
_EPOCHS = flags.DEFINE_integer("epochs", 5, "Passes over the images.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "Images a step, per rank.")
_CRASH_IN_EPOCH = flags.DEFINE_integer(
    "crash_in_epoch", None, "From 1; the last rank kills itself in its middle."
)


class Save(keras.callbacks.Callback):
    """Saves after every epoch, so that there is always a whole file."""

    def on_epoch_end(self, epoch, logs=None):
        path = Path(_CHECKPOINT.value)
        new = path.with_name(f"new.{path.name}")
        self.model.save_weights(new)  # those of the optimizer too
        new.replace(path)


class Crash(keras.callbacks.Callback):
    """Ends this rank as if its node had lost power."""

    def on_epoch_begin(self, epoch, logs=None):
        self.now = epoch + 1 == _CRASH_IN_EPOCH.value

    def on_train_batch_begin(self, batch, logs=None):
        if self.now and batch == self.params["steps"] // 2:
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
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    optimizer = keras.optimizers.Adam(1e-3 * size)
    model.compile(
        tfring.DistributedOptimizer(optimizer),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    # Rank 0 loads; the others get everything from it before the first batch,
    # but for the epoch, which they need sooner.
    if rank == 0 and Path(_CHECKPOINT.value).exists():
        optimizer.build(model.trainable_variables)
        model.load_weights(_CHECKPOINT.value)
    done = tfring.broadcast(tf.cast(optimizer.iterations, "int64"), 0)
    first = int(done) // steps
    callbacks = [tfring.callbacks.BroadcastGlobalVariablesCallback(0)]
    if rank == 0:
        print(f"starting with epoch {first + 1}", flush=True)
        callbacks.append(Save())
    if rank == size - 1:
        callbacks.append(Crash())
    model.fit(
        *(x[mine], y[mine]),
        _BATCH_SIZE.value,
        _EPOCHS.value,
        initial_epoch=first,
        shuffle=False,  # for the same batches after a restart
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
