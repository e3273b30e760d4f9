"""Puts the ranks' parts of a training's state together, to save them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any

import numpy as np

from tfring._core.process_sets import is_alone
from tfring._ops.arguments import check_root_rank
from tfring._state.accumulators import average_accumulators
from tfring._state.kinds import accumulators_by_optimizer
from tfring._state.optimizers import all_optimizers, optimizers_of, with_inner
from tfring._state.shards import (
    Shard,
    assign_in_turn,
    saved_value,
    shards_of,
)
from tfring._state.state_shares import WholeStates
from tfring._state.streams import Stream, streams_to


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

    With a `root_rank` nothing is gathered on entry: when that rank reads a
    sharded variable, all ranks send it their parts, and it drops the value when
    it reads the next one. So it needs additional memory for one variable, not
    for the whole model. The other ranks may do something else inside of the
    context, except train or change variables, and wait for the root when they
    leave it. Without a `root_rank` all ranks gather all values on entry, and
    keep them in the host's memory.

    Collective: every rank must enter and leave it. Other optimizers have
    nothing to gather.

    Args:
        optimizer: An optimizer, or a model with one or more: by `compile` or
            as attributes.
        root_rank: The one rank that saves, as `tfring.rank()` counts, or None
            if several do.

    Raises:
        TypeError: `root_rank` is not an integer.
        ValueError: There is no rank `root_rank`.
        tf.errors.FailedPreconditionError: The ranks did not agree.
        tf.errors.UnavailableError: A rank is lost. The root raises it when it
            reads a variable, and the other ranks when they leave.

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
    """Lets `root_rank`, or all ranks, read whole values. Collective."""
    shards = list(shards)
    if root_rank is not None and any(shard.size > 1 for shard in shards):
        check_root_rank("whole_states", root_rank)
    with ExitStack() as stack:
        streams: dict[int, Stream] = {}
        if root_rank is not None:
            for stream in streams_to(root_rank, shards):
                stack.enter_context(stream)
                streams |= {id(shard): stream for shard in stream.shards}
        for shard in shards:
            if root_rank is None or id(shard) in streams:
                stack.enter_context(shard.gathered(streams.get(id(shard))))
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


def states_of(optimizer: Any) -> list[Any]:
    """Returns an optimizer's variables, in the order of `variables`."""
    return [v for each in with_inner(optimizer) for v in each._variables]


def whole_values(optimizer: Any) -> list[np.ndarray]:
    """Returns the values of `states_of`.

    Call it within `whole_states` if the optimizer has shards.
    """
    return [saved_value(variable) for variable in states_of(optimizer)]


def assign_whole_values(optimizer: Any, values: Iterable[Any]) -> None:
    """Assigns a result of `whole_values`, on any number of ranks.

    Takes one value at a time from `values`, and shards the values again if the
    number of ranks has changed.
    """
    rest = iter(values)
    for each in with_inner(optimizer):
        if _is_sharded(each):
            # The number of variables changes if they are sharded again.
            each._take_whole(islice(rest, len(each._variables)))
        else:
            assign_in_turn(each._variables, rest)
