"""Optimizers of TensorFlow 1, `tf.compat.v1.train`, on averaged gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfring._gradients.gradient_options import GradientOptions
from tfring._gradients.reducer import reduce_gradients
from tfring._ops.autograph import not_converted
from tfring._training.weights import warn_if_not_broadcast

_Gradients = list[Any]


class V1Optimizer(tf.compat.v1.train.Optimizer):
    """An optimizer of TensorFlow 1 whose `compute_gradients` gives averages.

    Everything else is the inner optimizer's: slots, variables, updates. A loss
    scale may be inside or outside.
    """

    def __init__(
        self,
        inner: tf.compat.v1.train.Optimizer,
        options: GradientOptions,
        *,
        name: str | None,
        use_locking: bool,
        passes: int,
        average_passes: bool,
    ) -> None:
        super().__init__(
            use_locking, name or f"Distributed{type(inner).__name__}"
        )
        self._inner = inner
        self._tfring_options = options
        self._passes = Passes(passes, average_passes) if passes > 1 else None

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":  # while it is copied
            raise AttributeError(name)
        return getattr(self._inner, name)

    def register_local_var(self, variable: Any) -> None:
        """Leaves the gradient of a variable to each rank."""
        self._tfring_options.local_variables.add(variable)

    @not_converted
    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Returns the pairs of the inner optimizer, with averages."""
        pairs = self._inner.compute_gradients(*args, **kwargs)
        gradients = [gradient for gradient, _ in pairs]
        variables = [variable for _, variable in pairs]
        options = self._tfring_options
        if options.process_set.included():
            warn_if_not_broadcast(
                variables, options.local_variables, options.process_set
            )

        def reduce(gradients: _Gradients) -> _Gradients:
            return reduce_gradients(gradients, variables, options)

        if self._passes is None:
            averages = reduce(gradients)
        else:
            averages = self._passes.add(gradients, variables, reduce)
        return list(zip(averages, variables, strict=True))

    @not_converted
    def apply_gradients(
        self, grads_and_vars: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Applies them by the inner optimizer; after the last pass alone."""
        pairs = list(grads_and_vars)

        def apply() -> Any:
            return self._inner.apply_gradients(pairs, *args, **kwargs)

        if self._passes is None:
            return apply()
        return self._passes.at_the_last(pairs, apply)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        return self._inner.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        return self._inner.get_slot_names(*args, **kwargs)

    def variables(self) -> Any:
        return self._inner.variables()


class Passes:
    """Adds up the gradients of several passes, and reduces their sum."""

    def __init__(self, passes: int, average: bool) -> None:
        self._passes = passes
        self._average = average
        # Made in the first pass.
        self._counter: Any = None
        self._sums: _Gradients = []

    def add(
        self,
        gradients: _Gradients,
        variables: list[Any],
        reduce: Callable[[_Gradients], _Gradients],
    ) -> _Gradients:
        """Returns the averages of sums in the last pass, and zeros before."""
        kept = [i for i, each in enumerate(gradients) if each is not None]
        dense = [tf.convert_to_tensor(gradients[i]) for i in kept]
        if self._counter is None:
            with tf.init_scope():
                self._counter = _own_variable(tf.zeros([], tf.int64))
                self._sums = [
                    _own_variable(
                        tf.zeros(variables[i].shape, gradients[i].dtype)
                    )
                    for i in kept
                ]
        before = self._counter.read_value()
        sums = [
            tf.where(tf.equal(before, 0), gradient, own.read_value() + gradient)
            for gradient, own in zip(dense, self._sums, strict=True)
        ]
        count = (before + 1) % self._passes
        assigned = [
            own.assign(total, read_value=False)
            for own, total in zip(self._sums, sums, strict=True)
        ]
        assigned.append(self._counter.assign(count, read_value=False))

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

    def at_the_last(self, pairs: list[Any], apply: Callable[[], Any]) -> Any:
        """Applies these pairs of `add` if they are of the last pass."""
        waits_for = [each for each, _ in pairs if each is not None]
        with tf.control_dependencies(waits_for):
            count = self._counter.read_value()

        def update() -> Any:
            applied = apply()
            # Eagerly it is None.
            with tf.control_dependencies(
                [applied] if applied is not None else []
            ):
                return tf.constant(True)

        return tf.cond(tf.equal(count, 0), update, lambda: tf.constant(False))


def _own_variable(value: Any) -> Any:
    return tf.compat.v1.Variable(
        value,
        trainable=False,
        use_resource=True,
        collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
    )
