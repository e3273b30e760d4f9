"""A training loop of one's own, with tape and tf.function, on several ranks.

    tfringrun -np 2 python examples/tape_loop.py

The tape averages gradients over the ranks; all ranks start from rank 0's
variables; metrics are sums over the ranks.
"""

import hashlib

import keras
import tensorflow as tf
from absl import app, flags
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import tfring

_EPOCHS = flags.DEFINE_integer("epochs", 8, "Passes over the images.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "Images a step, per rank.")
_LEARNING_RATE = flags.DEFINE_float("learning_rate", 2e-3, "That of one rank.")
_MIN_ACCURACY = flags.DEFINE_float("min_accuracy", 0.9, "To end in success.")

loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def load_data():
    """Returns this rank's part of the images to train on, and of the others."""
    images, labels = load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split(
        images.astype("float32") / 16, labels, train_size=1440, random_state=0
    )
    # Every rank gets equally many batches, of another shuffle in every epoch.
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    dataset = tfring.data.shard(dataset, seed=0).batch(_BATCH_SIZE.value)
    rank, size = tfring.rank(), tfring.size()
    return dataset, x_test[rank::size], y_test[rank::size]


@tf.function
def train_step(model, optimizer, x, y):
    with tf.GradientTape() as tape:
        loss = loss_of(y, model(x, training=True))
    tape = tfring.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(
        zip(gradients, model.trainable_variables, strict=True)
    )
    return loss


def accuracy_over_ranks(model, x, y):
    """The accuracy on the images of all ranks, which may differ in number."""
    correct = tf.argmax(model(x, training=False), axis=1) == y
    counts = [tf.reduce_sum(tf.cast(correct, tf.int64)), tf.size(y, tf.int64)]
    right, images = tfring.allreduce(tf.stack(counts), op=tfring.Sum)
    return float(right / images)


def identical_on_all_ranks(variables):
    values = b"".join(variable.numpy().tobytes() for variable in variables)
    digest = list(hashlib.sha256(values).digest())
    digests = tfring.allgather([digest]).numpy()
    return bool((digests == digests[0]).all())


def main(_):
    tfring.init()
    dataset, x_test, y_test = load_data()
    # Different weights on every rank, until rank 0's are broadcast.
    keras.utils.set_random_seed(tfring.rank())
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    optimizer = keras.optimizers.Adam(_LEARNING_RATE.value * tfring.size())
    optimizer.build(model.trainable_variables)
    tfring.broadcast_variables(
        [*model.variables, *optimizer.variables], root_rank=0
    )

    for epoch in range(_EPOCHS.value):
        losses = [train_step(model, optimizer, x, y) for x, y in dataset]
        loss = tfring.allreduce(tf.reduce_mean(losses), name="loss")
        accuracy = accuracy_over_ranks(model, x_test, y_test)
        if tfring.rank() == 0:
            print(
                f"epoch {epoch + 1}: loss {loss:.4f}, accuracy {accuracy:.4f}"
            )

    identical = identical_on_all_ranks([*model.variables, *optimizer.variables])
    if tfring.rank() == 0:
        print(f"state identical on all ranks: {'yes' if identical else 'NO'}")
    return 0 if identical and accuracy >= _MIN_ACCURACY.value else 1


if __name__ == "__main__":
    app.run(main)
