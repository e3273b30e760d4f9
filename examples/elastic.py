"""Training goes on when a rank is killed.

    tfringrun -np 3 --elastic python examples/elastic.py --kill_in_epoch 2

The ranks commit their state every few batches. When one of them is lost, the
others go back to the last commit, share out the data anew and train on, all in
the same processes, and another joins them. Without --elastic the job would end
with the rank.
"""

import hashlib
import os
import signal

import keras
import numpy as np
from absl import app, flags
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import tfring

_EPOCHS = flags.DEFINE_integer("epochs", 5, "Passes over the images.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "Images a step, per rank.")
_RATE = flags.DEFINE_float("learning_rate", 0.02, "That of one rank.")
_BATCHES_PER_COMMIT = flags.DEFINE_integer(
    "batches_per_commit", 5, "Also the most that are done twice after a loss."
)
_KILL_IN_EPOCH = flags.DEFINE_integer(
    "kill_in_epoch", None, "From 1; the last rank kills itself in its middle."
)
_SHARD_STATES = flags.DEFINE_bool(
    "shard_states", False, "Whether each rank keeps a share of the momenta."
)
_WEIGHTS = flags.DEFINE_string("weights", None, "A .weights.h5 file to write.")


class Kill(keras.callbacks.Callback):
    """Ends this rank as if it had run out of memory."""

    def __init__(self, state):
        super().__init__()
        self.state = state
        self.is_due = False

    def on_epoch_begin(self, epoch, logs=None):
        # Whoever comes in its place comes later in the epoch.
        is_begin = self.state.taken == 0
        self.is_due = is_begin and self.state.epoch + 1 == _KILL_IN_EPOCH.value

    def on_train_batch_begin(self, batch, logs=None):
        if self.is_due and batch == self.params["steps"] // 2:
            os.kill(os.getpid(), signal.SIGKILL)


class CountImages(keras.callbacks.Callback):
    """Keeps how many images of the epoch all ranks have taken."""

    def __init__(self, state):
        super().__init__()
        self.state = state

    def on_train_batch_end(self, batch, logs=None):
        self.state.taken += _BATCH_SIZE.value * tfring.size()

    def on_epoch_end(self, epoch, logs=None):
        self.state.taken = 0


def load_data():
    images, labels = load_digits(return_X_y=True)
    return train_test_split(
        images.astype("float32") / 16, labels, train_size=1440, random_state=0
    )


def make_model():
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    optimizer = keras.optimizers.SGD(momentum=0.9)
    model.compile(
        tfring.DistributedOptimizer(
            optimizer, shard_states=_SHARD_STATES.value
        ),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def rest_of_epoch(count, state):
    """Which images this rank has yet to see in this epoch, in what order.

    All ranks shuffle alike, and each takes every size-th image of what is left.
    """
    rank, size = tfring.rank(), tfring.size()
    a_step = _BATCH_SIZE.value * size
    order = np.random.default_rng(state.epoch).permutation(count)
    steps = (count - state.taken) // a_step
    return order[state.taken :][rank : steps * a_step : size]


@tfring.elastic.run
def train(state, x, y, callbacks):
    """Called when training starts, and again whenever a rank is lost."""
    # The rate goes with the number of ranks, which may be another now.
    state.model.optimizer.learning_rate = _RATE.value * tfring.size()
    if tfring.rank() == 0:
        print(
            f"from epoch {state.epoch + 1}, image {state.taken + 1}, "
            f"on {tfring.size()} ranks",
            flush=True,
        )
    while state.epoch < _EPOCHS.value:
        rest = rest_of_epoch(len(x), state)
        if len(rest) == 0:  # Fewer are left than a step of all ranks takes.
            state.epoch, state.taken = state.epoch + 1, 0
            continue
        state.model.fit(
            x[rest],
            y[rest],
            _BATCH_SIZE.value,
            shuffle=False,  # rest_of_epoch has done so, on all ranks alike
            callbacks=callbacks,
            verbose=0,
        )


def main(_):
    tfring.init()
    x, x_test, y, y_test = load_data()
    keras.utils.set_random_seed(tfring.rank())
    model = make_model()
    # `train` begins with rank 0's state: no other callback gives the weights.
    state = tfring.elastic.KerasState(model, epoch=0, taken=0)
    callbacks = [
        tfring.elastic.UpdateEpochStateCallback(state),
        CountImages(state),
        tfring.elastic.CommitStateCallback(state, _BATCHES_PER_COMMIT.value),
    ]
    if tfring.rank() == tfring.size() - 1:
        callbacks.append(Kill(state))
    train(state, x, y, callbacks)

    weights = b"".join(weight.tobytes() for weight in model.get_weights())
    digest = np.frombuffer(hashlib.sha256(weights).digest(), np.uint8)
    digests = tfring.allgather(digest[np.newaxis]).numpy()
    identical = bool((digests == digests[0]).all())
    if tfring.rank() == 0:
        _, accuracy = model.evaluate(x_test, y_test, verbose=0)
        print(f"test accuracy {accuracy:.4f} on {len(digests)} ranks")
        print(f"weights identical on all ranks: {'yes' if identical else 'NO'}")
    if _WEIGHTS.value:
        # Where each rank has a share of the momenta, all of them put these
        # together.
        with tfring.whole_states(model, root_rank=0):
            if tfring.rank() == 0:
                model.save_weights(_WEIGHTS.value)
    return 0 if identical else 1


if __name__ == "__main__":
    app.run(main)
