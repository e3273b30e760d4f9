"""What tfring adds to Keras's optimizers, in a step and when they are built.

Each function replaces a function of Keras, which is its first argument; see
hooks.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tfring._gradients.local_gradients import scale_unless_by_tape
from tfring._gradients.local_variables import is_row_shard
from tfring._keras.sharded_parameters import is_in_scope
from tfring._optim.optimizer_class import Distributed
from tfring._optim.parameters import check_knows_parameters
from tfring._state.optimizers import distributed_optimizers
from tfring._state.records import record_of
from tfring._state.row_shards import check_optimizer
from tfring._state.shards import Shard, shard_of


def build(
    keras_build: Callable[..., None], optimizer: Any, variables: Sequence[Any]
) -> None:
    """Refuses variables of which an optimizer needs more than this rank has."""
    for variable in variables:
        if is_row_shard(variable):
            check_optimizer(optimizer, variable)
    # A model that is loaded gets its distributed optimizer afterwards.
    if not is_in_scope():
        check_knows_parameters(optimizer, variables)
    keras_build(optimizer, variables)


def add_variable_from_reference(
    keras_add: Callable[..., Any],
    optimizer: Any,
    reference_variable: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Notes that a state belongs to some rows of a table."""
    state = keras_add(optimizer, reference_variable, *args, **kwargs)
    rows = shard_of(reference_variable)
    if rows is not None and is_row_shard(reference_variable):
        record = record_of(state)
        record.state_for = reference_variable
        record.shard = Shard(state, rows.split, rows.rank)
    return state


def apply_scaled(
    keras_apply: Callable[..., None],
    optimizer: Any,
    grads: Sequence[Any],
    trainable_variables: Any = None,
) -> None:
    """Averages gradients before a LossScaleOptimizer checks them.

    See Note [Loss scaling] in tfring/_optim/optimizer_class.py.
    """
    inside = distributed_optimizers(optimizer)
    if not inside or optimizer in inside:
        keras_apply(optimizer, grads, trainable_variables)
        return
    if trainable_variables is None:
        variables = optimizer._trainable_variables
    else:
        variables = trainable_variables = list(trainable_variables)
    own = grads = list(grads)
    _check_alike(inside)
    if not optimizer.built:
        optimizer.build(list(variables))
    inside[0]._begin_step(variables)
    options = inside[0]._tfring_options
    grads = scale_unless_by_tape(grads, variables, options)
    inside[0]._note_loss_scale(optimizer)
    grads, trainable_variables = inside[0]._reduce_before_check(
        grads, variables
    )
    inside[0]._offload(own)
    with _paused(inside):
        keras_apply(optimizer, grads, trainable_variables)
    inside[0]._end_step()


def _check_alike(optimizers: Sequence[Distributed]) -> None:
    """Refuses optimizers that reduce differently, under one loss scale.

    Raises:
        NotImplementedError: The first cannot reduce for all of them.
    """
    all_options = {each._tfring_options for each in optimizers}
    fields = [{**vars(each), "local_variables": None} for each in all_options]
    if len(fields) > 1 and any(
        each.local_variables
        or each.low_rank
        or each.shard_states
        or each.sync
        or isinstance(each.groups, list)
        or field != fields[0]
        for each, field in zip(all_options, fields, strict=True)
    ):
        raise NotImplementedError(
            "DistributedOptimizer: the optimizers in a MultiOptimizer reduce "
            "gradients in different ways, and one LossScaleOptimizer checks "
            "them all. Pass the MultiOptimizer itself to DistributedOptimizer, "
            "or train without a loss scale, as in bfloat16."
        )


@contextmanager
def _paused(optimizers: Sequence[Distributed]) -> Iterator[None]:
    for optimizer in optimizers:
        optimizer._tfring_paused = True
    try:
        yield
    finally:
        for optimizer in optimizers:
            optimizer._tfring_paused = False
