"""Runs every collective once, and checks its result.

It is separate from the rest of the self-test, because it imports TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import tfring


def _expect(result: Any, expected: Any) -> None:
    result = np.asarray(result)
    expected = np.asarray(expected).astype(result.dtype)
    if not np.array_equal(result, expected):
        raise ValueError(
            f"wrong result: expected {expected.ravel()[:4]} ..., got "
            f"{result.ravel()[:4]} ..."
        )


def _check_allreduce(rank: int, size: int) -> None:
    total = size * (size + 1) // 2
    for dtype in (tf.float32, tf.bfloat16, tf.int64):
        ones = tf.ones([1000], dtype)
        x = ones * tf.cast(rank + 1, dtype)
        _expect(tfring.allreduce(x, op=tfring.Sum), np.full(1000, total))
        _expect(tfring.allreduce(x, op=tfring.Max), np.full(1000, size))
    mean = tfring.allreduce(tf.fill([3], float(rank + 1)))
    _expect(mean * 2, np.full(3, size + 1))


def _check_grouped_allreduce(rank: int, size: int) -> None:
    tensors = [tf.fill([n], float(rank)) for n in (1, 1000, 100_000)]
    results = tfring.grouped_allreduce(tensors, op=tfring.Sum)
    for tensor, result in zip(tensors, results, strict=True):
        _expect(result, np.full(tensor.shape, size * (size - 1) // 2))


def _check_allgather(rank: int, size: int) -> None:
    result = tfring.allgather(tf.fill([rank + 1, 2], rank))
    rows = [[r, r] for r in range(size) for _ in range(r + 1)]
    _expect(result, rows)


def _check_broadcast(rank: int, size: int) -> None:
    for root in (0, size - 1):
        _expect(tfring.broadcast(tf.fill([1000], rank), root), [root] * 1000)


def _check_reducescatter(rank: int, size: int) -> None:
    rows = tf.range(2 * size) * (rank + 1)
    result = tfring.reducescatter(rows, op=tfring.Sum)
    _expect(result, np.arange(2 * rank, 2 * rank + 2) * size * (size + 1) // 2)


def _check_alltoall(rank: int, size: int) -> None:
    rows = tf.repeat(tf.range(size), tf.range(size))  # r rows for rank r
    result, received = tfring.alltoall(rows * size + rank, tf.range(size))
    senders = np.repeat(np.arange(size), rank)
    _expect(result, rank * size + senders)
    _expect(received, [rank] * size)


def _check_barrier(rank: int, size: int) -> None:
    del rank, size
    tfring.barrier()


def _check_join(rank: int, size: int) -> None:
    del rank
    _expect(0 <= tfring.join() < size, True)


def _check_function(rank: int, size: int, *, jit_compile: bool = False) -> None:
    def step(x: tf.Tensor) -> Any:
        y = tfring.allreduce(x, op=tfring.Sum, name="self_test/x")
        return tfring.broadcast(y * x, 0, name="self_test/y")

    compiled_step = tf.function(step, jit_compile=jit_compile)
    for factor in range(1, 4):
        expected = factor * factor * size * (size + 1) // 2
        result = compiled_step(tf.fill([1000], factor * (rank + 1.0)))
        _expect(result, np.full(1000, expected))


def _check_jit(rank: int, size: int) -> None:
    _check_function(rank, size, jit_compile=True)


CHECKS: Sequence[tuple[str, Callable[[int, int], None]]] = (
    ("allreduce", _check_allreduce),
    ("grouped_allreduce", _check_grouped_allreduce),
    ("allgather", _check_allgather),
    ("broadcast", _check_broadcast),
    ("reducescatter", _check_reducescatter),
    ("alltoall", _check_alltoall),
    ("barrier", _check_barrier),
    ("join", _check_join),
    ("in a tf.function", _check_function),
    ("with jit_compile=True", _check_jit),
)
