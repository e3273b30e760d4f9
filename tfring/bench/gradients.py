"""`tfring-bench model`: a known model's gradients, reduced as in a step."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import tfring
from tfring._gradients.gradient_options import GradientOptions
from tfring._gradients.local_gradients import reduce_gradients
from tfring.bench.collectives import InPlace, empty_function
from tfring.bench.measure import Contestant, Simple
from tfring.bench.sizes import Shape


def arrays(
    shapes: Sequence[Shape], rank: int, size: int
) -> tuple[list[np.ndarray[Any, Any]], list[np.ndarray[Any, Any]]]:
    """Returns this rank's arrays, of float32, and their sums over the ranks."""
    mine = [
        np.full(shape, number % 7 + rank + 1, np.float32)
        for number, shape in enumerate(shapes)
    ]
    ranks = size * (size + 1) // 2
    sums = [
        np.full(shape, number % 7 * size + ranks, np.float32)
        for number, shape in enumerate(shapes)
    ]
    return mine, sums


def contestants(
    mine: Sequence[np.ndarray[Any, Any]],
    sums: Sequence[np.ndarray[Any, Any]],
    modes: Sequence[str],
) -> list[Contestant]:
    """Returns contestants that reduce the arrays in each of `modes`.

    In a `tf.function` the arrays are reduced as by `DistributedOptimizer`.
    """
    gradients = [tf.constant(array) for array in mine]
    result: list[Contestant] = []

    def reduce(gradients: list[tf.Tensor]) -> list[Any]:
        return reduce_gradients(
            gradients,
            [None] * len(gradients),
            GradientOptions(op=tfring.Sum),
        )

    if "eager" in modes:
        result.append(
            Simple(
                "tfring eager",
                lambda: tfring.grouped_allreduce(gradients, op=tfring.Sum),
                sums,
            )
        )
    for mode, jit_compile in (("function", False), ("jit", True)):
        if mode in modes:
            function = tf.function(reduce, jit_compile=jit_compile)
            result.append(
                Simple(
                    f"tfring {mode}",
                    functools.partial(function, gradients),
                    sums,
                )
            )
    if "function" in modes:
        result.append(empty_function(gradients, mine))
    if "inplace" in modes:
        result.append(InPlace(gradients, sums))
    return result
