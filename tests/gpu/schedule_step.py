"""Writes the modules that TensorFlow gives XLA for steps of training on a GPU.

    tfringrun -np 2 python tests/gpu/schedule_step.py LOWER_FOR_GPU MODULES

By two ranks, as one alone reduces nothing; tests/gpu/schedule.py compiles what
the first has written to the folder MODULES.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import keras
import tensorflow as tf

import tfring


def dense() -> keras.Model:
    layers = [keras.layers.Dense(256, activation="relu") for _ in range(6)]
    return keras.Sequential([keras.Input((64,)), *layers, head()])


def normalized() -> keras.Model:
    """Small gradients between large ones, and a tensor with two readers."""
    inputs = keras.Input((64,))
    x = keras.layers.Dense(384)(inputs)
    for _ in range(4):
        y = keras.layers.LayerNormalization()(x)
        y = keras.layers.Dense(384, activation="gelu")(y)
        x = keras.layers.add([x, y])
    return keras.Model(inputs, head()(x))


def head() -> keras.Layer:
    return keras.layers.Dense(10)


Update = Callable[[tf.Tensor, list[tf.Tensor], tf.Tensor], list[tf.Tensor]]


def momentum(weight, states, gradient):
    """The new weight and states."""
    velocity = 0.9 * states[0] + gradient
    return [weight - 0.1 * velocity, velocity]


def adam(weight, states, gradient):
    """The new weight and states."""
    mean = 0.9 * states[0] + 0.1 * gradient
    square = 0.999 * states[1] + 0.001 * gradient**2
    return [weight - 0.001 * mean / (tf.sqrt(square) + 1e-7), mean, square]


def step_of(
    model: keras.Model, update: Update, states: int, clip: float | None = None
) -> str:
    """The module of a step, as text.

    Variables are arguments and results, as TensorFlow lowers none for a device
    that it has not.
    """
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function(jit_compile=True)
    def step(x, y, weights, states):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            result, _ = model.stateless_call(weights, [], x, training=True)
            loss = loss_of(y, result)
        tape = tfring.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, weights)
        if clip is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, clip)
        return loss, list(map(update, weights, states, gradients))

    weights = [tf.convert_to_tensor(v) for v in model.trainable_variables]
    zeros = [[tf.zeros_like(w)] * states for w in weights]
    arguments = tf.zeros([32, 64]), tf.zeros([32], tf.int32), weights, zeros
    text = step.experimental_get_compiler_ir(*arguments)(
        stage="hlo", platform_name="GPU"
    )
    return in_place(text, len(weights), states)


def in_place(text: str, weights: int, states: int) -> str:
    """Returns the module, with each weight and its states updated in place.

    TensorFlow also updates variables in place, and memory use affects the
    order.
    """
    pairs = []
    for weight in range(weights):
        result = 1 + weight * (1 + states)
        pairs.append((result, 2 + weight))
        pairs += [
            (result + 1 + i, 2 + weights + weight * states + i)
            for i in range(states)
        ]
    aliases = ", ".join(
        f"{{{result}}}: ({argument}, {{}}, may-alias)"
        for result, argument in pairs
    )
    name, rest = text.split(",", 1)
    return f"{name}, input_output_alias={{ {aliases} }},{rest}"


STEPS: dict[str, Callable[[], str]] = {
    "adam": lambda: step_of(dense(), adam, 2),
    "clipped": lambda: step_of(normalized(), adam, 2, clip=1.0),
    "momentum": lambda: step_of(normalized(), momentum, 1),
}


def main() -> None:
    """Writes a file for each step."""
    lower_for_gpu, modules = sys.argv[1:]
    tf.load_library(lower_for_gpu)
    tfring.init()
    for name, step in STEPS.items():
        keras.utils.set_random_seed(1)
        text = step()
        if tfring.rank() == 0:
            (Path(modules) / f"{name}.hlo").write_text(text)


if __name__ == "__main__":
    main()
