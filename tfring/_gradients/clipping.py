"""clip_by_global_norm: one norm on all ranks, though some gradients differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfring._core.process_sets import (
    ProcessSet,
    global_process_set,
    is_alone,
)
from tfring._gradients.local_variables import LocalVariables
from tfring._gradients.request_names import request_names_of
from tfring._ops.allreduce import allreduce
from tfring._ops.arguments import check_process_set
from tfring._ops.autograph import not_converted
from tfring._ops.reductions import ReduceOp


@not_converted
def clip_by_global_norm(
    t_list: Sequence[Any],
    clip_norm: Any,
    *,
    variables: Sequence[Any],
    local_variables: Iterable[Any] | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """`tf.clip_by_global_norm` for the gradients of a distributed tape.

    Averaged gradients are the same on all ranks. But each rank has its own
    gradients for its rows of a `tfring.layers.ShardedEmbedding`, and for local
    variables. With these, TensorFlow's function would find another norm on each
    rank, and the ranks' weights would drift apart. Here the squares of such
    gradients are added up over the ranks, and all ranks clip by the norm of the
    whole model's gradient, as one process does.

    Clip the gradients that a `tfring.DistributedGradientTape` has averaged, and
    apply them by a plain optimizer. A `tfring.DistributedOptimizer` averages
    later, so that this rank's own gradients would be clipped: give such an
    optimizer a `global_clipnorm` instead.

    Collective if one of the variables has rows of a `ShardedEmbedding`, or if
    `local_variables` is given: every rank must then call it, by one allreduce
    of a number. Otherwise it is TensorFlow's function.

    Args:
        t_list: The gradients: tensors of one dtype, `tf.IndexedSlices` or None.
        clip_norm: The largest norm, a number or a scalar tensor.
        variables: The variable of each gradient, as for the tape.
        local_variables: The variables that each rank trains for itself, such as
            those of a `tfring.PartialDistributedGradientTape`'s local layers.
            Pass it on every rank if any has some, and [] where there are none.
        process_set: The ranks that train together.

    Returns:
        The clipped gradients, and the norm before, the same on every rank.

    Raises:
        ValueError: There is not one variable for each gradient, `init` has not
            been called, or the set is not of the job.

    Example:

    ```python
    import tensorflow as tf
    import tfring

    tfring.init()
    weights = [tf.Variable([3.0]), tf.Variable([4.0])]
    with tfring.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = tf.add_n([w * w / 2 for w in weights])
    gradients = tape.gradient(loss, weights)
    gradients, norm = tfring.clip_by_global_norm(
        gradients, 1.0, variables=weights
    )
    assert norm == 5
    ```
    """
    check_process_set("clip_by_global_norm", process_set)
    gradients, variables = list(t_list), list(variables)
    if len(gradients) != len(variables):
        raise ValueError(
            f"clip_by_global_norm: got {len(gradients)} gradients and "
            f"{len(variables)} variables. Pass the variable of each gradient, "
            "in the same order."
        )
    of_rank = LocalVariables(local_variables or ())
    own: list[Any] = []
    shared: list[Any] = []
    for gradient, variable in zip(gradients, variables, strict=True):
        (own if variable in of_rank else shared).append(gradient)
    is_one_norm = local_variables is None and not own
    if is_one_norm or not process_set.included() or is_alone(process_set):
        return tf.clip_by_global_norm(gradients, clip_norm)
    dtype = next(each.dtype for each in gradients if each is not None)
    [name] = request_names_of(1, process_set, "clip_by_global_norm")
    of_all_ranks = allreduce(
        _sum_of_squares(own, dtype),
        op=ReduceOp.Sum,
        name=name,
        ignore_name_scope=True,
        process_set=process_set,
    )
    norm = tf.sqrt(_sum_of_squares(shared, dtype) + of_all_ranks)
    return tf.clip_by_global_norm(gradients, clip_norm, use_norm=norm)


def _sum_of_squares(gradients: Sequence[Any], dtype: tf.DType) -> tf.Tensor:
    # TensorFlow has no norm of an empty list.
    return tf.square(tf.linalg.global_norm([*gradients, tf.zeros([], dtype)]))
