"""The exchange of weights between neighbours.

Note [Gossip]: a rank sends its weights to a few neighbours instead of all
ranks, and takes the mean of its own weights and those that it receives. Each
rank sends as often as it receives, so the mean over all ranks stays the same.
The ranks have no common weights until they take that mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfring._gradients.request_names import request_names_of
from tfring._ops.alltoall import alltoall
from tfring._ops.ordering import traced_for_xla
from tfring._state.round_state import Round, constrained, value_of


class GossipRound(Round):
    """A round of Gossip; see Note [Gossip]."""

    def __init__(self, optimizer: Any) -> None:
        super().__init__(optimizer)
        self._hops = self._options.sync.hops
        with tf.init_scope():
            self._rounds = tf.Variable(0, trainable=False, dtype=tf.int64)
        self.state.append(self._rounds)

    def _end(self) -> None:
        if traced_for_xla():
            raise NotImplementedError(
                "tfring.Gossip sends to neighbours by alltoall, which XLA does "
                "not take. Compile with jit_compile=False."
            )
        process_set = self.process_set
        if process_set.included() and process_set.size() > 1:
            by_dtype: dict[Any, list[Any]] = {}
            for variable in self._variables():
                by_dtype.setdefault(value_of(variable).dtype, []).append(
                    variable
                )
            for variables in by_dtype.values():
                self._mix(variables)
        self._rounds.assign_add(1)

    def _take_as_common(self, variable: Any) -> None:
        pass  # Gossip has no base

    def _mix(self, variables: Sequence[Any]) -> None:
        process_set = self.process_set
        size, rank = process_set.size(), process_set.rank()

        def receivers(number: Any) -> Any:
            found = np.zeros(size, np.int64)
            for hop in self._hops(size, int(number)):
                found[(rank + hop) % size] = 1
            return found

        sends_to = tf.numpy_function(
            receivers, [self._rounds], tf.int64, stateful=False
        )
        sends_to.set_shape([size])
        values = [value_of(variable) for variable in variables]
        flat = tf.concat([tf.reshape(each, [-1]) for each in values], 0)
        count = flat.shape[0]
        [name] = request_names_of(1, process_set, "rounds/gossip")
        received, _ = alltoall(
            tf.tile(flat, [tf.reduce_sum(sends_to)]),
            splits=sends_to * count,
            name=name,
            ignore_name_scope=True,
            process_set=process_set,
        )
        rows = tf.concat(
            [flat[tf.newaxis], tf.reshape(received, [-1, count])], 0
        )
        mean = tf.reduce_mean(rows, 0)
        parts = tf.split(mean, [value.shape.num_elements() for value in values])
        for variable, part, value in zip(variables, parts, values, strict=True):
            mixed = tf.reshape(part, value.shape)
            variable.assign(constrained(variable, mixed))

    def take_mean(self) -> None:
        for variable, mean in zip(
            self._variables(), self.mean(self._values(), "end"), strict=True
        ):
            variable.assign(constrained(variable, mean))
        self._steps.assign(0)

    def distance(self) -> Any:
        """Returns the ranks' relative distance to the mean. Collective."""
        values = [value_of(variable) for variable in self._weights]
        means = self.mean(values, "distance")
        off = [v - m for v, m in zip(values, means, strict=True)]
        [mean_off] = self.mean([_sum_of_squares(off)], "distance")
        size = _sum_of_squares(means)
        return tf.sqrt(tf.math.divide_no_nan(mean_off, size))

    def common_value(self, variable: Any) -> Any:
        return None

    def _values_to_show(self) -> Sequence[Any]:
        return self.mean(self._values(), "mean to show or validate")


def _sum_of_squares(tensors: Iterable[Any]) -> tf.Tensor:
    return tf.add_n(
        [tf.reduce_sum(tf.cast(each, tf.float64) ** 2) for each in tensors]
    )
