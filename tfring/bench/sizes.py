"""Sizes of the buffers to measure, and the gradients of known models."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

Shape = tuple[int, ...]

_UNITS = {"k": 10, "m": 20, "g": 30}


def parse_bytes(text: str) -> int:
    """Parses a size: `"64m"` and `"64M"` are 64 MiB, `"64"` is 64 bytes.

    Raises:
        argparse.ArgumentTypeError: The text is not such a size.
    """
    number, unit = text.strip(), 0
    if number and number[-1].lower() in _UNITS:
        unit = _UNITS[number[-1].lower()]
        number = number[:-1]
    if not number.isdecimal() or int(number) == 0:
        raise argparse.ArgumentTypeError(
            f"a size is a number of bytes from 1, such as 4096, 64k, 16m or 1g;"
            f" got {text!r}."
        )
    return int(number) << unit


def steps(first: int, last: int, factor: int) -> list[int]:
    """Returns sizes from `first` to `last`, each `factor` times the one before.

    Raises:
        ValueError: There is no such size, or the sizes do not grow.
    """
    if factor < 2:
        raise ValueError(f"the step factor must be 2 or more, got {factor}.")
    if first > last:
        raise ValueError(
            f"the smallest size, {first} bytes, is over the largest, {last}."
        )
    sizes = [first]
    while sizes[-1] * factor <= last:
        sizes.append(sizes[-1] * factor)
    return sizes


def format_bytes(count: int) -> str:
    """Formats bytes in the largest unit that leaves a whole number: 4 MiB."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 1 << shift and count % (1 << shift) == 0:
            return f"{count >> shift} {unit}"
    if count >= 1 << 20:
        return f"{count / 1e6:.1f} MB"
    return f"{count} B"


def resnet50() -> list[Shape]:
    """Returns the shapes of ResNet-50's trainable variables for 1000 classes.

    Reference: He, Zhang, Ren and Sun, "Deep Residual Learning for Image
    Recognition", 2015, with convolutions that have no bias.
    """

    def convolution(kernel: int, inputs: int, filters: int) -> Iterator[Shape]:
        yield (kernel, kernel, inputs, filters)
        # The scale and the offset of the convolution's batch normalization.
        yield (filters,)
        yield (filters,)

    shapes = list(convolution(7, 3, 64))
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            outputs = 4 * width
            if block == 0:
                shapes += convolution(1, inputs, outputs)  # the shortcut
            shapes += convolution(1, inputs, width)
            shapes += convolution(3, width, width)
            shapes += convolution(1, width, outputs)
            inputs = outputs
    return [*shapes, (inputs, 1000), (1000,)]


def bert_base() -> list[Shape]:
    """Returns the shapes of BERT-base's variables (uncased, with the pooler).

    Reference: Devlin, Chang, Lee and Toutanova, "BERT: Pre-training of Deep
    Bidirectional Transformers for Language Understanding", 2018.
    """
    words, positions, segments = 30522, 512, 2
    width, inner, layers = 768, 3072, 12
    norm = [(width,), (width,)]

    def dense(inputs: int, outputs: int) -> list[Shape]:
        return [(inputs, outputs), (outputs,)]

    shapes: list[Shape] = [
        (words, width),
        (positions, width),
        (segments, width),
        *norm,
    ]
    for _ in range(layers):
        for _ in ("query", "key", "value", "output"):
            shapes += dense(width, width)
        shapes += norm
        shapes += dense(width, inner)
        shapes += dense(inner, width)
        shapes += norm
    return [*shapes, *dense(width, width)]


PRESETS: dict[str, Callable[[], list[Shape]]] = {
    "resnet50": resnet50,
    "bert-base": bert_base,
}
