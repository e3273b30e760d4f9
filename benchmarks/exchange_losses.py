"""Compares losses of a small language model, for several exchanges.

  tfringrun -np 2 .venv/bin/python benchmarks/exchange_losses.py

A transformer of one block learns the characters of Python's standard library.
All ways to exchange see equally many samples, from the same weights, by the
same schedule; a table has the loss on text that none has seen, for each seed,
and how far it is above that of the first way.
"""

import dataclasses
import json
import os
import statistics
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np
from absl import app, flags

import tfring
from tfring.bench.exchanges import Exchange, exchanges

SYNC = flags.DEFINE_list("sync", "none,diloco:50", "As tfring-bench's.")
COMPRESSION = flags.DEFINE_list("compression", "none", "As tfring-bench's.")
STEPS = flags.DEFINE_integer("steps", 2400, "Updates of each training.")
START = flags.DEFINE_float(
    "start", 0.1, "The share of the steps before the first round or factors."
)
BATCH_SIZE = flags.DEFINE_integer("batch_size", 16, "Of each rank.")
RATE = flags.DEFINE_float("rate", 8e-3, "AdamW's highest learning rate.")
OUTER = flags.DEFINE_list(
    "outer", "0.9,0.7", "DiLoCo's outer learning rate, and its momentum."
)
SEEDS = flags.DEFINE_list("seeds", "0,1,2", "Of weights and samples.")
JSON = flags.DEFINE_string("json", None, "A file for all figures.")

CONTEXT = 48
SYMBOLS = 96
WIDTH = 48
WARM_UP_STEPS = 50
TEST_WINDOWS = 1024


@dataclasses.dataclass(frozen=True)
class Figure:
    """The loss of one training."""

    way: str
    seed: int
    loss: float


def text() -> np.ndarray:
    """Returns the characters of the standard library, as small numbers."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    content = b"".join(file.read_bytes() for file in files)
    codes = np.frombuffer(content, np.uint8)
    codes = codes[((codes >= 32) & (codes < 127)) | (codes == 10)]
    return np.where(codes == 10, 0, codes - 31).astype(np.int32)


def windows(codes: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, ...]:
    rows = codes[starts[:, np.newaxis] + np.arange(CONTEXT + 1)]
    return rows[:, :-1], rows[:, 1:]


@keras.saving.register_keras_serializable(package="benchmark")
class Places(keras.layers.Layer):
    """Adds a vector for each place in the window."""

    def build(self, input_shape: tuple[int, ...]) -> None:
        self.vectors = self.add_weight(shape=input_shape[1:])

    def call(self, inputs: keras.KerasTensor) -> keras.KerasTensor:
        return inputs + self.vectors


def model_of() -> keras.Model:
    layers = keras.layers
    inputs = keras.Input((CONTEXT,), dtype="int32")
    x = Places()(layers.Embedding(SYMBOLS, WIDTH)(inputs))
    normal = layers.LayerNormalization()(x)
    x += layers.MultiHeadAttention(4, WIDTH // 4)(
        normal, normal, use_causal_mask=True
    )
    normal = layers.LayerNormalization()(x)
    x += layers.Dense(WIDTH)(layers.Dense(4 * WIDTH, "gelu")(normal))
    return keras.Model(
        inputs, layers.Dense(SYMBOLS)(layers.LayerNormalization()(x))
    )


def train(way: Exchange, seed: int, codes: np.ndarray) -> float:
    """Returns the loss on the last tenth of the text. Collective."""
    keras.utils.set_random_seed(seed)
    model = model_of()
    rate = keras.optimizers.schedules.CosineDecay(
        0.1 * RATE.value,
        STEPS.value - WARM_UP_STEPS,
        warmup_target=RATE.value,
        warmup_steps=WARM_UP_STEPS,
    )
    options = way.options(start=round(START.value * STEPS.value))
    if way.sync == "diloco":
        outer_rate, momentum = map(float, OUTER.value)
        options["sync"] = dataclasses.replace(
            options["sync"],
            outer=keras.optimizers.SGD(
                outer_rate, momentum=momentum, nesterov=momentum > 0
            ),
        )
    optimizer = tfring.DistributedOptimizer(
        keras.optimizers.AdamW(rate, weight_decay=0.01), **options
    )
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=way.sync != "gossip",
    )
    end = len(codes) * 9 // 10
    random = np.random.default_rng([seed, tfring.rank()])
    starts = random.integers(
        0, end - CONTEXT - 1, STEPS.value * BATCH_SIZE.value
    )
    model.fit(
        *windows(codes, starts),
        batch_size=BATCH_SIZE.value,
        shuffle=False,
        verbose=0,
        callbacks=[tfring.callbacks.BroadcastGlobalVariablesCallback(0)],
    )
    starts = np.linspace(end, len(codes) - CONTEXT - 2, TEST_WINDOWS)
    return float(model.evaluate(*windows(codes, starts.astype(int)), verbose=0))


def table(figures: Sequence[Figure]) -> str:
    ways = list(dict.fromkeys(figure.way for figure in figures))
    losses = {
        way: [figure.loss for figure in figures if figure.way == way]
        for way in ways
    }
    first = losses[ways[0]]
    lines = []
    for way in ways:
        above = [
            loss / of_first - 1
            for loss, of_first in zip(losses[way], first, strict=True)
        ]
        seeds = "  ".join(f"{loss:.4f}" for loss in losses[way])
        lines.append(f"{way:24}  {seeds}  {statistics.mean(above):+.2%}")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> None:
    if len(arguments) > 1:
        raise app.UsageError(f"expected flags only, got {arguments[1:]}.")
    tfring.init()
    codes = text()
    figures = []
    for seed in map(int, SEEDS.value):
        for way in exchanges(SYNC.value, COMPRESSION.value):
            loss = train(way, seed, codes)
            figures.append(Figure(way.name or "every step", seed, loss))
            keras.backend.clear_session()
            if tfring.rank() == 0:
                print(figures[-1], flush=True)
    if tfring.rank() > 0:
        return
    print(table(figures))
    if JSON.value:
        content = [dataclasses.asdict(figure) for figure in figures]
        Path(JSON.value).write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    app.run(main)
