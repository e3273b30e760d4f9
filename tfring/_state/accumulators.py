"""Gives all ranks the mean of the gradients that each has accumulated.

Note [The mean of accumulators]: an update reduces what the ranks have
accumulated, by a sum or a mean. So the update is the same if they take the mean
of the accumulators beforehand, at any time. Afterwards the accumulators are
equal, and any rank's may be saved, or given to a new rank. The mean is over the
ranks that have counted as many batches as the root. So if the root alone has
loaded a state, it gives its accumulators to all ranks, because no other rank
has its count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfring._core import runtime
from tfring._core.process_sets import ProcessSet
from tfring._ops.allgather import allgather
from tfring._ops.allreduce import grouped_allreduce
from tfring._ops.reductions import ReduceOp


def average_accumulators(
    optimizer: Any,
    accumulators: Sequence[Any],
    *,
    root_rank: int | None,
    name: str,
    process_set: ProcessSet,
) -> list[Any]:
    """Assigns the mean; see Note [The mean of accumulators]. Collective.

    Args:
        optimizer: The optimizer that accumulates.
        accumulators: Some or all of its accumulators.
        root_rank: The mean is over the ranks that have counted as many batches
            as this one. None: over all ranks, and nothing changes if their
            counts differ.
        name: The name of the collectives.
        process_set: The ranks that take part.

    Returns:
        The operations that assign, for a graph to run; eagerly none.
    """
    own = tf.cast(tf.convert_to_tensor(optimizer._iterations), tf.int64)
    counts = allgather(
        tf.stack([[tf.constant(runtime.rank(), tf.int64), own]]),
        name=f"{name}/counts",
        process_set=process_set,
    )
    if tf.executing_eagerly():
        distinct = set(counts[:, 1].numpy().tolist())
        if len(distinct) > 1 and root_rank is None:
            return []
        if len(distinct) == 1 and (
            min(distinct) % optimizer.gradient_accumulation_steps == 0
        ):
            return []  # nothing has been accumulated
    root = counts[0, 0] if root_rank is None else tf.cast(root_rank, tf.int64)
    of_root = tf.reduce_max(
        tf.where(counts[:, 0] == root, counts[:, 1], tf.int64.min)
    )
    values = [tf.convert_to_tensor(each) for each in accumulators]
    sums = grouped_allreduce(
        [tf.where(own == of_root, v, tf.zeros_like(v)) for v in values],
        op=ReduceOp.Sum,
        name=name,
        process_set=process_set,
    )
    number = tf.math.count_nonzero(counts[:, 1] == of_root)
    done = [
        variable.assign(total / tf.cast(number, total.dtype))
        for variable, total in zip(accumulators, sums, strict=True)
    ]
    return [] if tf.executing_eagerly() else done
