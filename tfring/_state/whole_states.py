"""Gathers the ranks' parts of a training's state, so that it can be saved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from tfring._core.process_sets import is_alone
from tfring._state.accumulators import average_accumulators
from tfring._state.kinds import accumulators_by_optimizer
from tfring._state.optimizers import all_optimizers, optimizers_of, with_inner
from tfring._state.shards import Shard, assign_saved, saved_value, shards_of
from tfring._state.state_shares import WholeStates


@contextmanager
def whole_states(
    optimizer: Any, root_rank: int | None = None
) -> Iterator[None]:
    """Gathers the parts of a state from all ranks, so that it can be saved.

    With `shard_states=True` of `tfring.DistributedOptimizer` each rank has a
    part of the optimizer's state. Inside of this context the optimizer and its
    model can be saved as usual: by `model.save` or `tf.train.Checkpoint`. On
    more than one rank, saving outside of it is an error. The same holds for the
    tables of `tfring.layers.ShardedEmbedding` and the optimizer's states for
    them, with `model.save` and `model.save_weights`. Accumulated gradients
    (`backward_passes_per_step`) become their mean over the ranks, so that one
    rank's file keeps the batches of all ranks. Callbacks of Keras and tfring
    that save in `fit` do not need the context.

    Collective: every rank must enter it. Inside of it, the whole state is in
    the host's memory. Other optimizers have nothing to gather.

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
    with gathered(shards_of(optimizer), root_rank):
        yield


@contextmanager
def gathered(
    shards: Iterable[Shard], root_rank: int | None = None
) -> Iterator[None]:
    """Keeps whole values on `root_rank`, or all ranks. Collective."""
    with ExitStack() as stack:
        for shard in shards:
            stack.enter_context(shard.gathered(root_rank))
        yield


def average_all_accumulated(variables: Sequence[Any]) -> None:
    """Gives all ranks the mean of the accumulators among variables.

    Collective, and eager; see Note [The mean of accumulators].
    """
    for owner, accumulators in accumulators_by_optimizer(variables):
        process_set = owner._tfring_options.process_set
        in_round = getattr(owner, "_tfring_round", None)
        if in_round is not None and in_round.has_begun():
            continue  # within a round each rank keeps its own
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
        saved_value(variable)
        for each in with_inner(optimizer)
        for variable in each._variables
    ]


def assign_whole_values(optimizer: Any, values: Sequence[Any]) -> None:
    """Assigns a result of `whole_values`, on any number of ranks.

    Values are sharded again if the number of ranks has changed.
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
    """Shards states again for the current ranks, if these have changed.

    Args:
        optimizer: Any optimizer, or a model.
        values: A result of `whole_values`; None for the values that this rank
            knows.

    Raises:
        RuntimeError: This rank does not have the values.
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
