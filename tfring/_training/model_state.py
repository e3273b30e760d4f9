"""Broadcasts the whole state of a Keras model and its optimizer."""

from __future__ import annotations

from typing import Any

from tfring._gradients.local_variables import LocalVariables
from tfring._ops.devices import on_device
from tfring._training.state import broadcast_variables


def broadcast_model(
    model: Any,
    *,
    root_rank: int,
    local_variables: LocalVariables,
    device: str = "",
    same_seeds: bool = False,
) -> None:
    """Gives every rank the weights and optimizer's state of one.

    Collective. Seeds are those of that rank folded with each one's own; metrics
    remain each rank's own.

    Args:
        model: A Keras model that has been built. Its optimizer is, if need be.
        root_rank: The rank whose state all others take.
        local_variables: The model's variables that stay as they are.
        device: Where the collective is placed.
        same_seeds: Whether seeds become that rank's own.
    """
    of_metrics = {id(v) for v in model.metrics_variables}
    variables = [
        v
        for v in model.variables
        if id(v) not in of_metrics and v not in local_variables
    ]
    optimizer = model.optimizer
    if optimizer is not None:
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        variables += optimizer.variables
    with on_device(device):
        broadcast_variables(
            variables, root_rank=root_rank, same_seeds=same_seeds
        )
