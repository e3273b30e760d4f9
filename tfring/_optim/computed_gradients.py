"""Averages gradients when an optimizer computes them, before it applies them.

It serves optimizers of TensorFlow 1 and of Keras 2, whose `compute_gradients`
users of Horovod also call by itself. Keras 3 has no such method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from tfring._core import runtime
from tfring._gradients.gradient_options import GradientOptions
from tfring._gradients.local_gradients import scale_unless_by_tape
from tfring._gradients.reducer import (
    count_of_calls,
    name_of,
    reduce_shared_gradients,
)
from tfring._optim.undistributed import warn_not_distributed
from tfring._state.weights import warn_if_not_broadcast

_Gradients = list[Any]


class ComputedGradients:
    """Averages the pairs of gradients and variables of an optimizer.

    With several passes it adds up their gradients, and averages the sum.

    `passes` is the number of batches for each update, which takes the sum of
    their gradients or, with `average_passes`, the mean.
    """

    def __init__(
        self, options: GradientOptions, passes: int, average_passes: bool
    ) -> None:
        self.options = options
        self._passes = passes
        self._average = average_passes
        self._has_computed = False
        # The number of passes since the last update, and their sums. Both are
        # made in the first of several passes.
        self.counter: Any = None
        self._sums: _Gradients = []

    def averaged(self, pairs: Iterable[Any]) -> list[Any]:
        """Returns pairs of averages; before the last pass, of zeros.

        Collective in the last pass.
        """
        self._has_computed = True
        pairs = list(pairs)
        variables = [variable for _, variable in pairs]
        warn_if_not_broadcast(variables, self.options)
        gradients = scale_unless_by_tape(
            [gradient for gradient, _ in pairs], variables, self.options
        )

        def reduce(gradients: _Gradients) -> _Gradients:
            return reduce_shared_gradients(gradients, variables, self.options)

        if self._passes == 1:
            averages = reduce(gradients)
        else:
            averages = self._add(gradients, variables, reduce)
        return list(zip(averages, variables, strict=True))

    def apply(
        self,
        pairs: list[Any],
        apply: Callable[[], Any],
        count_batch: Callable[[], Any] = lambda: None,
    ) -> Any:
        """Calls `apply` after the last pass.

        `pairs` is the result of `averaged`. Before the last pass `count_batch`
        is called instead of `apply`.

        Raises:
            ValueError: There are several passes, and `averaged` was not called.
        """
        # Any optimizer or tape of the program may have averaged them.
        has_averaged = self._has_computed or count_of_calls() > 0
        if runtime.size() > 1 and not has_averaged:
            warn_not_distributed(
                "apply_gradients was given gradients that nothing has averaged",
                "Compute them by the optimizer's minimize or "
                "compute_gradients, or by a tfring.DistributedGradientTape.",
            )
        if self._passes == 1:
            return apply()
        if self.counter is None:
            raise ValueError(
                "apply_gradients: with backward_passes_per_step the optimizer "
                "adds up what its minimize or compute_gradients has computed, "
                "and it has computed nothing."
            )
        waits_for = [each for each, _ in pairs if each is not None]
        with tf.control_dependencies(waits_for):
            count = self.counter.read_value()

        def after(done: Any) -> tf.Tensor:
            # In eager mode `apply` returns None.
            with tf.control_dependencies([done] if done is not None else []):
                return tf.constant(True)

        return tf.cond(
            tf.equal(count, 0),
            lambda: after(apply()),
            lambda: after(count_batch()),
        )

    def _add(
        self,
        gradients: _Gradients,
        variables: list[Any],
        reduce: Callable[[_Gradients], _Gradients],
    ) -> _Gradients:
        """Returns the averages of sums in the last pass, and zeros before."""
        kept = [i for i, each in enumerate(gradients) if each is not None]
        dense = [tf.convert_to_tensor(gradients[i]) for i in kept]
        if self.counter is None:
            self._make_variables(
                {i: (variables[i], gradients[i].dtype) for i in kept}
            )
        with tf.control_dependencies(_check_initialized(self.counter)):
            before = self.counter.read_value()
            sums = [
                tf.where(
                    tf.equal(before, 0), gradient, own.read_value() + gradient
                )
                for gradient, own in zip(dense, self._sums, strict=True)
            ]
        count = (before + 1) % self._passes
        assigned = [
            own.assign(total, read_value=False)
            for own, total in zip(self._sums, sums, strict=True)
        ]
        assigned.append(self.counter.assign(count, read_value=False))

        def averages() -> _Gradients:
            totals: _Gradients = [None] * len(gradients)
            for i, total in zip(kept, sums, strict=True):
                totals[i] = total / self._passes if self._average else total
            reduced = reduce(totals)
            return [tf.convert_to_tensor(reduced[i]) for i in kept]

        with tf.control_dependencies(
            [each for each in assigned if each is not None]
        ):
            found = tf.cond(
                tf.equal(count, 0),
                averages,
                lambda: [tf.zeros_like(each) for each in sums],
            )
        result: _Gradients = [None] * len(gradients)
        for i, each in zip(kept, found, strict=True):
            result[i] = each
        return result

    def _make_variables(self, summed: dict[int, tuple[Any, tf.DType]]) -> None:
        """Makes the counter, and a sum for each gradient by its number."""
        with tf.init_scope():
            self.counter = _own_variable(
                tf.zeros([], tf.int64), "tfring/passes"
            )
            self._sums = [
                _own_variable(
                    tf.zeros(variable.shape, dtype),
                    f"tfring/sum_of_{name_of(variable, i)}",
                )
                for i, (variable, dtype) in summed.items()
            ]


def _own_variable(value: Any, name: str) -> Any:
    return tf.compat.v1.Variable(
        value,
        trainable=False,
        use_resource=True,
        name=name.partition(":")[0],
        collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
    )


def _check_initialized(variable: Any) -> list[Any]:
    """Returns checks, for TensorFlow 1, that a variable is initialized."""
    with tf.init_scope():
        if tf.executing_eagerly():
            return []  # eager variables always have a value
    check = tf.debugging.Assert(
        tf.compat.v1.is_variable_initialized(variable),
        [
            "DistributedOptimizer: with backward_passes_per_step the sums of "
            "gradients are local variables of the graph, and "
            f"{variable.name} has no value. Besides "
            "global_variables_initializer run tf.compat.v1."
            "local_variables_initializer in the session; a "
            "MonitoredTrainingSession does so by itself."
        ],
    )
    return [check]
