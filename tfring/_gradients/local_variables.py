"""Local variables: variables that each rank trains by itself."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import keras

# The keys are `id`s: Keras variables cannot be in a set, because their `==`
# compares values.
_row_shards: weakref.WeakValueDictionary[int, Any] = (
    weakref.WeakValueDictionary()
)


def inner_variable(variable: Any) -> Any:
    """Returns TensorFlow's variable inside a Keras variable, or `variable`."""
    # `value` may be cast, in a scope of mixed precision; `_value` is not.
    return variable._value if isinstance(variable, keras.Variable) else variable


def variable_key(variable: Any) -> Any:
    """Returns one key for a Keras variable and the TensorFlow one inside it."""
    return id(inner_variable(variable))


def mark_row_shard(variable: Any) -> None:
    """Marks a Keras variable that has this rank's rows of a larger table.

    It is a local variable of every optimizer and tape. Its gradient is of the
    sum of the ranks' losses, since all ranks send theirs for its rows.
    """
    _row_shards[id(variable)] = variable


def is_row_shard(variable: Any) -> bool:
    """Tells whether a variable is marked, or is TensorFlow's inside one."""
    # A Keras variable that is not yet initialized has None inside.
    return variable is not None and any(
        variable is each or variable is each._value
        for each in _row_shards.values()
    )


class LocalVariables:
    """Variables, and layers that may create their variables later.

    Variables that are row shards always belong to the local variables.
    """

    def __init__(
        self, variables: Iterable[Any] = (), layers: Iterable[Any] = ()
    ) -> None:
        self._layers = list(layers)
        # Variables are held, so that no other gets the same id.
        self._variables = list(variables)

    def __bool__(self) -> bool:
        return bool(self._layers or self._variables)

    def __contains__(self, variable: Any) -> bool:
        if is_row_shard(variable):
            return True
        of_layers = [v for layer in self._layers for v in layer.variables]
        key = variable_key(variable)
        return any(key == variable_key(v) for v in self._variables + of_layers)

    def add(self, variable: Any) -> None:
        self._variables.append(variable)


def checked_layers(function: str, layers: Any) -> list[Any]:
    """Returns one layer, several layers or None as a list of layers."""
    if layers is None:
        return []
    if not isinstance(layers, Sequence):
        layers = [layers]
    for layer in layers:
        # The class is not checked, because layers of Keras 2 have another one.
        if not hasattr(layer, "trainable_variables"):
            raise ValueError(
                f"{function}: local_layers must be Keras layers, got "
                f"{layer!r} of type {type(layer).__name__}."
            )
    return list(layers)
