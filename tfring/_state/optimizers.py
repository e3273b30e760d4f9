"""Finds the optimizers in a model, and those inside of an optimizer."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from typing import Any

import keras

# Optimizers are looked for in attributes of attributes, down to this depth.
_OPTIMIZERS_LIE_DEEP = 4
# Classes whose attributes are not searched. `optimizers_of` visits layers.
_NO_HOLDERS = (
    keras.layers.Layer,
    type,
    types.FunctionType,
    types.MethodType,
    types.ModuleType,
)
_PACKAGES = ("builtins", "keras", "numpy", "tensorflow", "tfring")


def with_inner(optimizer: Any) -> Iterator[Any]:
    """Yields an optimizer, and any inside a LossScale- or MultiOptimizer."""
    yield optimizer
    inner = [getattr(optimizer, "inner_optimizer", None)]
    for each in [*inner, *getattr(optimizer, "optimizers", ())]:
        if each is not None:
            yield from with_inner(each)


def optimizers_of(model: Any) -> list[Any]:
    """Returns all optimizers of a model; an optimizer gives only itself.

    A model may have several optimizers, such as a pair for adversarial
    training, in its attributes and in objects and collections there. The
    attributes of its layers are searched if it has a `train_step` of its own,
    which may use them.
    """
    if isinstance(model, keras.optimizers.Optimizer):
        return [model]
    steps_by_keras = type(model).train_step is keras.Model.train_step
    holders = [model] if steps_by_keras else model._flatten_layers()
    values = [getattr(model, "optimizer", None)]
    for holder in holders:
        values += vars(holder).values()
    found: dict[int, Any] = {}
    seen: set[int] = set()
    for _ in range(_OPTIMIZERS_LIE_DEEP):
        inner: list[Any] = []
        for value in values:
            if isinstance(value, keras.optimizers.Optimizer):
                found[id(value)] = value
            elif id(value) not in seen:
                seen.add(id(value))
                inner += _values_in(value)
        values = inner
    return list(found.values())


def _values_in(holder: Any) -> Iterable[Any]:
    """Returns the values in a collection or in a user's object."""
    if isinstance(holder, dict):
        return holder.values()
    if isinstance(holder, list | tuple):
        return holder
    if isinstance(holder, _NO_HOLDERS) or not hasattr(holder, "__dict__"):
        return ()
    package = type(holder).__module__.partition(".")[0]
    return () if package in _PACKAGES else vars(holder).values()


def all_optimizers(model: Any) -> Iterator[Any]:
    """Yields all optimizers in a model or an optimizer, and inside of them."""
    for optimizer in optimizers_of(model):
        yield from with_inner(optimizer)


def distributed_optimizers(model: Any) -> list[Any]:
    """Returns the distributed optimizers in a model or an optimizer."""
    return [o for o in all_optimizers(model) if hasattr(o, "_tfring_options")]
