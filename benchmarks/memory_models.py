"""The models of memory.py.

Each function returns the shape of one example, the model's blocks, and its
head.
"""

from collections.abc import Callable
from typing import Any

import keras

layers = keras.layers

Model = tuple[tuple[int, ...], list[Any], Any]


def _mlp() -> Model:
    blocks = [
        keras.Sequential(
            [layers.Dense(256, activation="gelu") for _ in range(4)]
        )
        for _ in range(4)
    ]
    return (256,), blocks, layers.Dense(1)


def _vgg16() -> Model:
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


def _unet() -> Model:
    return (64, 64, 3), [UNet()], layers.Conv2D(1, 1)


LETTERS = 256


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


def _gpt() -> Model:
    blocks = [layers.Embedding(LETTERS, 128), *(Block(128) for _ in range(6))]
    return (128,), blocks, layers.Dense(LETTERS)


def _gpt384() -> Model:
    blocks = [layers.Embedding(LETTERS, 384), *(Block(384) for _ in range(8))]
    return (32,), blocks, layers.Dense(LETTERS)


MODELS: dict[str, Callable[[], Model]] = {
    "mlp": _mlp,
    "vgg16": _vgg16,
    "unet": _unet,
    "gpt": _gpt,
    "gpt384": _gpt384,
}
