"""Gathers the ranks' parts of a training's state, so that it can be saved."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.legacy.saving import legacy_h5_format
from keras.src.saving import saving_lib

from tfring._core.process_sets import is_alone
from tfring._state.accumulators import average_accumulators
from tfring._state.kinds import (
    Kind,
    accumulators_by_optimizer,
    kind_of,
    split_off_shares,
)
from tfring._state.optimizers import all_optimizers, optimizers_of, with_inner
from tfring._state.records import notes_on
from tfring._state.row_shards import assign_saved, row_shards_of, saved_value
from tfring._state.state_shares import WholeStates


@contextmanager
def whole_states(
    optimizer: Any, root_rank: int | None = None
) -> Iterator[None]:
    """Gathers the parts of a state from all ranks, so that it can be saved.

    With `shard_states=True` of `tfring.DistributedOptimizer` each rank has a
    part of the optimizer's state. Inside of this context the optimizer and its
    model can be saved as usual: by `model.save` or `tf.train.Checkpoint`.
    Outside of it that is an error, on more than one rank. The same holds for
    the tables of `tfring.layers.ShardedEmbedding` and the optimizer's states
    for them, by `model.save` and `model.save_weights`. Accumulated gradients
    (`backward_passes_per_step`) become their mean over the ranks, so that one
    rank's file keeps the batches of all ranks. In `fit`, callbacks of Keras and
    tfring that save do not need it.

    Collective: every rank must enter it. The whole state is in the memory of
    the host meanwhile. Other optimizers have nothing to gather.

    Args:
        optimizer: An optimizer, or a model with one or more: by `compile` or
            as attributes.
        root_rank: The one rank that saves, as `tfring.rank()` counts; all other
            ranks keep nothing. By default any rank may save.

    Raises:
        tf.errors.FailedPreconditionError: The ranks did not agree.

    Example:

    ```python
    import keras
    import tfring

    tfring.init()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    optimizer = tfring.DistributedOptimizer("adam", shard_states=True)
    model.compile(optimizer, "mse")
    model.fit(x, y, verbose=0)
    with tfring.whole_states(model, root_rank=0):
        if tfring.rank() == 0:
            model.save("model.keras")
    ```
    """
    for each in optimizers_of(optimizer):
        average_all_accumulated(each.variables)
    with ExitStack() as gathered:
        for each in sharded_optimizers(optimizer):
            gathered.enter_context(each._gathered_whole(root_rank))
        for shard in row_shards_of(optimizer):
            gathered.enter_context(shard.gathered(root_rank))
        yield


def average_all_accumulated(variables: Sequence[Any]) -> None:
    """Gives all ranks the mean of the accumulators among variables.

    Collective, and eager; see Note [The mean of accumulators].
    """
    for owner, accumulators in accumulators_by_optimizer(variables):
        process_set = owner._tfring_options.process_set
        in_round = getattr(owner, "_tfring_round", None)
        if in_round is not None and in_round.has_begun():
            continue  # The ranks train apart.
        if process_set.included() and not is_alone(process_set):
            average_accumulators(
                owner,
                accumulators,
                root_rank=None,
                name="states/accumulated",
                process_set=process_set,
            )


def sharded_optimizers(optimizer: Any) -> list[WholeStates]:
    """Returns the sharded optimizers in an optimizer or a model."""
    return list(filter(_is_sharded, all_optimizers(optimizer)))


def _is_sharded(optimizer: Any) -> bool:
    return isinstance(optimizer, WholeStates) and optimizer.built


def whole_values(optimizer: Any) -> list[np.ndarray]:
    """Returns an optimizer's values, in the plain optimizer's order.

    The order is the order of `variables`. Call it within `whole_states` if the
    optimizer has shards.
    """
    return [
        saved_value(value) if isinstance(value, keras.Variable) else value
        for each in with_inner(optimizer)
        for value in (
            each._whole_values() if _is_sharded(each) else each._variables
        )
    ]


def assign_whole_values(optimizer: Any, values: Sequence[Any]) -> None:
    """Assigns a result of `whole_values`, on any number of ranks.

    Shares are cut anew if the number of ranks has changed.
    """
    rest = list(values)
    for each in with_inner(optimizer):
        count = len(each._variables)
        own, rest = rest[:count], rest[count:]
        if _is_sharded(each):
            each._take_whole(own)
        else:
            for variable, value in zip(each._variables, own, strict=True):
                assign_saved(variable, value)


def cut_for_ranks(optimizer: Any, values: Sequence[Any] | None) -> None:
    """Cuts shares anew, if the ranks have changed.

    Args:
        optimizer: Any optimizer, or a model.
        values: A result of `whole_values`; None for the values that this rank
            knows.

    Raises:
        RuntimeError: This rank does not know them.
    """
    others = [
        each
        for each in sharded_optimizers(optimizer)
        if each._is_for_other_ranks()
    ]
    if others and values is not None:
        assign_whole_values(optimizer, values)
        return
    for each in others:
        each._cut_known_anew()


@functools.cache
def teach_saving() -> None:
    """Makes Keras save and load whole states."""
    _teach_optimizers()
    _teach_state_trees()
    _check_before_writing(saving_lib, "save_model", _check_whole)
    _check_before_writing(saving_lib, "save_weights_only", _check_whole)
    _check_before_writing(
        legacy_h5_format, "save_model_to_hdf5", _check_not_in_parts
    )


def _teach_optimizers() -> None:
    # Of all classes, as none overrides them.
    of_all = keras.optimizers.Optimizer
    keras_save = of_all.save_own_variables
    keras_load = of_all.load_own_variables

    @functools.wraps(keras_save)
    def save_own_variables(self: Any, store: Any) -> None:
        if not _is_in_parts(self):
            keras_save(self, store)
            return
        for i, value in enumerate(whole_values(self)):
            store[str(i)] = value

    @functools.wraps(keras_load)
    def load_own_variables(self: Any, store: Any) -> None:
        count = sum(len(each._variables) for each in with_inner(self))
        if not _is_in_parts(self) or len(store.keys()) != count:
            keras_load(self, store)
            return
        assign_whole_values(self, [store[str(i)] for i in range(count)])

    of_all.save_own_variables = save_own_variables
    of_all.load_own_variables = load_own_variables


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


def _teach_state_trees() -> None:
    """Makes `get_state_tree` and `set_state_tree` take whole states."""
    model = keras.Model
    keras_create = model._create_nested_dict
    keras_assign = model._assign_variable_values

    @functools.wraps(keras_create)
    def _create_nested_dict(
        self: Any, variables: Sequence[Any], *args: Any, **kwargs: Any
    ) -> Any:
        return keras_create(self, _as_whole(variables), *args, **kwargs)

    @functools.wraps(keras_assign)
    def _assign_variable_values(
        self: Any, variables: Sequence[Any], path_value_dict: dict[str, Any]
    ) -> None:
        for variable in variables:
            if variable.path not in path_value_dict:
                continue
            value = path_value_dict[variable.path]
            if kind_of(variable) is Kind.ROWS:
                assign_saved(variable, value)
            elif kind_of(variable) is Kind.SHARED_OUT:
                notes_on(variable).shared_out_by._restore_state(variable, value)
            else:
                keras_assign(self, [variable], {variable.path: value})

    model._create_nested_dict = _create_nested_dict
    model._assign_variable_values = _assign_variable_values


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


def _is_in_parts(optimizer: Any) -> bool:
    return bool(sharded_optimizers(optimizer) or row_shards_of(optimizer))


def _check_before_writing(
    module: Any, function: str, check: Callable[..., None]
) -> None:
    """Makes a function of Keras call `check` before it opens a file."""
    keras_save = getattr(module, function)

    @functools.wraps(keras_save)
    def save(*args: Any, **kwargs: Any) -> Any:
        check(*args, **kwargs)
        return keras_save(*args, **kwargs)

    setattr(module, function, save)


def _check_whole(model: Any, *args: Any, **kwargs: Any) -> None:
    """Refuses to save a model if this rank does not know its whole state."""
    del args, kwargs
    for optimizer in sharded_optimizers(model):
        optimizer._known_whole()
    for shard in row_shards_of(model):
        shard.whole()


def _check_not_in_parts(
    model: Any,
    filepath: Any,
    overwrite: bool = True,
    include_optimizer: bool = True,
) -> None:
    """Refuses a file of Keras's older format, which has no whole states."""
    del filepath, overwrite
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
