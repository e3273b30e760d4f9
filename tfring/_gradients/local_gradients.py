"""Scales the gradients of local variables, which are not reduced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfring._core.process_sets import global_process_set
from tfring._gradients.gradient_options import GradientOptions
from tfring._gradients.local_variables import is_row_shard
from tfring._gradients.reduced_by_tape import take_reduced
from tfring._gradients.reducer import (
    each_index_once,
    for_this_compiler,
    name_of,
    reduce_shared_gradients,
)
from tfring._ops.reductions import ReduceOp

_Gradient = Any  # tf.Tensor | tf.IndexedSlices | None


def reduce_gradients(
    gradients: Sequence[_Gradient],
    variables: Sequence[Any],
    options: GradientOptions,
) -> list[_Gradient]:
    """Averages each gradient over the ranks, or adds it up.

    Gradients of local variables are scaled instead. See
    `reduce_shared_gradients` for the arguments, the result and the errors.
    """
    return reduce_shared_gradients(
        scale_local_gradients(gradients, variables, options), variables, options
    )


def scale_local_gradients(
    gradients: Sequence[_Gradient],
    variables: Sequence[Any],
    options: GradientOptions,
) -> list[_Gradient]:
    """Divides gradients of local variables by the number of ranks.

    This is done once, before gradients are accumulated or reduced. A gradient
    of rows of a ShardedEmbedding is of the sum of the ranks' losses; it is
    divided where the others are averaged.

    Returns:
        The gradients in their order. Those of local variables are scaled, and
        have each index once; see `each_index_once`.
    """
    options = for_this_compiler(options)
    process_set = options.process_set
    size = process_set.size() if process_set.included() else 1
    result = list(gradients)
    for i, variable in enumerate(variables):
        if result[i] is None or variable not in options.local_variables:
            continue
        result[i] = each_index_once(result[i], options)
        if _is_divided(variable, options) and size > 1:
            result[i] = tf.math.scalar_mul(1 / size, result[i])
    return result


def scale_unless_by_tape(
    gradients: Sequence[_Gradient],
    variables: Sequence[Any],
    options: GradientOptions,
) -> list[_Gradient]:
    """Scales local gradients for an optimizer, once in each step.

    See Note [A tape and an optimizer] in reduced_by_tape.py, and
    `scale_local_gradients` for the arguments and the result.

    Raises:
        ValueError: A tape has reduced them, and a second reduction would give
            another result.
    """
    reduced = take_reduced(gradients, variables, options)
    scaled = scale_local_gradients(gradients, variables, options)
    return [
        gradient if done else own
        for gradient, done, own in zip(gradients, reduced, scaled, strict=True)
    ]


def _is_divided(variable: Any, options: GradientOptions) -> bool:
    if not is_row_shard(variable):
        return options.scale_local_gradients
    _check_row_shard(variable, options)
    return options.op is ReduceOp.Average


def _check_row_shard(variable: Any, options: GradientOptions) -> None:
    if options.op is ReduceOp.Adasum:
        raise ValueError(
            f"The gradient of '{name_of(variable, 0)}', the rows of a "
            "ShardedEmbedding, is a sum over the ranks: op=tfring.Adasum "
            "cannot combine it. Take tfring.Average or tfring.Sum."
        )
    if options.process_set is not global_process_set:
        raise ValueError(
            f"All ranks share the table of '{name_of(variable, 0)}', a "
            f"ShardedEmbedding, and {options.process_set} trains it alone. "
            "Leave process_set out."
        )
