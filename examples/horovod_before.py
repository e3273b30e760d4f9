"""A Horovod script (horovod_before.py), and the same on tfring (.._after.py).

    horovodrun -np 2 python examples/horovod_before.py
    tfringrun -np 2 python examples/horovod_after.py

They differ in two imports alone. Part 1 trains by fit, part 2 by the tape.
"""

import numpy as np
import tensorflow as tf
from absl import app, flags
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras

_EPOCHS = flags.DEFINE_integer("epochs", 6, "Of each part.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "Images a step, per rank.")
_LEARNING_RATE = flags.DEFINE_float("learning_rate", 2e-3, "That of one rank.")
_CHECKPOINT = flags.DEFINE_string(
    "checkpoint", "checkpoint-{epoch}.weights.h5", "The files of rank 0."
)

loss_of = tf.keras.losses.SparseCategoricalCrossentropy()


def make_model():
    return tf.keras.Sequential(
        [
            tf.keras.Input((64,)),
            tf.keras.layers.Dense(128, activation="relu"),
            tf.keras.layers.Dense(10, activation="softmax"),
        ]
    )


def fit(dataset, steps):
    model = make_model()
    rate = _LEARNING_RATE.value * hvd_keras.size()
    optimizer = hvd_keras.DistributedOptimizer(
        tf.keras.optimizers.Adam(rate),
        backward_passes_per_step=1,
        average_aggregated_gradients=True,
    )
    model.compile(optimizer, loss_of, metrics=["accuracy"])
    callbacks = [
        hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd_keras.callbacks.MetricAverageCallback(),
        hvd_keras.callbacks.LearningRateWarmupCallback(
            initial_lr=rate, warmup_epochs=3, verbose=1
        ),
    ]
    if hvd_keras.rank() == 0:
        save = tf.keras.callbacks.ModelCheckpoint
        callbacks.append(save(_CHECKPOINT.value, save_weights_only=True))
    model.fit(
        dataset.repeat(),
        steps_per_epoch=steps,
        epochs=_EPOCHS.value,
        callbacks=callbacks,
        verbose=1 if hvd_keras.rank() == 0 else 0,
    )
    return model


@tf.function
def train_step(model, optimizer, images, labels):
    with tf.GradientTape() as tape:
        loss = loss_of(labels, model(images, training=True))
    tape = hvd.DistributedGradientTape(tape, compression=hvd.Compression.fp16)
    variables = model.trainable_variables
    gradients = tape.gradient(loss, variables)
    optimizer.apply_gradients(zip(gradients, variables, strict=True))
    return loss


def loop(dataset, steps):
    model = make_model()
    optimizer = tf.keras.optimizers.Adam(_LEARNING_RATE.value * hvd.size())
    optimizer.build(model.trainable_variables)
    hvd.broadcast_variables(model.variables, root_rank=0)
    hvd.broadcast_variables(optimizer.variables, root_rank=0)
    steps -= hvd.rank()  # ranks need not have equally many
    for x, y in dataset.repeat().take(steps):
        loss = train_step(model, optimizer, x, y)
    hvd.broadcast_variables(model.variables, root_rank=int(hvd.join()))
    loss = hvd.allreduce(loss, average=True)
    if hvd.rank() == 0:
        print(f"last loss {float(loss):.4f}")
    return model


def main(_):
    hvd.init()
    if gpus := tf.config.list_physical_devices("GPU"):
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

    images, labels = load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split(
        images.astype("float32") / 16, labels, train_size=1440, random_state=0
    )
    seed = hvd.broadcast_object(np.random.randint(1000), root_rank=0)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed)
    dataset = dataset.shard(hvd.size(), hvd.rank()).batch(_BATCH_SIZE.value)
    steps = len(x) // hvd.size() // _BATCH_SIZE.value

    models = fit(dataset, steps), loop(dataset, steps * _EPOCHS.value)
    for part, model in enumerate(models, start=1):
        right = model.predict(x_test, verbose=0).argmax(axis=1) == y_test
        weights = np.concatenate([w.ravel() for w in model.get_weights()])
        of_ranks = hvd.allgather(tf.constant(weights[np.newaxis])).numpy()
        same = (of_ranks == of_ranks[0]).all()
        if hvd.rank() == 0:
            print(f"part {part}: test accuracy {right.mean():.4f}, same {same}")


if __name__ == "__main__":
    app.run(main)
