"""A pipeline of two stages, each on a rank of its own, by tfring.alltoall.

    tfringrun -np 2 python examples/pipeline.py

Rank 0 has the first half of a model, and rank 1 the second. A batch is cut into
micro-batches: rank 0 computes the next one while rank 1 has the last one.
`alltoall` is differentiable: gradients go back the way that the rows came. The
losses are those of the same model in one process.
"""

import keras
import numpy as np
import tensorflow as tf
from absl import app

import tfring

STEPS, BATCH_SIZE, MICRO_BATCHES, WIDTH = 30, 128, 4, 64


def make_stages():
    """Returns both stages, with the same weights on all ranks."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(WIDTH, "relu") for _ in range(3)]
    layers.append(keras.layers.Dense(1))
    return [keras.Sequential(half) for half in (layers[:2], layers[2:])]


def to_next_stage(rows):
    """Gives rank 0's rows to rank 1; rank 1 has none to give."""
    counts = tf.stack([0, tf.shape(rows)[0]])
    received, _ = tfring.alltoall(rows, splits=counts)
    received.set_shape([None, WIDTH])
    return received


def main(_):
    tfring.init()
    rank = tfring.rank()
    if tfring.size() != 2:
        raise SystemExit("There are two stages: run it on two ranks.")
    rng = np.random.default_rng(0)
    shape = STEPS, MICRO_BATCHES, BATCH_SIZE // MICRO_BATCHES, WIDTH
    batches = rng.normal(size=shape).astype("float32")
    targets = np.sin(batches.sum(-1, keepdims=True))

    stage = make_stages()[rank]
    stage.build((None, WIDTH))
    optimizer = keras.optimizers.SGD(0.05)

    @tf.function
    def train_step(x, y):
        nothing = tf.zeros([0, WIDTH])
        with tf.GradientTape() as tape:
            tape.watch(nothing)  # for the gradient of rank 1's alltoall
            losses = []
            for i in range(MICRO_BATCHES):
                rows = to_next_stage(stage(x[i]) if rank == 0 else nothing)
                if rank == 0:
                    losses.append(tf.reduce_sum(rows))  # of no rows
                else:
                    losses.append(tf.reduce_mean((stage(rows) - y[i]) ** 2))
            loss = tf.add_n(losses) / MICRO_BATCHES
        variables = stage.trainable_variables
        *gradients, _ = tape.gradient(loss, [*variables, nothing])
        optimizer.apply(gradients, variables)
        return loss

    losses = [train_step(x, y) for x, y in zip(batches, targets, strict=True)]
    if rank == 0:
        return 0

    whole = keras.Sequential(make_stages())
    optimizer = keras.optimizers.SGD(0.05)
    worst = 0.0
    for x, y, loss in zip(batches, targets, losses, strict=True):
        with tf.GradientTape() as tape:
            outputs = whole(x.reshape(BATCH_SIZE, WIDTH))
            alone = tf.reduce_mean((outputs - y.reshape(-1, 1)) ** 2)
        variables = whole.trainable_variables
        optimizer.apply(tape.gradient(alone, variables), variables)
        worst = max(worst, abs(float(loss) - float(alone)))
    print(f"loss {losses[0]:.4f} {losses[-1]:.4f}")
    print(f"as in one process: {'yes' if worst < 1e-5 else 'NO'} ({worst:.1e})")
    return 0 if worst < 1e-5 else 1


if __name__ == "__main__":
    app.run(main)
