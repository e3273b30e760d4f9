"""Checks an optimizer of Keras 3, Keras 2 or v1, and makes it distributed."""

from __future__ import annotations

import functools
from typing import Any

import keras
import tensorflow as tf

from tfring._core import runtime
from tfring._gradients.gradient_options import GradientOptions
from tfring._optim.computed_gradients import ComputedGradients
from tfring._optim.keras2_optimizer import (
    Keras2Distributed,
    distribute_keras2,
    is_keras2_optimizer,
)
from tfring._optim.optimizer_class import (
    Distributed,
    accumulates_as_keras,
    distribute,
)
from tfring._optim.rounds import InRounds
from tfring._optim.sharded import Sharded
from tfring._optim.v1_optimizer import V1Optimizer
from tfring._state.optimizers import with_inner


def is_v1(optimizer: Any) -> bool:
    return isinstance(optimizer, tf.compat.v1.train.Optimizer)


def checked_optimizer(optimizer: Any, *, is_of_keras3_alone: bool) -> Any:
    """Returns an optimizer that can be made distributed.

    It may be one of Keras 3, Keras 2 or TensorFlow 1, or a name or a
    configuration. With `is_of_keras3_alone` an option is set that only
    optimizers of Keras 3 support.
    """
    runtime.check_joined()
    if is_v1(optimizer) or is_keras2_optimizer(optimizer):
        if is_of_keras3_alone:
            raise NotImplementedError(
                "DistributedOptimizer: offload, shard_states, sync and "
                "PowerSGD are for Keras 3's optimizers, and this is a "
                f"{type(optimizer).__module__}.{type(optimizer).__name__}. "
                "Leave them out."
            )
    else:
        optimizer = _checked_keras_optimizer(optimizer)
    if any(
        isinstance(each, Distributed | V1Optimizer | Keras2Distributed)
        for each in with_inner(optimizer)
    ):
        raise ValueError(
            f"The optimizer {getattr(optimizer, 'name', '')!r} is distributed "
            "already: DistributedOptimizer changes the optimizer that it is "
            "given. Wrap an optimizer once."
        )
    return optimizer


def _checked_keras_optimizer(optimizer: Any) -> keras.optimizers.Optimizer:
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "tfring needs Keras on its TensorFlow backend, and Keras runs on "
            f"{keras.backend.backend()!r}. Set KERAS_BACKEND=tensorflow."
        )
    if isinstance(optimizer, str | dict):
        try:
            optimizer = keras.optimizers.get(optimizer)
        except (KeyError, ValueError) as error:
            raise ValueError(
                "DistributedOptimizer: Keras makes no optimizer of "
                f"{optimizer!r} ({type(error).__name__}: {error}). Pass a name "
                "such as 'adam', what keras.optimizers.serialize gives, or an "
                "optimizer."
            ) from error
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            "DistributedOptimizer wraps instances of keras.optimizers."
            "Optimizer (Keras 3), their names and configurations, and "
            "optimizers of tf_keras and of tf.compat.v1.train, got "
            f"{optimizer!r} of type "
            f"{type(optimizer).__module__}.{type(optimizer).__name__}. Make "
            "the optimizer with keras.optimizers; with any other, average the "
            "gradients by tfring.DistributedGradientTape."
        )
    return optimizer


def distributed(
    optimizer: Any,
    options: GradientOptions,
    *,
    name: str | None,
    passes: int,
    average_passes: bool,
    use_locking: bool,
) -> Any:
    """Makes an optimizer average gradients.

    `optimizer` is the result of `checked_optimizer`. An update takes the sum of
    the gradients of `passes` batches or, with `average_passes`, the mean.

    Returns:
        `optimizer` itself, changed, or for one of TensorFlow 1 a new optimizer
        around it.
    """
    if isinstance(passes, bool) or not isinstance(passes, int) or passes < 1:
        raise ValueError(
            "DistributedOptimizer: backward_passes_per_step must be a whole "
            f"number of batches, at least 1, got {passes!r}."
        )
    computed = functools.partial(
        ComputedGradients, options, passes, average_passes
    )
    if is_v1(optimizer):
        return V1Optimizer(
            optimizer, computed(), name=name, use_locking=use_locking
        )
    if is_keras2_optimizer(optimizer):
        return distribute_keras2(optimizer, computed, name=name)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    # A loaded optimizer accumulates inside of the loss scale that `compile`
    # has put around it.
    accumulates_inside = passes == inner.gradient_accumulation_steps
    _accumulate(inner if accumulates_inside else optimizer, passes)
    if name is not None:
        optimizer.name = name
    mixin = Distributed
    if options.shard_states or options.sync is not None:
        mixin = Sharded if options.shard_states else InRounds
    # The states belong to the inner optimizer.
    has_own_part = accumulates_inside or mixin is not Distributed
    distribute(
        inner if has_own_part else optimizer,
        options,
        summed_passes=1 if average_passes else passes,
        mixin=mixin,
    )
    return optimizer


def _accumulate(optimizer: Any, passes: int) -> None:
    """Sets up Keras's accumulation of gradients, for more passes than one."""
    if passes == 1 or optimizer.gradient_accumulation_steps == passes:
        return
    problem = None
    if optimizer.gradient_accumulation_steps:
        problem = (
            "has gradient_accumulation_steps="
            f"{optimizer.gradient_accumulation_steps}. Give one of the two"
        )
    elif not accumulates_as_keras(type(optimizer)):
        problem = (
            "applies gradients by a method of its own. Wrap the optimizer "
            "inside it, if there is one"
        )
    elif optimizer.built:
        # A saved file would have accumulators elsewhere among the variables.
        problem = (
            "is built, without variables to accumulate in. Wrap it before its "
            "first use"
        )
    if problem is not None:
        raise ValueError(
            f"DistributedOptimizer: backward_passes_per_step={passes}, but "
            f"the optimizer '{optimizer.name}' {problem}."
        )
    optimizer.gradient_accumulation_steps = passes
