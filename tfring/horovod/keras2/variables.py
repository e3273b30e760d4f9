"""The variables of a model of Keras 2, and of its optimizer."""

from __future__ import annotations

from typing import Any


def state_variables(model: Any, optimizer: Any) -> list[Any]:
    """Returns the variables without metrics; builds the optimizer if needed."""
    of_metrics = {id(v) for metric in model.metrics for v in metric.variables}
    variables = [v for v in model.variables if id(v) not in of_metrics]
    if optimizer is None:
        return variables
    if hasattr(optimizer, "build"):
        optimizer.build(model.trainable_variables)
    else:
        optimizer._create_all_weights(model.trainable_variables)
    return variables + list(optimizer.variables())
