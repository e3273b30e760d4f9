"""Optimizers of TensorFlow 1, `tf.compat.v1.train`, on averaged gradients."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfring._ops.autograph import not_converted
from tfring._optim.computed_gradients import ComputedGradients


class V1Optimizer(tf.compat.v1.train.Optimizer):
    """A TensorFlow 1 optimizer with averages from `compute_gradients`.

    Slots, variables and updates are those of the inner optimizer. A loss scale
    may be inside or outside.
    """

    def __init__(
        self,
        inner: tf.compat.v1.train.Optimizer,
        computed: ComputedGradients,
        *,
        name: str | None,
        use_locking: bool,
    ) -> None:
        super().__init__(
            use_locking, name or f"Distributed{type(inner).__name__}"
        )
        self._optimizer = inner
        self._computed = computed

    def __getattr__(self, name: str) -> Any:
        if name == "_optimizer":  # a copy that is being made has none
            raise AttributeError(name)
        return getattr(self._optimizer, name)

    def register_local_var(self, variable: Any) -> None:
        """Leaves the gradient of a variable to each rank."""
        self._computed.options.local_variables.add(variable)

    @not_converted
    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Returns the pairs of the inner optimizer, with averages."""
        return self._computed.averaged(
            self._optimizer.compute_gradients(*args, **kwargs)
        )

    @not_converted
    def apply_gradients(
        self, grads_and_vars: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Applies gradients by the inner optimizer after the last pass."""
        pairs = list(grads_and_vars)
        return self._computed.apply(
            pairs,
            lambda: self._optimizer.apply_gradients(pairs, *args, **kwargs),
        )

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self) -> Any:
        return self._optimizer.variables()
