"""Warns of compiled losses that the average over the ranks changes.

Keras divides a loss by the number of a batch's elements. The average of such
losses over ranks with equal batches is the loss of the batches of all ranks.
That does not hold for a sum, or for a mean that divides by weights.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfring._core import runtime
from tfring._core.errors import LossReductionWarning, warn_all_ranks
from tfring._core.process_sets import is_alone
from tfring._ops.reductions import ReduceOp
from tfring._state.optimizers import distributed_optimizers

# Reductions that are sums: gradients of an unreduced loss are added up, too.
_SUMS = ("sum", "none", None)


def warn_of_reductions(model: Any) -> None:
    """Warns of each compiled loss of a model with a distributed optimizer."""
    all_options = [
        options
        for optimizer in distributed_optimizers(model)
        # In rounds each rank trains with its own batch, without an average.
        if (options := optimizer._tfring_options).sync is None
        and options.process_set.included()
        and not is_alone(options.process_set)
    ]
    if not all_options:
        return
    averages = any(each.op is not ReduceOp.Sum for each in all_options)
    size = all_options[0].process_set.size()
    for loss in tf.nest.flatten(getattr(model, "loss", None)):
        problem = _problem(loss, averages, size)
        if problem is None:
            continue
        warn_all_ranks(
            LossReductionWarning,
            f"the loss '{loss.name}' has reduction={loss.reduction!r}. "
            f"{problem}",
            is_shown=runtime.rank() == 0,
        )


def _problem(loss: Any, averages: bool, size: int) -> str | None:
    if not isinstance(loss, keras.losses.Loss):
        return None  # Keras takes a function's mean over the batch
    if loss.reduction in _SUMS and averages:
        return (
            "It is a sum over a rank's batch, and gradients are averaged over "
            f"{size} ranks: an update is 1/{size} of that of one process with "
            "all batches. Take reduction='sum_over_batch_size', or op="
            "tfring.Sum in DistributedOptimizer."
        )
    if loss.reduction == "mean_with_sample_weight":
        return (
            "Each rank divides by the weights in its own batch, so that the "
            "elements of a batch with small weights count too much: an update "
            "is not that of one process with all batches. Divide by the "
            "weights of all ranks, by tfring.global_mean, or take "
            "reduction='sum_over_batch_size'."
        )
    return None
