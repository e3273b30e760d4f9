"""A user's models and data in plain Keras, without tfring.

`python user_scripts.py FILE.keras...` loads each of the files and prints the
largest difference to the saved output. FILE.npz has the input and the output.
"""

from __future__ import annotations

import sys

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

LATENT = 3
PIXELS = 8
LETTERS = 11
LENGTH = 6


def images(count):
    """Returns images of bars, vertical or horizontal, and their kinds."""
    rng = np.random.default_rng(0)
    kinds = rng.integers(0, 2, count)
    x = rng.normal(0, 0.1, (count, PIXELS, PIXELS, 1)).astype(np.float32)
    for image, kind, place in zip(
        x, kinds, rng.integers(0, PIXELS, count), strict=True
    ):
        (image if kind else image.swapaxes(0, 1))[place] += 1
    return x, kinds


def texts(count):
    rng = np.random.default_rng(1)
    text = rng.integers(0, LETTERS, (count, LENGTH + 1))
    return text[:, :-1], text[:, 1:]


def cnn():
    return keras.Sequential(
        [
            keras.Input((PIXELS, PIXELS, 1)),
            layers.RandomFlip("horizontal"),
            layers.RandomTranslation(0.2, 0.2),
            layers.Conv2D(4, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.2),
            layers.Dense(2, activation="softmax"),
        ]
    )


def gpt(width=16):
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(LETTERS, width)(inputs)
    positions = ops.cumsum(ops.ones_like(inputs), axis=1) - 1
    x += layers.Embedding(LENGTH, width)(positions)
    y = layers.LayerNormalization()(x)
    x += layers.MultiHeadAttention(2, width // 2)(y, y, use_causal_mask=True)
    y = layers.LayerNormalization()(x)
    x += layers.Dense(width)(layers.Dense(2 * width, "gelu")(y))
    return keras.Model(inputs, layers.Dense(LETTERS)(x))


def generator():
    return keras.Sequential(
        [
            keras.Input((LATENT,)),
            layers.Dense(PIXELS * PIXELS, activation="tanh"),
            layers.Reshape((PIXELS, PIXELS, 1)),
        ]
    )


def discriminator():
    return keras.Sequential(
        [
            keras.Input((PIXELS, PIXELS, 1)),
            layers.Conv2D(4, 3, strides=2),
            layers.LeakyReLU(0.2),
            layers.Flatten(),
            layers.Dense(1),
        ]
    )


class WGANGP(keras.Model):
    """With a penalty on the critic's gradient; its noise comes with the data.

    So one process with the global batch does the same as several.
    """

    def __init__(self, critic, generator, critic_steps=2):
        super().__init__()
        self.critic = critic
        self.generator = generator
        self.critic_steps = critic_steps

    def compile(self, c_optimizer, g_optimizer):
        super().compile()
        self.c_optimizer = c_optimizer
        self.g_optimizer = g_optimizer

    def gradient_penalty(self, real, fake, alpha):
        between = real + alpha[:, None, None, None] * (fake - real)
        with tf.GradientTape() as tape:
            tape.watch(between)
            predictions = self.critic(between, training=True)
        gradients = tape.gradient(predictions, between)
        norm = ops.sqrt(ops.sum(ops.square(gradients), axis=[1, 2, 3]))
        return ops.mean((norm - 1.0) ** 2)

    def train_step(self, batch):
        real, noise, alpha = batch
        for step in range(self.critic_steps):
            with tf.GradientTape() as tape:
                fake = self.generator(noise[:, step], training=True)
                c_loss = (
                    ops.mean(self.critic(fake, training=True))
                    - ops.mean(self.critic(real, training=True))
                    + 10.0 * self.gradient_penalty(real, fake, alpha[:, step])
                )
            variables = self.critic.trainable_variables
            self.c_optimizer.apply(tape.gradient(c_loss, variables), variables)
        with tf.GradientTape() as tape:
            fake = self.generator(noise[:, -1], training=True)
            g_loss = -ops.mean(self.critic(fake, training=True))
        variables = self.generator.trainable_variables
        self.g_optimizer.apply(tape.gradient(g_loss, variables), variables)
        return {"c_loss": c_loss, "g_loss": g_loss}


def main(paths):
    largest = 0.0
    for path in paths:
        if "keras_hub" in path:
            import keras_hub  # noqa: F401 (its classes are registered)
        model = keras.saving.load_model(path)
        with np.load(path.replace(".keras", ".npz")) as saved:
            # The model runs eagerly, as before saving; XLA and graphs may round
            # differently.
            given = {
                name.removeprefix("in_"): saved[name]
                for name in saved
                if name.startswith("in_")
            }
            output = model(given.get("", given), training=False)
            largest = max(largest, np.abs(output - saved["output"]).max())
    assert "tfring" not in sys.modules
    print(f"{len(paths)} files, largest difference {largest}")


if __name__ == "__main__":
    main(sys.argv[1:])
