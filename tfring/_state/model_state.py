"""Broadcasts the whole state of a Keras model and its optimizer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tfring._core.process_sets import ProcessSet, global_process_set
from tfring._gradients.local_variables import LocalVariables
from tfring._ops.devices import on_device
from tfring._state.broadcast_variables import broadcast_variables
from tfring._state.kinds import Kind, kind_of
from tfring._state.optimizers import distributed_optimizers, optimizers_of


def has_variables(model: Any) -> bool:
    """Tells whether a model has all of its variables.

    If `train_step` calls the model's parts, the model itself may never be
    built.
    """
    layers = model.layers
    return model.built or bool(layers and all(each.built for each in layers))


def check_built(model: Any, caller: str) -> None:
    """Raises ValueError if a model has not been built."""
    if not model.built:
        raise ValueError(
            f"{caller}: the model must be built first. Give it an Input, or "
            "call model.build(input_shape)."
        )


def optimizer_for(caller: str, model: Any, optimizer: Any) -> Any:
    """Returns the given optimizer of a built model, or the compiled one.

    Raises:
        ValueError: The model has not been built, or there is no optimizer.
    """
    check_built(model, caller)
    optimizer = optimizer or getattr(model, "optimizer", None)
    if optimizer is None:
        raise ValueError(
            f"{caller}: there is no optimizer. Pass one, or compile the model "
            "with it."
        )
    return optimizer


def forget_traces(model: Any) -> None:
    """Makes Keras trace a model's functions again."""
    for each in ("train", "test", "predict"):
        setattr(model, f"{each}_function", None)


def local_variables_of(model: Any) -> list[LocalVariables]:
    """Returns the local variables of each of the model's optimizers."""
    return [
        optimizer._tfring_options.local_variables
        for optimizer in distributed_optimizers(model)
    ]


def without_metrics(model: Any) -> list[Any]:
    """Returns the model's variables, except the variables of its metrics."""
    of_metrics = {id(v) for v in model.metrics_variables}
    return [v for v in model.variables if id(v) not in of_metrics]


def shared_variables(
    variables: Iterable[Any], local_variables: Iterable[LocalVariables]
) -> list[Any]:
    """Returns the variables that are not each rank's own."""
    local_variables = list(local_variables)
    return [
        variable
        for variable in variables
        if kind_of(variable, local_variables) is not Kind.OWN
    ]


def broadcast_model(
    model: Any,
    *,
    root_rank: int,
    local_variables: Iterable[LocalVariables],
    device: str = "",
    same_seeds: bool = False,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Gives every rank the weights and the optimizer's state of one rank.

    Collective. Seeds become the root's seeds folded with each rank; metrics
    remain each rank's own.

    Args:
        model: A Keras model that has been built. Its optimizer is built if
            necessary. Any other optimizer in the model's attributes takes part
            if it is built.
        root_rank: The rank that gives its state to all other ranks.
        local_variables: Variables of the model that do not change. The local
            variables of its optimizers, and their states, do not change either.
        device: The device of the collective.
        same_seeds: If True, every rank gets the root's seeds.
        process_set: The ranks that take part.
    """
    if model.optimizer is not None and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    variables = without_metrics(model)
    for optimizer in optimizers_of(model):
        if optimizer.built:
            variables += optimizer.variables
    variables = shared_variables(
        variables, [*local_variables, *local_variables_of(model)]
    )
    with on_device(device):
        broadcast_variables(
            variables,
            root_rank=root_rank,
            same_seeds=same_seeds,
            process_set=process_set,
        )
