"""Averages of integers, exact for every value.

Note [Exact averages of integers]: the sum for an average may overflow a dtype
that holds the average. So the ranks add up int64 and divide the sums. Integers
of up to 32 bits are sent as one int64, and integers of 64 bits as two: the
upper and the lower 32 bits. Neither sum overflows below 2**30 ranks. Each rank
also sends a 1, and the sum of the ones is the number of ranks that have not
joined. Integers are averaged rarely, and their bytes matter little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfring._core.process_sets import ProcessSet
from tfring._ops.chains import finish
from tfring._ops.groups import in_order, requests_of
from tfring._ops.ordering import Started
from tfring._ops.reductions import ReduceOp

_LOWER = 0xFFFFFFFF

# The relative error that is forgiven: 49 * (1.0 / 49) is a little less than 1,
# and counts as 1, as in cpu_loops.h.
_FORGIVEN = 2.0**-51


class Reduction:
    """The tensors to send for a group: integer averages become summands.

    `names` are the names of `tensors` in errors. `rank_count` is the number of
    ranks that take part; by default they are counted.
    """

    def __init__(
        self,
        op: ReduceOp,
        prescale_factor: float,
        postscale_factor: float,
        tensors: Sequence[tf.Tensor],
        names: Sequence[str],
        rank_count: int | None = None,
    ) -> None:
        self._op = op
        self._factors = prescale_factor, postscale_factor
        self._dtypes = [tensor.dtype for tensor in tensors]
        self._rank_count = rank_count
        # The number of tensors that each tensor is sent as.
        self._counts: list[int] = []
        # The tensors that are sent.
        self._tensors: list[tf.Tensor] = []
        self._names: list[str] = []
        for tensor, name in zip(tensors, names, strict=True):
            before = len(self._tensors)
            if self._is_integer_average(tensor.dtype):
                self._tensors += summands(_scaled(tensor, prescale_factor))
                self._names += _summand_names(tensor.dtype, name)
                if rank_count is None:
                    self._tensors.append(tf.constant(1, tf.int64))
                    self._names.append("number of ranks")
            else:
                self._tensors.append(tensor)
                self._names.append(name)
            self._counts.append(len(self._tensors) - before)

    def run(
        self, start: Callable[..., Started], name: str, process_set: ProcessSet
    ) -> list[tf.Tensor]:
        """Returns the group's results, by one chain with a start per dtype.

        Args:
            start: The function that starts a request, such as
                `chains.start_reducescatter`.
            name: The first request's name; see `requests_of`.
            process_set: The ranks that take part.
        """
        started: Started | None = None
        in_flight = []
        for request in requests_of(self._tensors, name, self._names):
            is_average = self._is_integer_average(request.tensors[0].dtype)
            # Integers are summed here, and divided in `_results`.
            prescale, postscale = (1.0, 1.0) if is_average else self._factors
            started = start(
                request.tensors,
                request_name=request.request_name,
                tensor_names=request.tensor_names,
                previous=started,
                process_set=process_set,
                op=ReduceOp.Sum if is_average else self._op,
                prescale_factor=prescale,
                postscale_factor=postscale,
                last=request.last,
            )
            in_flight.append((request, started))
        return self._results(
            in_order([(request, finish(each)) for request, each in in_flight])
        )

    def _results(self, reduced: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the group's results from the reduced `self._tensors`."""
        results = []
        left = iter(reduced)
        for dtype, count in zip(self._dtypes, self._counts, strict=True):
            parts = [next(left) for _ in range(count)]
            if self._is_integer_average(dtype):
                rank_count = self._rank_count or parts.pop()
                parts = [quotient(parts, rank_count, self._factors[1], dtype)]
            results += parts
        return results

    def _is_integer_average(self, dtype: tf.DType) -> bool:
        return self._op is ReduceOp.Average and dtype.is_integer


def summands(tensor: tf.Tensor) -> list[tf.Tensor]:
    """Returns int64 tensors of the same shape to add up instead of a tensor."""
    if tensor.dtype.size < 8:
        return [tf.cast(tensor, tf.int64)]
    bits = tf.bitcast(tensor, tf.int64)
    lower = tf.constant(_LOWER, tf.int64)
    upper = tf.bitwise.right_shift(bits, tf.constant(32, tf.int64))
    if tensor.dtype.is_unsigned:  # right_shift has repeated the first bit
        upper = tf.bitwise.bitwise_and(upper, lower)
    return [upper, tf.bitwise.bitwise_and(bits, lower)]


def _summand_names(dtype: tf.DType, name: str) -> list[str]:
    """Returns the names of `summands` in errors, which differ by dtype."""
    name = name or "tensor"
    if dtype.size < 8:
        return [f"{name} ({dtype.name})"]
    return [
        f"{name} ({half} half of {dtype.name})" for half in ("upper", "lower")
    ]


def quotient(
    sums: Sequence[tf.Tensor], divisor: Any, factor: float, dtype: tf.DType
) -> tf.Tensor:
    """Returns `factor * sum / divisor` in `dtype`, from the sums of `summands`.

    It is rounded towards zero, once. It is exact if the factor is 1; otherwise
    it is multiplied in float64, and kept within the range of the dtype.
    """
    divisor = tf.cast(divisor, tf.int64)
    if factor != 1.0:
        total = tf.cast(sums[0], tf.float64)
        if len(sums) == 2:
            total = total * 2.0**32 + tf.cast(sums[1], tf.float64)
        return _rounded(total / tf.cast(divisor, tf.float64) * factor, dtype)
    whole, rest = _divided(sums[0], divisor)
    if len(sums) == 2:
        shift = tf.constant(32, tf.int64)
        lower, rest = _divided(
            tf.bitwise.left_shift(rest, shift) + sums[1], divisor
        )
        whole = tf.bitwise.left_shift(whole, shift) + lower
    if not dtype.is_unsigned:
        rounds_up = tf.logical_and(whole < 0, rest > 0)
        whole += tf.cast(rounds_up, tf.int64)
    if dtype.size < 8:
        return tf.cast(whole, dtype)
    return tf.bitcast(whole, dtype)


def _scaled(tensor: tf.Tensor, factor: float) -> tf.Tensor:
    """Returns integers times a factor, as the engine scales them."""
    if factor == 1.0:
        return tensor
    return _rounded(tf.cast(tensor, tf.float64) * factor, tensor.dtype)


def _divided(
    dividend: tf.Tensor, divisor: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    whole = tf.math.floordiv(dividend, divisor)
    return whole, dividend - whole * divisor


def _rounded(values: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Rounds float64 towards zero, and clips to the range of `dtype`."""
    nearest = tf.round(values)
    is_near = tf.abs(values - nearest) <= _FORGIVEN * tf.abs(values)
    values = tf.where(is_near, nearest, values)
    lowest = tf.constant(dtype.min, dtype)
    highest = tf.constant(dtype.max, dtype)
    # The highest 64-bit integer is not a float64, but the one after it is.
    below = values <= float(dtype.min)
    above = values >= float(dtype.max + 1)
    is_inside = tf.logical_not(below | above | tf.math.is_nan(values))
    inside = tf.cast(tf.where(is_inside, values, tf.zeros_like(values)), dtype)
    return tf.where(above, highest, tf.where(below, lowest, inside))
