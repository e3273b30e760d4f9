"""`tfring-bench memory`: peak memory and time of memory-saving steps.

It runs on this rank alone, without collectives, except for the policies "whole"
and "sharded". The peak is the most that TensorFlow's allocator has allocated at
once, with weights and batch.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

import tfring
from tfring._core import native
from tfring.bench import plots
from tfring.bench.measure import cpu_seconds
from tfring.bench.statistics import Row, Spread

# The policies that train by an optimizer, on all ranks together.
OPTIMIZERS = ("whole", "sharded")

# With a budget the second step has a plan, and tfring prints after the third.
_WARM_UP_STEPS = 4

layers = keras.layers


def measure_memory(
    model: str,
    *,
    batch_size: int,
    policies: Sequence[str],
    budgets: Sequence[int],
    rounds: int,
    steps: int,
    progress: Callable[[], None] = lambda: None,
) -> tuple[list[Row], dict[str, float]]:
    """Measures training steps under one policy at a time.

    Args:
        model: "mlp", "vgg16", "unet" or "gpt".
        batch_size: The samples of a step.
        policies: "none", "remat" (blocks are computed again, by
            `keras.remat`), "all", "conv" or "auto"; "whole" or "sharded" (the
            states of Adam on every rank, or shared out between the ranks).
        budgets: The budgets of "auto", in bytes of feature maps that stay; by
            default a quarter, a half and three quarters of the bytes that "all"
            moves.
        rounds: The number of turns of each policy.
        steps: The number of steps in a turn.
        progress: Called after each turn.

    Returns:
        A row for each policy, and for "auto" for each budget. Also the bytes of
        this rank's optimizer, for each policy that has one.
    """
    native.capi().tfring_offload_count_allocations()

    optimizer_bytes: dict[str, float] = {}

    def measured(who: str, offload: tfring.Offload | None) -> Row:
        optimizer = None
        if who in OPTIMIZERS:
            optimizer = tfring.DistributedOptimizer(
                "adam", shard_states=who == "sharded"
            )
        keras.backend.clear_session()
        gc.collect()
        # TensorFlow keeps the variables of deleted functions.
        left = _memory_info("current") if optimizer is not None else 0
        keras.utils.set_random_seed(0)
        remat = who == "remat"
        step = _step(model, batch_size, offload, optimizer, remat=remat)
        for _ in range(_WARM_UP_STEPS):
            step()
        seconds, cpu, peaks = [], [], []
        for _ in range(rounds):
            tf.config.experimental.reset_memory_stats(_device())
            cpu_before, start = cpu_seconds(), time.perf_counter()
            for _ in range(steps):
                step()
            peaks.append(_memory_info("peak"))
            seconds.append((time.perf_counter() - start) / steps)
            cpu.append((cpu_seconds() - cpu_before) / steps)
            progress()
        if optimizer is not None:
            optimizer_bytes[f"bytes of the optimizer, {who}"] = sum(
                tf.convert_to_tensor(v).numpy().nbytes
                for v in optimizer.variables
            )
        return Row(
            f"{model}, batch {batch_size}",
            0,
            who,
            Spread.of(seconds),
            statistics.median(cpu),
            added_bytes=max(peaks) - left,
        )

    rows = []
    for policy in policies:
        if policy == "auto":
            continue
        moves = policy not in ("none", "remat", *OPTIMIZERS)
        rows.append(measured(policy, tfring.Offload(policy) if moves else None))
    if "auto" in policies:
        for budget in budgets or _quarters(model, batch_size):
            rows.append(
                measured(
                    f"auto, {budget / 2**20:.0f} MiB",
                    tfring.Offload("auto", budget_bytes=budget),
                )
            )
    return rows, optimizer_bytes


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
) -> Callable[[], Any]:
    """Returns a training step of a model, on the same data in each call."""
    shape, blocks, head = _MODELS[name]()
    calls = [_remat(block) for block in blocks] if remat else blocks
    if name == "gpt":
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

    @tf.function
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
    """VGG-16's convolutions, on images of 64 by 64."""
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
    """Down four times and up again, with skips between the same sizes."""

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


_MODELS: dict[str, Callable[[], _Model]] = {
    "mlp": _mlp,
    "vgg16": _vgg16,
    "unet": _unet,
    "gpt": _gpt,
}


def plot(path: Path, title: str, rows: Sequence[Row]) -> None:
    """Time over memory, a point for each policy."""
    figure, axes = plots.canvas(8, 5)
    plots.title(figure, f"{title}\n{rows[0].case}")
    for row in rows:
        mebibytes = (row.added_bytes or 0) / 2**20
        axes.plot(mebibytes, row.seconds.median * 1e3, "o")
        axes.annotate(
            row.who,
            (mebibytes, row.seconds.median * 1e3),
            xytext=(6, 4),
            textcoords="offset points",
            color=plots.TEXT_COLOUR,
        )
    axes.set_xlabel("peak memory, MiB")
    axes.set_ylabel("a step, ms")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    figure.savefig(path)
