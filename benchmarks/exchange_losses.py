"""Compares losses of a small language model, for several exchanges.

  tfringrun -np 2 .venv/bin/python benchmarks/exchange_losses.py

A transformer of one block learns the characters of Python's standard library.
All exchanges train on equally many samples, from the same weights, with the
same schedule. A table has the loss on text that no training has seen, for each
seed, and how far it is above that of the first exchange.
"""

import argparse
import dataclasses
import os
import statistics
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np
import program
from exchanges import Exchange, add_flags, exchanges

import tfring

CONTEXT = 48
SYMBOLS = 96
WIDTH = 48
WARM_UP_STEPS = 50
TEST_WINDOWS = 1024


@dataclasses.dataclass(frozen=True)
class Figure:
    """The loss of one training."""

    exchange: str
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


def train(
    exchange: Exchange,
    seed: int,
    codes: np.ndarray,
    options: argparse.Namespace,
) -> float:
    """Returns the loss on the last tenth of the text. Collective."""
    keras.utils.set_random_seed(seed)
    model = model_of()
    rate = keras.optimizers.schedules.CosineDecay(
        0.1 * options.rate,
        options.steps - WARM_UP_STEPS,
        warmup_target=options.rate,
        warmup_steps=WARM_UP_STEPS,
    )
    arguments = exchange.options(start=round(options.start * options.steps))
    if exchange.sync == "diloco":
        outer_rate, momentum = map(float, options.outer)
        arguments["sync"] = dataclasses.replace(
            arguments["sync"],
            outer=keras.optimizers.SGD(
                outer_rate, momentum=momentum, nesterov=momentum > 0
            ),
        )
    optimizer = tfring.DistributedOptimizer(
        keras.optimizers.AdamW(rate, weight_decay=0.01), **arguments
    )
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=exchange.sync != "gossip",
    )
    end = len(codes) * 9 // 10
    random = np.random.default_rng([seed, tfring.rank()])
    starts = random.integers(
        0, end - CONTEXT - 1, options.steps * options.batch_size
    )
    model.fit(
        *windows(codes, starts),
        batch_size=options.batch_size,
        shuffle=False,
        verbose=0,
        callbacks=[tfring.callbacks.BroadcastGlobalVariablesCallback(0)],
    )
    starts = np.linspace(end, len(codes) - CONTEXT - 2, TEST_WINDOWS)
    return float(model.evaluate(*windows(codes, starts.astype(int)), verbose=0))


def table(figures: Sequence[Figure]) -> str:
    losses: dict[str, list[float]] = {}
    for figure in figures:
        losses.setdefault(figure.exchange, []).append(figure.loss)
    first, *_ = losses.values()
    lines = []
    for exchange, of_seeds in losses.items():
        above = [
            loss / of_first - 1
            for loss, of_first in zip(of_seeds, first, strict=True)
        ]
        seeds = "  ".join(f"{loss:.4f}" for loss in of_seeds)
        lines.append(f"{exchange:24}  {seeds}  {statistics.mean(above):+.2%}")
    return "\n".join(lines)


def main() -> None:
    parser = program.parser(__doc__)
    add_flags(parser, sync="none,diloco:50")
    parser.add_argument(
        "--steps", type=int, default=2400, help="updates of each training"
    )
    parser.add_argument(
        "--start",
        type=float,
        default=0.1,
        help="the share of the steps before the first round or factors",
    )
    parser.add_argument("--batch_size", type=int, default=16, help="of a rank")
    parser.add_argument(
        "--rate",
        type=float,
        default=8e-3,
        help="AdamW's highest learning rate",
    )
    parser.add_argument(
        "--outer",
        type=program.words,
        default="0.9,0.7",
        help="DiLoCo's outer learning rate, and its momentum",
    )
    parser.add_argument(
        "--seeds",
        type=program.numbers,
        default="0,1,2",
        help="of weights and samples",
    )
    options = parser.parse_args()
    chosen = exchanges(options)
    tfring.init()
    codes = text()
    figures = []
    for seed in options.seeds:
        for exchange in chosen:
            loss = train(exchange, seed, codes, options)
            figures.append(Figure(exchange.name or "every step", seed, loss))
            keras.backend.clear_session()
            if tfring.rank() == 0:
                print(figures[-1], flush=True)
    if tfring.rank() == 0:
        print(table(figures))
        program.write_figures(
            options, figures=[dataclasses.asdict(figure) for figure in figures]
        )


if __name__ == "__main__":
    main()
