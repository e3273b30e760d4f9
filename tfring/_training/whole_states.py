"""Puts whole the states of optimizers of which each rank has a share."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np

from tfring._training.optimizer_class import with_inner
from tfring._training.state_shares import WholeStates


@contextmanager
def whole_states(
    optimizer: Any, root_rank: int | None = None
) -> Iterator[None]:
    """Has ranks put a sharded optimizer's state together, to be saved.

    With `shard_states=True` of `tfring.DistributedOptimizer` each rank has a
    part of the optimizer's state. Inside of this context the optimizer and its
    model are saved as any other: `model.save`, `tf.train.Checkpoint`. Outside
    of it that is an error, on more than one rank. In `fit` Keras's and tfring's
    callbacks that save need it not.

    Collective: every rank must enter it. The whole state is in the memory of
    the host meanwhile. Of any other optimizer it gathers nothing.

    Args:
        optimizer: An optimizer, or a model that is compiled with it.
        root_rank: The one rank that saves, as `tfring.rank()` counts; the
            others keep nothing. By default any rank may save.

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
    sharded = list(sharded_optimizers(optimizer))
    for each in sharded:
        each._gather_whole(root_rank)
    try:
        yield
    finally:
        for each in sharded:
            each._drop_whole()


def sharded_optimizers(optimizer: Any) -> Iterator[WholeStates]:
    """The sharded optimizers in an optimizer or a model."""
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        optimizer = getattr(optimizer, "optimizer", None)
    if optimizer is None:
        return
    for each in with_inner(optimizer):
        if isinstance(each, WholeStates) and each.built:
            yield each


def whole_values(optimizer: Any) -> list[np.ndarray]:
    """All values of an optimizer, as the plain one's `variables` have them.

    Of one with shards, within `whole_states`.
    """
    return [
        value.numpy() if isinstance(value, keras.Variable) else value
        for each in _in_order(optimizer)
        for value in (
            each._whole_values()
            if isinstance(each, WholeStates) and each.built
            else each._variables
        )
    ]


def assign_whole_values(optimizer: Any, values: Sequence[Any]) -> None:
    """Takes what `whole_values` has returned, on any number of ranks.

    Shares are cut anew, where the number of ranks is another one.
    """
    rest = list(values)
    for each in _in_order(optimizer):
        if isinstance(each, WholeStates) and each.built:
            own, rest = rest[: each._plain_count()], rest[each._plain_count() :]
            each._take_whole(own)
        else:
            for variable in each._variables:
                variable.assign(rest.pop(0))


def cut_for_ranks(optimizer: Any, values: Sequence[Any]) -> None:
    """Cuts shares anew, of `whole_values`, if ranks are others than before."""
    if any(
        each._is_for_other_ranks() for each in sharded_optimizers(optimizer)
    ):
        assign_whole_values(optimizer, values)


def split_off_shares(
    variables: Iterable[Any],
) -> tuple[list[Any], list[WholeStates]]:
    """Returns the variables that are no shares, and whose the others are."""
    others, owners = [], {}
    for variable in variables:
        owner = getattr(variable, "_tfring_share_of", None)
        if owner is None:
            others.append(variable)
        else:
            owners[id(owner)] = owner
    return others, list(owners.values())


@functools.cache
def teach_saving() -> None:
    """Has optimizers around one with shards save whole states."""
    for outer in (
        keras.optimizers.LossScaleOptimizer,
        keras.optimizers.MultiOptimizer,
    ):
        _teach(outer)


def _teach(outer: Any) -> None:
    keras_save, keras_load = outer.save_own_variables, outer.load_own_variables

    @functools.wraps(keras_save)
    def save_own_variables(self: Any, store: Any) -> None:
        if not any(sharded_optimizers(self)):
            keras_save(self, store)
            return
        for i, value in enumerate(whole_values(self)):
            store[str(i)] = value

    @functools.wraps(keras_load)
    def load_own_variables(self: Any, store: Any) -> None:
        if not any(sharded_optimizers(self)):
            keras_load(self, store)
            return
        values = [store[str(i)] for i in range(len(store.keys()))]
        assign_whole_values(self, values)

    outer.save_own_variables = save_own_variables
    outer.load_own_variables = load_own_variables


def _in_order(optimizer: Any) -> list[Any]:
    """The optimizer and those inside of it, in the order of its `variables`."""
    return [each for each in with_inner(optimizer) if each is not None]
