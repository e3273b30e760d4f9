"""Keeps Keras's files and state trees whole where ranks have shards.

Each function replaces one of Keras, which it gets as its first argument; see
hooks.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfring._state.optimizers import distributed_optimizers, with_inner
from tfring._state.row_shards import check_can_be_tracked
from tfring._state.shards import (
    assign_in_turn,
    assign_saved,
    saved_value,
    shard_of,
    shards_of,
)
from tfring._state.whole_states import (
    assign_whole_values,
    sharded_optimizers,
    states_of,
)


def save_own_variables(
    keras_save: Callable[..., None], optimizer: Any, store: Any
) -> None:
    """Saves an optimizer's variables whole."""
    if not _is_in_parts(optimizer):
        keras_save(optimizer, store)
        return
    for i, variable in enumerate(states_of(optimizer)):
        store[str(i)] = saved_value(variable)


def load_own_variables(
    keras_load: Callable[..., None], optimizer: Any, store: Any
) -> None:
    """Loads whole variables, and keeps this rank's parts."""
    states = states_of(optimizer)
    count = len(store.keys())
    # The file is read while the values are assigned.
    values = (store[str(i)] for i in range(count))
    if count < len(states) and distributed_optimizers(optimizer):
        # The file is of a training without backward_passes_per_step.
        states = _without_accumulators(optimizer)
        if count == len(states):
            assign_in_turn(states, values)
            return
    if count == len(states) and _is_in_parts(optimizer):
        assign_whole_values(optimizer, values)
    else:
        keras_load(optimizer, store)


def _without_accumulators(optimizer: Any) -> list[Any]:
    """Returns an optimizer's variables except accumulated gradients."""
    accumulators = {
        id(variable)
        for each in with_inner(optimizer)
        for variable in getattr(each, "_accumulated_gradients", ())
    }
    return [v for v in states_of(optimizer) if id(v) not in accumulators]


def _is_in_parts(optimizer: Any) -> bool:
    return bool(sharded_optimizers(optimizer) or shards_of(optimizer))


def trackable_children(
    keras_children: Callable[..., Any],
    optimizer: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Refuses TensorFlow's checkpoints, which would have one rank's rows."""
    for variable in optimizer._variables:
        shard = shard_of(variable)
        if shard is not None and shard.optimizer is None:
            check_can_be_tracked(shard)
    return keras_children(optimizer, *args, **kwargs)


@dataclasses.dataclass(frozen=True)
class _WholeVariable:
    """Stands for a shard in Keras's tree of a model's state."""

    path: str
    whole: np.ndarray

    @property
    def value(self) -> tf.Tensor:
        return tf.convert_to_tensor(self.whole)

    def numpy(self) -> np.ndarray:
        return self.whole


def create_nested_dict(
    keras_create: Callable[..., Any],
    model: Any,
    variables: Sequence[Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Makes `get_state_tree` return whole values."""
    whole = [
        variable
        if (shard := shard_of(variable)) is None
        else _WholeVariable(variable.path, shard.whole())
        for variable in variables
    ]
    return keras_create(model, whole, *args, **kwargs)


def assign_variable_values(
    keras_assign: Callable[..., None],
    model: Any,
    variables: Sequence[Any],
    path_value_dict: dict[str, Any],
) -> None:
    """Makes `set_state_tree` accept whole values."""
    for variable in variables:
        if variable.path not in path_value_dict:
            continue
        value = path_value_dict[variable.path]
        if shard_of(variable) is not None:
            assign_saved(variable, value)
        else:
            keras_assign(model, [variable], {variable.path: value})


def save_model(
    keras_save: Callable[..., Any], model: Any, *args: Any, **kwargs: Any
) -> Any:
    """Refuses to save a model that is not whole, before it opens the file."""
    for shard in shards_of(model):
        shard.check_is_whole()
    return keras_save(model, *args, **kwargs)


def is_memory_sufficient(
    keras_is_sufficient: Callable[[Any], bool], model: Any
) -> bool:
    """Makes Keras write and read a `.keras` file through a temporary file.

    Otherwise Keras holds the whole file in memory if the machine has twice its
    size available, whatever the number of ranks on the machine.
    """
    is_sharded = any(shard.size > 1 for shard in shards_of(model))
    return not is_sharded and keras_is_sufficient(model)


def save_model_to_hdf5(
    keras_save: Callable[..., Any],
    model: Any,
    filepath: Any,
    overwrite: bool = True,
    include_optimizer: bool = True,
) -> Any:
    """Refuses a file of Keras's older format, which has no whole states."""
    parts = [
        shard.description
        for shard in shards_of(model)
        if shard.size > 1 and shard.optimizer is None
    ]
    if include_optimizer:
        parts += [
            f"The optimizer '{optimizer.name}' has shard_states=True"
            for optimizer in sharded_optimizers(model)
            if optimizer._tfring_layout.size > 1
        ]
    if parts:
        raise RuntimeError(
            f"{parts[0]}, and Keras's older format would keep this rank's part "
            "alone. Save to a .keras or .weights.h5 file. No file has been "
            "written."
        )
    return keras_save(model, filepath, overwrite, include_optimizer)
