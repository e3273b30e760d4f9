"""The kinds of variables: how the ranks' values of a variable are related.

This table is the only place that decides it. Broadcasts, saves, the states of
elastic jobs and comparisons of weights read it.

| kind        | variables                        | a broadcast          |
|-------------|----------------------------------|----------------------|
| ALIKE       | weights, momenta, iterations     | copies the root's    |
| FOLDED      | seeds                            | folds with the rank  |
| SHARD       | states with `shard_states=True`, | shares out the root's|
|             | tables of `ShardedEmbedding`,    |                      |
|             | parameters of `shard_parameters` |                      |
| ACCUMULATED | gradients of several batches     | takes the ranks' mean|
| OWN         | metrics, local variables         | leaves them alone    |

Moving statistics, for example in batch normalization, are ALIKE at the start,
and drift apart between broadcasts. Comparisons leave them out, because they are
not trained.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from typing import Any

import keras

from tfring._gradients.local_variables import LocalVariables, is_row_shard
from tfring._state.records import notes_on, record_of
from tfring._state.seeds import is_seed


class Kind(enum.Enum):
    """The kinds of the table above."""

    ALIKE = enum.auto()
    FOLDED = enum.auto()
    SHARD = enum.auto()
    ACCUMULATED = enum.auto()
    OWN = enum.auto()


def kind_of(
    variable: Any, local_variables: Iterable[LocalVariables] = ()
) -> Kind:
    """Returns the kind of a variable of a model or an optimizer.

    Args:
        variable: The variable. It must not be a metric's, which only a model
            can tell.
        local_variables: The variables that each rank trains for itself.
    """
    notes = notes_on(variable)
    trained = variable if notes.state_for is None else notes.state_for
    if notes.shard is not None or is_row_shard(trained):
        return Kind.SHARD
    if any(trained in local for local in local_variables):
        return Kind.OWN
    if notes.accumulated_by is not None:
        return Kind.ACCUMULATED
    return Kind.FOLDED if is_seed(variable) else Kind.ALIKE


def mark_states(optimizer: Any) -> None:
    """Notes on an optimizer's variables which trained variable each is for."""
    for attribute, states in vars(optimizer).items():
        # Keras's optimizers have a list of each kind of state in the variables'
        # order.
        if (
            not isinstance(states, list)
            or attribute in ("_variables", "_trainable_variables")
            or len(states) != len(optimizer._trainable_variables)
        ):
            continue
        for variable, state in zip(
            optimizer._trainable_variables, states, strict=True
        ):
            if isinstance(state, keras.Variable):
                record_of(state).state_for = variable


def mark_accumulators(optimizer: Any) -> None:
    """Notes the accumulators with a rank's own gradients of an optimizer."""
    for accumulator in optimizer._accumulated_gradients:
        record_of(accumulator).accumulated_by = optimizer


def rounds_of(variable: Any) -> tuple[Any, ...]:
    """Returns the round of each optimizer that exchanges a variable.

    Two models, each with an optimizer in rounds, may share a layer.
    """
    return notes_on(variable).rounds


def rounds_among(variables: Iterable[Any]) -> list[Any]:
    """Returns the rounds that exchange any of the variables, each once."""
    found = (each for v in variables for each in rounds_of(v))
    return list(dict.fromkeys(found))


def open_rounds(variables: Iterable[Any]) -> list[Any]:
    """Returns the rounds in which ranks differ in variables now. Eager."""
    found = rounds_among(variables)
    return [each for each in found if each.is_between_meetings()]


def accumulators_by_optimizer(
    variables: Iterable[Any],
) -> Iterator[tuple[Any, list[Any]]]:
    """Yields optimizers with their accumulators among the variables."""
    found: dict[int, tuple[Any, list[Any]]] = {}
    for variable in variables:
        if kind_of(variable) is not Kind.ACCUMULATED:
            continue
        owner = notes_on(variable).accumulated_by
        local = owner._tfring_options.local_variables
        if kind_of(variable, [local]) is not Kind.OWN:
            found.setdefault(id(owner), (owner, []))[1].append(variable)
    yield from found.values()
