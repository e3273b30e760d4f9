"""Optimizers of Keras 2, the package `tf_keras`, on averaged gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfring._ops.autograph import not_converted
from tfring._optim.computed_gradients import ComputedGradients


def is_keras2_optimizer(optimizer: Any) -> bool:
    """Tells whether this is an optimizer of Keras 2, without importing it."""
    return hasattr(optimizer, "apply_gradients") and any(
        each.__module__.partition(".")[0] == "tf_keras"
        for each in type(optimizer).__mro__
    )


def distribute_keras2(
    optimizer: Any,
    made_by: Callable[[], ComputedGradients],
    *,
    name: str | None,
) -> Any:
    """Exchanges the class of an optimizer of Keras 2, and returns it.

    The new class has the name and the module of the old one, so that Keras
    saves it under that name. Each optimizer has a class of its own, so that a
    copy by `from_config` reduces gradients in the same way.
    """
    base = type(optimizer)
    optimizer.__class__ = type(
        base.__name__,
        (Keras2Distributed, base),
        {
            "__module__": base.__module__,
            "__doc__": base.__doc__,
            # From Python 3.14 on, a `partial` that is a class attribute becomes
            # a method.
            "_tfring_made_by": staticmethod(made_by),
        },
    )
    if name is not None:
        optimizer._name = name
    return optimizer


class Keras2Distributed:
    """Mixed in before the class of an optimizer of Keras 2.

    Gradients are averaged where they are computed: in `minimize`, and so in
    `fit`. `apply_gradients` reduces nothing.
    """

    _tfring_made_by: Any = None

    @property
    def _agg_helper(self) -> ComputedGradients:
        # Users of Horovod read the counter by this name.
        fields = self.__dict__
        if "_tfring_computed" not in fields:
            # Keras 2's own `__setattr__` is bypassed.
            fields["_tfring_computed"] = self._tfring_made_by()
        computed: ComputedGradients = fields["_tfring_computed"]
        return computed

    def register_local_var(self, var: Any) -> None:
        """Leaves the gradient of a variable to each rank."""
        self._agg_helper.options.local_variables.add(var)

    def compute_gradients(
        self, loss: Any, var_list: Any, tape: Any = None
    ) -> list[Any]:
        return self._compute_gradients(loss, var_list, tape=tape)

    @not_converted
    def _compute_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> list[Any]:
        """Returns averaged pairs, also of `tf_keras.optimizers.legacy`."""
        base: Any = super()
        if hasattr(base, "_compute_gradients"):
            pairs = base._compute_gradients(loss, var_list, grad_loss, tape)
        else:
            pairs = base.compute_gradients(loss, var_list, tape)
        return self._agg_helper.averaged(pairs)

    @not_converted
    def get_gradients(self, loss: Any, params: Any) -> list[Any]:
        """Averages in a graph of TensorFlow 1; for legacy optimizers."""
        base: Any = super()
        params = list(params)
        pairs = zip(base.get_gradients(loss, params), params, strict=True)
        return [average for average, _ in self._agg_helper.averaged(pairs)]

    @not_converted
    def apply_gradients(
        self, grads_and_vars: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Applies gradients after the last of several passes; counts each."""
        base: Any = super()
        pairs = list(grads_and_vars)
        optimizer: Any = self
        return self._agg_helper.apply(
            pairs,
            lambda: base.apply_gradients(pairs, *args, **kwargs),
            lambda: optimizer.iterations.assign_add(1, read_value=False),
        )
