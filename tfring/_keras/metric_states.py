"""The states of a model's metrics: their contents, and how to set them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

_Array = np.ndarray[Any, Any]

# The values of the variables of a model's metrics.
State = list[_Array]

# Keras's metrics whose variables are sums, and how many they have.
_OF_SUMS = {keras.metrics.Mean: 2, keras.metrics.Sum: 1}


def metrics_of(model: Any) -> list[Any]:
    metrics: list[Any] = []
    for metric in model.metrics:  # the metrics of `compile` are one of them
        metrics += getattr(metric, "metrics", [metric])
    return metrics


def state_of(model: Any) -> State:
    return [v.numpy() for metric in metrics_of(model) for v in metric.variables]


def set_state(model: Any, state: State) -> None:
    variables = [v for metric in metrics_of(model) for v in metric.variables]
    for variable, value in zip(variables, state, strict=True):
        variable.assign(value)


def in_shapes(numbers: _Array, shapes: Sequence[Any]) -> list[_Array]:
    """Cuts a vector into consecutive arrays of these shapes."""
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    parts = np.split(numbers, ends[:-1])
    return [
        part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)
    ]


def float_or_array(value: Any) -> Any:
    """Returns a number as a float, and anything else as an array."""
    array = np.asarray(value)
    return float(array) if array.ndim == 0 else array


def consists_of_sums(metric: Any) -> bool:
    """Tells whether a metric's state is known to be sums over samples.

    This holds for Keras's own metrics. Keras assumes it of all metrics
    (`aggregation`), but a maximum, for example, is not a sum.
    """
    ancestors = type(metric).__mro__
    known = next(
        i for i, kind in enumerate(ancestors) if kind.__module__[:6] == "keras."
    )
    if ancestors[known] is keras.metrics.Metric:
        return False
    if not any("update_state" in vars(kind) for kind in ancestors[:known]):
        return True
    # Such a class computes values, and Keras's class takes their mean or sum.
    return any(
        isinstance(metric, kind) and len(metric.variables) == count
        for kind, count in _OF_SUMS.items()
    )
