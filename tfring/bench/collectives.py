"""The contestants of `tfring-bench allreduce` and other collectives."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import tfring
from tfring.bench.kinds import KINDS
from tfring.bench.measure import Contestant, Simple, expect


@dataclasses.dataclass(frozen=True)
class Problem:
    """One collective on arrays of one size, and its result."""

    kind: str
    mine: np.ndarray[Any, Any]  # this rank's input
    expected: np.ndarray[Any, Any]  # this rank's result
    # The bytes that all ranks together give or get, counted once as in
    # nccl-tests.
    count_bytes: int

    @classmethod
    def of(
        cls, kind: str, count_bytes: int, dtype: str, rank: int, size: int
    ) -> Problem:
        """Makes about `count_bytes` of small whole numbers with exact sums."""
        numpy_dtype = np.dtype(tf.as_dtype(dtype).as_numpy_dtype)
        count = max(1, count_bytes // numpy_dtype.itemsize)
        what = KINDS[kind]
        part = max(1, count // size) if what.shares else count
        if what.shares:
            count = part * size
        base = np.arange(part if what.brings_share else count) % 5
        all_ranks = [(base + (r + 1)).astype(numpy_dtype) for r in range(size)]
        expected = what.result(all_ranks, slice(rank * part, (rank + 1) * part))
        return cls(
            kind, all_ranks[rank], expected, count * numpy_dtype.itemsize
        )


def contestants(problem: Problem, modes: Sequence[str]) -> list[Contestant]:
    """Returns tfring's contestants, for each of `modes` that it supports.

    The modes "eager" and "function" add an operation and a `tf.function` that
    do nothing, because the cost of a call is no part of the collective.
    """
    x = tf.constant(problem.mine)
    kind = KINDS[problem.kind]
    options = {"op": tfring.Sum} if kind.reduces else {}
    # A partial function costs less than a function of Python.
    operation = functools.partial(
        getattr(tfring, problem.kind), **options, **kind.arguments
    )

    # A `tf.function` of a partial would check all of its arguments.
    def traced(x: tf.Tensor) -> Any:
        return operation(x)

    result: list[Contestant] = []

    def add(name: str, function: Callable[[], Any], expected: Any) -> None:
        result.append(Simple(name, function, expected))

    if "eager" in modes:
        add("tfring eager", lambda: operation(x), problem.expected)
        result.append(
            Empty("empty eager", lambda: tf.identity(x), problem.mine)
        )
    if "function" in modes:
        function = tf.function(traced)
        add("tfring function", lambda: function(x), problem.expected)
        result.append(empty_function(x, problem.mine))
    if "jit" in modes and kind.with_jit:
        compiled = tf.function(traced, jit_compile=True)
        add("tfring jit", lambda: compiled(x), problem.expected)
    if "inplace" in modes and problem.kind == "allreduce":
        result.append(InPlace([x], [problem.expected]))
    return result


class Empty(Simple):
    """A contestant that moves nothing."""

    moves_bytes = False


def empty_function(tensors: Any, arrays: Any) -> Empty:
    """Returns a contestant whose `tf.function` only returns its arguments."""
    function = tf.function(lambda x: tf.nest.map_structure(tf.identity, x))
    return Empty("empty function", lambda: function(tensors), arrays)


class InPlace(Contestant):
    """Allreduces in a `tf.function`, of tensors that nothing else uses.

    A function's arguments belong to the caller, so the first reduction makes a
    copy. Each later reduction works in the previous result. Only the later ones
    are timed, inside of the function.
    """

    _CHAIN = 4

    def __init__(
        self, tensors: Sequence[tf.Tensor], totals: Sequence[Any]
    ) -> None:
        super().__init__("tfring in place")
        self.operations_per_call = 1 + self._CHAIN
        self._tensors = list(tensors)
        # Values are whole numbers times a power of the size. At worst they
        # overflow to infinity in float16, on all ranks alike.
        factor = tfring.size() ** self._CHAIN
        self._expected = [total * factor for total in totals]

        def chain(tensors: list[tf.Tensor]) -> Any:
            tensors = tfring.grouped_allreduce(tensors, op=tfring.Sum)
            start = tf.timestamp()
            for _ in range(self._CHAIN):
                tensors = tfring.grouped_allreduce(tensors, op=tfring.Sum)
            return tensors, tf.timestamp() - start

        self._chain = tf.function(chain)

    def call(self) -> Any:
        return self._chain(self._tensors)

    def check(self) -> None:
        tensors, _ = self.call()
        expect(tensors, self._expected, relative=1e-2)

    def seconds(self, calls: int) -> float:
        inside = sum(float(self.call()[1]) for _ in range(calls))
        return inside / calls / self._CHAIN
