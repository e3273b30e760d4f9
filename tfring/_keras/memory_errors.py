"""Names the remedy when a rank has too little memory for a whole model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tfring._core import runtime
from tfring._memory.parameters import parameters_of


@contextmanager
def with_remedy(model: Any = None) -> Iterator[None]:
    """Adds the remedy to TensorFlow's out-of-memory error.

    Args:
        model: The model in use. Nothing is added if its parameters are sharded.

    Raises:
        tf.errors.ResourceExhaustedError: Raised by the body.
    """
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        if not runtime.is_initialized() or runtime.size() == 1:
            raise
        if model is not None and parameters_of(model.variables):
            raise
        rank, size = runtime.rank(), runtime.size()
        raise tf.errors.ResourceExhaustedError(
            error.node_def,
            error.op,
            f"{error.message}\nRank {rank} of {size} has too little memory. If "
            "the model is built within tfring.shard_parameters(), and trained "
            "by tfring.DistributedOptimizer(..., shard_states=True), each rank "
            f"keeps 1/{size} of its large weights, their gradients and the "
            "optimizer's states.",
        ) from error
