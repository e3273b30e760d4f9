"""Tables of vectors that the ranks share out, in a file that all can load.

    tfringrun -np 2 python examples/sharded_embedding.py --epochs 2
    tfringrun -np 3 python examples/sharded_embedding.py --epochs 4

Learns vectors of users and films from ratings, by rows that live on different
ranks. The second command goes on with the file of the first, on another number
of ranks, and ends with the loss of four epochs on any number.
"""

from pathlib import Path

import keras
import numpy as np
from absl import app, flags

import tfring
from tfring.layers import ShardedEmbedding

_EPOCHS = flags.DEFINE_integer("epochs", 4, "Passes, with those of the file.")
_FILE = flags.DEFINE_string("file", "ratings.keras", "The model.")
USERS, FILMS, WIDTH, RATINGS, BATCH_SIZE = 500, 200, 8, 24_000, 240


def load_data():
    """Returns users, films and ratings, which depend on both."""
    rng = np.random.default_rng(0)
    of_users, of_films = rng.normal(size=(2, max(USERS, FILMS), 2))
    users = rng.integers(0, USERS, RATINGS)
    films = (FILMS * rng.power(0.3, RATINGS)).astype(int)  # some are popular
    ratings = np.tanh((of_users[users] * of_films[films]).sum(axis=1))
    return users, films, ratings


def make_model():
    keras.utils.set_random_seed(0)
    inputs = [keras.Input((), dtype="int32") for _ in range(2)]
    vectors = [
        ShardedEmbedding(rows, WIDTH, "random_normal")(ids)
        for rows, ids in zip((USERS, FILMS), inputs, strict=True)
    ]
    model = keras.Model(inputs, keras.layers.Dot(axes=-1)(vectors))
    optimizer = keras.optimizers.Adagrad(0.5)
    model.compile(tfring.DistributedOptimizer(optimizer), "mse")
    return model


def main(_):
    tfring.init()
    rank, size = tfring.rank(), tfring.size()
    # All ranks load it, and keep their rows.
    is_saved = tfring.broadcast_object(Path(_FILE.value).exists(), 0)
    model = tfring.load_model(_FILE.value) if is_saved else make_model()
    done = int(model.optimizer.iterations) // (RATINGS // BATCH_SIZE)

    # A step of all ranks has the same samples on any number of ranks.
    users, films, ratings = (part[rank::size] for part in load_data())
    history = model.fit(
        (users, films),
        ratings,
        batch_size=BATCH_SIZE // size,
        shuffle=False,
        initial_epoch=done,
        epochs=_EPOCHS.value,
        verbose=0,
        callbacks=[
            tfring.callbacks.BroadcastGlobalVariablesCallback(0),
            tfring.callbacks.MetricAverageCallback(),
            keras.callbacks.ModelCheckpoint(_FILE.value),
        ],
    )
    if rank == 0:
        own = sum(each.shape[0] for each in model.trainable_variables)
        print(f"epochs {done + 1} to {_EPOCHS.value} on {size} ranks")
        print(f"rows on rank 0: {own} of {USERS + FILMS}")
        print(f"loss {history.history['loss'][-1]:.5f}")


if __name__ == "__main__":
    app.run(main)
