"""Two models side by side, each on half of the ranks, which then vote together.

    tfringrun -np 4 python examples/process_sets.py

The even ranks train a network of convolutions, the odd ones a dense network.
Each half is a process set: gradients are averaged within it, and neither half
waits for the other. In the end all ranks together average what both predict.
"""

import hashlib

import keras
import tensorflow as tf
from absl import app, flags
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import tfring

_EPOCHS = flags.DEFINE_integer("epochs", 6, "Passes over the images.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "Images a step, per rank.")
_LEARNING_RATE = flags.DEFINE_float("learning_rate", 2e-3, "That of one rank.")

loss_of = keras.losses.SparseCategoricalCrossentropy()


def build_model(kind):
    layers = {
        "convolutions": [
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
        ],
        "dense": [
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
        ],
    }[kind]
    top = keras.layers.Dense(10, activation="softmax")
    return keras.Sequential([keras.Input((8, 8, 1)), *layers, top])


def train(model, x, y, process_set):
    """Trains on the images of this rank, with the others of its set."""
    tfring.broadcast_variables(
        model.variables, process_set.ranks[0], process_set=process_set
    )
    optimizer = keras.optimizers.Adam(
        _LEARNING_RATE.value * process_set.size() ** 0.5
    )
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(images, labels):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        gradients = tfring.grouped_allreduce(
            tape.gradient(loss, model.trainable_variables),
            process_set=process_set,
        )
        optimizer.apply(gradients, model.trainable_variables)

    # The ranks of a set make the same number of steps; those of the other set
    # may make more of them or fewer.
    batches = len(x) // process_set.size() // _BATCH_SIZE.value
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    dataset = dataset.shard(process_set.size(), process_set.rank())
    dataset = dataset.shuffle(len(x)).batch(_BATCH_SIZE.value).take(batches)
    for _ in range(_EPOCHS.value):
        for images, labels in dataset:
            step(images, labels)


def accuracy(probabilities, labels):
    right = tf.argmax(probabilities, axis=1) == labels
    return float(tf.reduce_mean(tf.cast(right, tf.float32)))


def main(_):
    tfring.init()
    if tfring.size() < 2:
        raise app.UsageError("start it on two ranks or more, with tfringrun")
    kinds = ["convolutions", "dense"]
    # Every rank adds both sets, also the one that it is not in.
    sets = [
        tfring.add_process_set(range(i, tfring.size(), 2)) for i in range(2)
    ]
    kind, mine = next(
        (k, s) for k, s in zip(kinds, sets, strict=True) if s.included()
    )

    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype("float32") / 16
    x, x_test, y, y_test = train_test_split(
        images, labels, train_size=1440, random_state=0
    )
    keras.utils.set_random_seed(tfring.rank())
    model = build_model(kind)
    train(model, x, y, mine)

    votes = model(x_test)
    weights = b"".join(v.numpy().tobytes() for v in model.variables)
    digests = tfring.allgather_object(
        hashlib.sha256(weights).hexdigest(), process_set=mine
    )
    same = "yes" if len({*digests}) == 1 else "no"
    report = (
        f"{kind} on ranks {mine.ranks}: accuracy {accuracy(votes, y_test):.3f}"
    )
    reports = tfring.allgather_object(f"{report}, weights identical: {same}")
    # Each rank has a part of its model's half of the vote.
    both = tfring.allreduce(votes / (2 * mine.size()), op=tfring.Sum)
    if tfring.rank() == 0:
        print(*sorted({*reports}), sep="\n")
        print(f"both together: accuracy {accuracy(both, y_test):.3f}")


if __name__ == "__main__":
    app.run(main)
