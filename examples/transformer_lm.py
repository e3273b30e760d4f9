"""A small transformer learns to write like Python's manual, letter by letter.

    tfringrun -np 2 python examples/transformer_lm.py
    tfringrun -np 2 python examples/transformer_lm.py --epochs 8

Gradients travel as bfloat16, the learning rate warms up, and rank 0 saves after
every epoch: the second command goes on where the first has ended. The letters'
frequencies alone would give 4.7 bits a letter.
"""

import hashlib
from pathlib import Path
from pydoc_data import topics

import keras
import numpy as np
from absl import app, flags

import tfring

_CHECKPOINT = flags.DEFINE_string("checkpoint", "lm.weights.h5", "The file.")
_EPOCHS = flags.DEFINE_integer("epochs", 4, "In all, with those resumed from.")
_STEPS = flags.DEFINE_integer("steps", 25, "Of an epoch.")
_LEARNING_RATE = flags.DEFINE_float("learning_rate", 2e-3, "That of one rank.")

BATCH = 16  # texts a step, per rank
LENGTH = 64  # of a text, in letters


class Positions(keras.layers.Layer):
    """Adds to each letter a vector that says where it stands."""

    def build(self, shape):
        self.vectors = self.add_weight(shape=shape[1:], initializer="normal")

    def call(self, x):
        return x + self.vectors


def make_model(letters, width=64, depth=2):
    layers = keras.layers
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = Positions()(layers.Embedding(letters, width)(inputs))
    for _ in range(depth):
        y = layers.LayerNormalization()(x)
        y = layers.MultiHeadAttention(4, width // 4)(y, y, use_causal_mask=True)
        x = x + y
        y = layers.LayerNormalization()(x)
        y = layers.Dense(4 * width, "gelu")(y)
        x = x + layers.Dense(width)(y)
    x = layers.LayerNormalization()(x)
    return keras.Model(inputs, layers.Dense(letters)(x))


class Texts(keras.utils.PyDataset):
    """Batches from random places; other ones in every epoch, on every rank."""

    def __init__(self, text, epoch):
        super().__init__()
        self.text, self.epoch = text, epoch

    def __len__(self):
        return _STEPS.value

    def __getitem__(self, step):
        random = np.random.default_rng([tfring.rank(), self.epoch, step])
        starts = random.integers(len(self.text) - LENGTH, size=BATCH)
        window = self.text[starts[:, None] + np.arange(LENGTH + 1)]
        return window[:, :-1], window[:, 1:]

    def on_epoch_end(self):
        self.epoch += 1


def main(_):
    tfring.init()
    manual = "".join(text for _, text in sorted(topics.topics.items()))
    letters, text = np.unique(list(manual), return_inverse=True)
    model = make_model(len(letters))
    rate = _LEARNING_RATE.value * tfring.size()
    optimizer = tfring.DistributedOptimizer(
        keras.optimizers.Adam(rate), compression=tfring.Compression.bf16
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    # Rank 0 loads; the callback gives it to the others, but for the epoch.
    if tfring.rank() == 0 and Path(_CHECKPOINT.value).exists():
        optimizer.build(model.trainable_variables)
        model.load_weights(_CHECKPOINT.value)
    done = int(optimizer.iterations) // _STEPS.value
    done = tfring.broadcast_object(done, root_rank=0)
    callbacks = [
        tfring.callbacks.BroadcastGlobalVariablesCallback(0),
        tfring.callbacks.MetricAverageCallback(),
        tfring.callbacks.LearningRateWarmupCallback(rate, warmup_epochs=2),
    ]
    if tfring.rank() == 0:
        print(f"starting with epoch {done + 1}", flush=True)
        save = keras.callbacks.ModelCheckpoint
        callbacks.append(save(_CHECKPOINT.value, save_weights_only=True))
    logs = model.fit(
        Texts(text, done),
        epochs=_EPOCHS.value,
        initial_epoch=done,
        callbacks=callbacks,
        verbose=0,
    ).history
    weights = b"".join(weight.tobytes() for weight in model.get_weights())
    digests = tfring.allgather_object(hashlib.sha256(weights).digest())
    identical = len(set(digests)) == 1
    if tfring.rank() == 0:
        for epoch, nats in enumerate(logs["loss"], done + 1):
            print(f"epoch {epoch}: {nats / np.log(2):.3f} bits a letter")
        print(f"weights identical on all ranks: {'yes' if identical else 'NO'}")
    return 0 if identical else 1


if __name__ == "__main__":
    app.run(main)
