"""Compares the weights of the ranks, bit by bit, at the speed of memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfring._core import runtime
from tfring._core.errors import NotBroadcastWarning, warn_all_ranks
from tfring._core.process_sets import (
    ProcessSet,
    global_process_set,
    is_alone,
)
from tfring._gradients.gradient_options import GradientOptions
from tfring._gradients.local_variables import inner_variable
from tfring._ops.autograph import not_converted
from tfring._ops.gather_json import gather_by_rank, gather_json
from tfring._state.kinds import open_rounds
from tfring._state.records import notes_on, record_of

# The number of 8-byte words in a block. Sums over the words of a block, and
# over blocks, are hashed.
_WORDS = 4096

_Key = tuple[int, int | None]


def fingerprint(variable: Any) -> str:
    """Returns the fingerprint of a variable; any changed bit changes it."""
    if in_rounds := open_rounds([variable]):
        variable = in_rounds[0].common_value(variable)
        if variable is None:
            return ""
    array = np.asarray(tf.convert_to_tensor(variable))  # without a copy
    result = hashlib.sha256(f"{array.dtype} {array.shape}".encode())
    data = array.reshape(-1).view(np.uint8)
    end = data.size // (8 * _WORDS) * 8 * _WORDS
    if end:
        blocks = data[:end].view(np.uint64).reshape(-1, _WORDS)
        # Sums are modulo 2**64. A bit that differs changes two sums. Words that
        # change places change the sums across blocks, or those of their blocks.
        for axis in (0, 1):
            result.update(np.add.reduce(blocks, axis=axis).tobytes())
    result.update(data[end:].tobytes())
    return result.hexdigest()


def fingerprint_of_all(variables: Iterable[Any]) -> str:
    """Returns the fingerprint of several variables."""
    of_each = "".join(map(fingerprint, variables))
    return hashlib.sha256(of_each.encode()).hexdigest()


def compare_weights(
    variables: Sequence[Any],
    *,
    name: str,
    process_set: ProcessSet = global_process_set,
) -> str | None:
    """Returns a message that names the first variable that differs, or None.

    Collective, and eager. Ranks that have joined are not compared.
    """
    everyones = gather_json(
        fingerprint_of_all(variables), name=name, process_set=process_set
    )
    if len(set(everyones)) == 1:
        return None
    return first_difference(variables, name=name, process_set=process_set)


def differing(
    variables: Sequence[Any], *, name: str, process_set: ProcessSet
) -> list[Any]:
    """Returns the variables that are not the same on all ranks.

    Collective, and eager. All ranks must pass as many variables.
    """
    own = list(map(fingerprint, variables))
    of_all = hashlib.sha256("".join(own).encode()).hexdigest()
    everyones = gather_json(of_all, name=name, process_set=process_set)
    if len(set(everyones)) == 1:
        return []
    of_ranks = gather_json(own, name=f"{name}/each", process_set=process_set)
    return [
        variable
        for variable, of_each in zip(
            variables, zip(*of_ranks, strict=True), strict=True
        )
        if len(set(of_each)) > 1
    ]


def first_difference(
    variables: Sequence[Any], *, name: str, process_set: ProcessSet
) -> str:
    """Returns a message that names the first difference. Collective."""
    everyones = gather_by_rank(
        list(map(fingerprint, variables)),
        name=f"{name}/each",
        process_set=process_set,
    )
    counts = [len(of_rank) for of_rank in everyones.values()]
    if len(set(counts)) > 1:
        return (
            f"The ranks {list(everyones)} have {counts} variables. Build "
            "the same model on every rank."
        )
    for i, variable in enumerate(variables):
        ranks_with = ranks_by_value(
            {rank: of_rank[i] for rank, of_rank in everyones.items()}
        )
        if len(ranks_with) > 1:
            groups = ", ".join(str(ranks) for ranks in ranks_with.values())
            return (
                f"The first is '{variable_name(variable)}', "
                f"{tf.as_dtype(variable.dtype).name} "
                f"{tuple(variable.shape)}: it is the same only among the "
                f"ranks {groups}."
            )
    raise AssertionError("weights differ together, but not one by one")


def ranks_by_value(of_rank: Mapping[int, Any]) -> dict[str, list[int]]:
    """Returns the ranks that have each value, by the value as text."""
    ranks_with: dict[str, list[int]] = {}
    for rank, value in of_rank.items():
        ranks_with.setdefault(str(value), []).append(rank)
    return ranks_with


@not_converted
def warn_if_not_broadcast(
    variables: Sequence[Any], options: GradientOptions
) -> None:
    """Warns once, before variables are first updated, if ranks differ in them.

    It is collective the first time that it sees the variables. The ranks are
    about to reduce their gradients together anyway, perhaps while they trace a
    function at its first call.

    It does nothing in an elastic job, where a new start gives all ranks the
    same state: a rank that joins later traces functions that all other ranks
    have traced already, and would wait for them.
    """
    process_set = options.process_set
    if (
        not process_set.included()
        or is_alone(process_set)
        or runtime.may_grow()
    ):
        return
    shared = [
        variable
        for variable in variables
        if hasattr(variable, "assign")
        and variable not in options.local_variables
        and notes_on(variable).shard is None
    ]
    key = _key(process_set)
    if all(key in notes_on(variable).compared_in for variable in shared):
        return
    with tf.init_scope():
        if not tf.executing_eagerly():  # a graph of TensorFlow 1
            return
        if not all(_has_value(variable) for variable in shared):
            return  # this trace makes variables; another follows
        mark_compared(shared, process_set)
        difference = compare_weights(
            shared, name="weights before their update", process_set=process_set
        )
    if difference is None:
        return
    warn_all_ranks(
        NotBroadcastWarning,
        "before the first update the ranks have different weights. "
        f"{difference} Averaged gradients keep them as far apart. Call "
        "tfring.broadcast_variables(variables, root_rank=0) first, for the "
        "optimizer's too.",
        "that is done right after the first step, as Horovod's examples do",
        is_shown=process_set.rank() == 0,
    )


def mark_compared(variables: Iterable[Any], process_set: ProcessSet) -> None:
    """Makes `warn_if_not_broadcast` skip variables in this set from now on.

    It compares them again in another set and after a new start, because ranks
    that have not compared them yet would wait.
    """
    for variable in variables:
        record_of(variable).compared_in |= {_key(process_set)}


def _key(process_set: ProcessSet) -> _Key:
    return runtime.job_number(), process_set.process_set_id


def variable_name(variable: Any) -> str:
    return str(getattr(variable, "path", None) or variable.name)


def _has_value(variable: Any) -> bool:
    variable = inner_variable(variable)
    return variable is not None and bool(variable.is_initialized())
