"""Makes Keras's files and trees of state whole, where each rank has a part.

Each function takes the place of Keras's, which is its first argument; see
hooks.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfring._state.kinds import Kind, kind_of, split_off_shares
from tfring._state.optimizers import with_inner
from tfring._state.records import notes_on
from tfring._state.row_shards import (
    assign_saved,
    check_can_be_tracked,
    row_shards_of,
    saved_value,
)
from tfring._state.whole_states import (
    assign_whole_values,
    sharded_optimizers,
    whole_values,
)


def save_own_variables(
    keras_save: Callable[..., None], optimizer: Any, store: Any
) -> None:
    """Saves an optimizer's variables whole."""
    if not _is_in_parts(optimizer):
        keras_save(optimizer, store)
        return
    for i, value in enumerate(whole_values(optimizer)):
        store[str(i)] = value


def load_own_variables(
    keras_load: Callable[..., None], optimizer: Any, store: Any
) -> None:
    """Loads whole variables, and keeps this rank's parts."""
    count = sum(len(each._variables) for each in with_inner(optimizer))
    if not _is_in_parts(optimizer) or len(store.keys()) != count:
        keras_load(optimizer, store)
        return
    assign_whole_values(optimizer, [store[str(i)] for i in range(count)])


def _is_in_parts(optimizer: Any) -> bool:
    return bool(sharded_optimizers(optimizer) or row_shards_of(optimizer))


def trackable_children(
    keras_children: Callable[..., Any],
    optimizer: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Refuses checkpoints of TensorFlow, which would have this rank's rows."""
    for variable in optimizer._variables:
        if (shard := notes_on(variable).rows) is not None:
            check_can_be_tracked(shard)
    return keras_children(optimizer, *args, **kwargs)


@dataclasses.dataclass(frozen=True)
class _WholeVariable:
    """Takes the place of a variable in Keras's tree of a model's state."""

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
    """Has `get_state_tree` return whole values."""
    return keras_create(model, _as_whole(variables), *args, **kwargs)


def _as_whole(variables: Sequence[Any]) -> list[Any]:
    """Returns variables, in the place of parts with the whole values."""
    _, owners = split_off_shares(variables)
    whole = {
        id(variable): value
        for owner in owners
        for variable, value in zip(
            owner._variables, owner._whole_values(), strict=True
        )
        if kind_of(variable) is Kind.SHARED_OUT
    } | {
        id(variable): saved_value(variable)
        for variable in variables
        if kind_of(variable) is Kind.ROWS
    }
    return [
        _WholeVariable(variable.path, whole[id(variable)])
        if id(variable) in whole
        else variable
        for variable in variables
    ]


def assign_variable_values(
    keras_assign: Callable[..., None],
    model: Any,
    variables: Sequence[Any],
    path_value_dict: dict[str, Any],
) -> None:
    """Has `set_state_tree` take whole values."""
    for variable in variables:
        if variable.path not in path_value_dict:
            continue
        value = path_value_dict[variable.path]
        if kind_of(variable) is Kind.ROWS:
            assign_saved(variable, value)
        elif kind_of(variable) is Kind.SHARED_OUT:
            notes_on(variable).shared_out_by._restore_state(variable, value)
        else:
            keras_assign(model, [variable], {variable.path: value})


def save_model(
    keras_save: Callable[..., Any], model: Any, *args: Any, **kwargs: Any
) -> Any:
    """Refuses to save a model, before the file is opened, that is not whole."""
    for optimizer in sharded_optimizers(model):
        optimizer._known_whole()
    for shard in row_shards_of(model):
        shard.whole()
    return keras_save(model, *args, **kwargs)


def save_model_to_hdf5(
    keras_save: Callable[..., Any],
    model: Any,
    filepath: Any,
    overwrite: bool = True,
    include_optimizer: bool = True,
) -> Any:
    """Refuses a file of Keras's older format, which has no whole states."""
    parts = [
        f"'{shard.variable.path}' has some rows of a ShardedEmbedding's table"
        for shard in row_shards_of(model)
        if shard.size > 1
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
