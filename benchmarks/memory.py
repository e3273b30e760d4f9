r"""Measures peak memory and time of memory-saving training steps.

  .venv/bin/python benchmarks/memory.py --model=vgg16 --policies=none,all,auto
  tfringrun -np 2 .venv/bin/python benchmarks/memory.py \
      --model=gpt384 --batch_size=2 --policies=whole,sharded,parameters

It runs on this rank alone, without collectives, except for the policies
"whole", "sharded" and "parameters". The peak is the most that TensorFlow's
allocator has allocated at once, with weights and batch.
"""

import argparse
import contextlib
import gc
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import program
import tensorflow as tf

import tfring
from tfring._core import native
from tfring.bench import plots, sizes
from tfring.bench.measure import cpu_seconds
from tfring.bench.statistics import Row, Spread

# The policies that train by an optimizer, on all ranks together.
OPTIMIZERS = ("whole", "sharded", "parameters")

# With a budget the second step has a plan, and tfring prints after the third.
_WARM_UP_STEPS = 4

layers = keras.layers


def measure(
    options: argparse.Namespace,
) -> tuple[list[Row], dict[str, float]]:
    """Measures training steps under one policy at a time.

    Returns:
        A row for each policy, and for "auto" for each budget. Also the bytes of
        this rank's optimizer, for each policy that has one.
    """
    native.capi().tfring_offload_count_allocations()
    offloads: dict[str, tfring.Offload | None] = {
        policy: None
        if policy in ("none", "remat", *OPTIMIZERS)
        else tfring.Offload(policy)
        for policy in options.policies
        if policy != "auto"
    }
    if "auto" in options.policies:
        for budget in [
            sizes.parse_bytes(text) for text in options.budgets
        ] or _quarters(options.model, options.batch_size):
            offloads[f"auto, {budget / 2**20:.0f} MiB"] = tfring.Offload(
                "auto", budget_bytes=budget
            )
    rows = []
    optimizer_bytes: dict[str, float] = {}
    for who, offload in offloads.items():
        optimizer = None
        if who in OPTIMIZERS:
            optimizer = tfring.DistributedOptimizer(
                "adam", shard_states=who != "whole"
            )
        rows.append(_measure_policy(options, who, offload, optimizer))
        if optimizer is not None:
            optimizer_bytes[f"bytes of the optimizer, {who}"] = sum(
                tf.convert_to_tensor(v).numpy().nbytes
                for v in optimizer.variables
            )
    return rows, optimizer_bytes


def _measure_policy(
    options: argparse.Namespace,
    who: str,
    offload: tfring.Offload | None,
    optimizer: Any,
) -> Row:
    keras.backend.clear_session()
    gc.collect()
    # TensorFlow keeps the variables of deleted functions.
    left = _memory_info("current") if optimizer is not None else 0
    keras.utils.set_random_seed(0)
    sharded = contextlib.nullcontext()
    if who == "parameters":
        sharded = tfring.shard_parameters(
            min_elements=1024, group_bytes=sizes.parse_bytes(options.group)
        )
    with sharded:
        step = _step(
            options.model,
            options.batch_size,
            offload,
            optimizer,
            remat=who == "remat",
            jit_compile=options.jit_compile,
        )
    for _ in range(_WARM_UP_STEPS):
        step()
    seconds, cpu, peaks = [], [], []
    for _ in range(options.rounds):
        tf.config.experimental.reset_memory_stats(_device())
        cpu_before, start = cpu_seconds(), time.perf_counter()
        for _ in range(options.steps):
            step()
        peaks.append(_memory_info("peak"))
        seconds.append((time.perf_counter() - start) / options.steps)
        cpu.append((cpu_seconds() - cpu_before) / options.steps)
    return Row(
        f"{options.model}, batch {options.batch_size}",
        0,
        who,
        Spread.of(seconds),
        statistics.median(cpu),
        added_bytes=max(peaks) - left,
    )


def _quarters(model: str, batch_size: int) -> list[int]:
    """Returns 1/4, 1/2 and 3/4 of the feature maps' bytes."""
    offload = tfring.Offload("all")
    _step(model, batch_size, offload, None, remat=False)()
    known = offload.statistics()
    whole = known.moved_bytes if known else 0  # below min_bytes
    return [max(1, whole * part // 4) for part in (1, 2, 3)]


def _memory_info(what: str) -> int:
    return int(tf.config.experimental.get_memory_info(_device())[what])


def _device() -> str:
    """Returns the device for the steps."""
    return "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"


def _step(
    name: str,
    batch_size: int,
    offload: tfring.Offload | None,
    optimizer: Any,
    *,
    remat: bool,
    jit_compile: bool = False,
) -> Callable[[], Any]:
    """Returns a training step of a model, on the same data in each call."""
    shape, blocks, head = _MODELS[name]()
    calls = [_remat(block) for block in blocks] if remat else blocks
    if name.startswith("gpt"):
        x = tf.random.stateless_uniform(
            [batch_size, *shape], [0, 1], 0, _LETTERS, tf.int32
        )
    else:
        x = tf.random.stateless_normal([batch_size, *shape], [0, 1])

    def loss_of(value: Any) -> Any:
        for call in calls:
            value = call(value)
        return tf.reduce_mean(head(value) ** 2)

    loss_of(x[:1])  # makes the variables
    variables = [
        variable
        for layer in [*blocks, head]
        for variable in layer.trainable_weights
    ]

    @tf.function(jit_compile=jit_compile or None)
    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(tf.identity(x))
        gradients = tape.gradient(loss, variables)
        if offload is not None:
            tfring.offload_activations(gradients, offload)
        if optimizer is not None:
            optimizer.apply(gradients, variables)
            return loss
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.assign_sub(1e-3 * tf.convert_to_tensor(gradient))
        return loss

    return lambda: step().numpy()


def _remat(block: Any) -> Any:
    # Keras takes positional arguments alone here.
    again = keras.remat(block)
    return lambda value: again(value)


_Model = tuple[tuple[int, ...], list[Any], Any]


def _mlp() -> _Model:
    blocks = [
        keras.Sequential(
            [layers.Dense(256, activation="gelu") for _ in range(4)]
        )
        for _ in range(4)
    ]
    return (256,), blocks, layers.Dense(1)


def _vgg16() -> _Model:
    """Makes VGG-16's convolutions, for images of 64 by 64."""
    blocks = [
        keras.Sequential(
            [
                *(
                    layers.Conv2D(width, 3, padding="same", activation="relu")
                    for _ in range(depth)
                ),
                layers.MaxPooling2D(),
            ]
        )
        for width, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
    ]
    head = keras.Sequential(
        [layers.Flatten(), layers.Dense(512, activation="relu")]
    )
    return (64, 64, 3), blocks, head


class UNet(keras.layers.Layer):
    """Halves the sides four times and doubles them again, with skips."""

    def __init__(self) -> None:
        super().__init__()
        widths = (16, 32, 64, 128)
        self.down = [self._pair(width) for width in widths]
        self.bottom = self._pair(256)
        self.up = [self._pair(width) for width in reversed(widths)]

    def _pair(self, width: int) -> Any:
        return keras.Sequential(
            [
                layers.Conv2D(width, 3, padding="same", activation="relu")
                for _ in range(2)
            ]
        )

    def call(self, value: Any) -> Any:
        skips = []
        for pair in self.down:
            value = pair(value)
            skips.append(value)
            value = keras.ops.max_pool(value, 2)
        value = self.bottom(value)
        for pair in self.up:
            value = keras.ops.repeat(keras.ops.repeat(value, 2, 1), 2, 2)
            value = pair(keras.ops.concatenate([value, skips.pop()], -1))
        return value


def _unet() -> _Model:
    return (64, 64, 3), [UNet()], layers.Conv2D(1, 1)


_LETTERS = 256


class Block(keras.layers.Layer):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = layers.MultiHeadAttention(4, width // 4)
        self.before = layers.LayerNormalization()
        self.between = layers.LayerNormalization()
        self.wide = layers.Dense(4 * width, activation="gelu")
        self.narrow = layers.Dense(width)

    def call(self, value: Any) -> Any:
        normal = self.before(value)
        value += self.attention(normal, normal, use_causal_mask=True)
        return value + self.narrow(self.wide(self.between(value)))


def _gpt() -> _Model:
    blocks = [layers.Embedding(_LETTERS, 128), *(Block(128) for _ in range(6))]
    return (128,), blocks, layers.Dense(_LETTERS)


def _gpt384() -> _Model:
    blocks = [layers.Embedding(_LETTERS, 384), *(Block(384) for _ in range(8))]
    return (32,), blocks, layers.Dense(_LETTERS)


_MODELS: dict[str, Callable[[], _Model]] = {
    "mlp": _mlp,
    "vgg16": _vgg16,
    "unet": _unet,
    "gpt": _gpt,
    "gpt384": _gpt384,
}


def plot(path: Path, rows: Sequence[Row]) -> None:
    """Draws time over memory, with a point for each policy."""
    figure, axes = plots.canvas(8, 5, rows[0].case)
    for row in rows:
        point = ((row.added_bytes or 0) / 2**20, row.seconds.median * 1e3)
        axes.plot(*point, "o")
        axes.annotate(
            row.who,
            point,
            xytext=(6, 4),
            textcoords="offset points",
            color=plots.TEXT_COLOUR,
        )
    axes.set_xlabel("peak memory, MiB")
    axes.set_ylabel("a step, ms")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    figure.savefig(path)


def main() -> None:
    parser = program.parser(__doc__)
    parser.add_argument("--model", choices=_MODELS, default="mlp")
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=10, help="of a turn")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each")
    parser.add_argument(
        "--policies",
        type=program.words,
        default="none,all,conv",
        help="none; remat (keras.remat of each block); all, conv and auto (by "
        "tfring.Offload); whole, sharded and parameters (Adam's states on "
        "every rank, or shared out between the ranks, or with the parameters)",
    )
    parser.add_argument(
        "--group", default="7m", help="group_bytes of the policy parameters"
    )
    parser.add_argument("--jit_compile", action="store_true")
    parser.add_argument(
        "--budgets",
        type=program.words,
        default="",
        help="of auto, in bytes of feature maps that stay: 300m,600m, for "
        "example; by default a quarter, a half and three quarters of all",
    )
    parser.add_argument(
        "--plot", type=Path, help="a PNG or SVG file; needs matplotlib"
    )
    options = parser.parse_args()
    tfring.init()
    rows, summary = measure(options)
    program.show_rows(options, rows, **summary)
    if options.plot and tfring.rank() == 0:
        plot(options.plot, rows)


if __name__ == "__main__":
    main()
