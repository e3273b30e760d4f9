"""Functions whose parameters have another order in Horovod's Keras modules.

`IS_KERAS2` says which Keras these modules are for.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

import tfring

# With `TF_USE_LEGACY_KERAS=1`, `tf.keras` is the package `tf_keras`.
IS_KERAS2 = tf.keras.Model.__module__.startswith("tf_keras.")


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: tfring.ReduceOp | None = None,
    compression: Any = tfring.Compression.none,
) -> Any:
    """`tfring.allreduce` of anything that is a tensor, or can become one."""
    return tfring.allreduce(
        value,
        average=average,
        compression=compression,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name,
    )


def allgather(value: Any, name: str | None = None) -> Any:
    """`tfring.allgather`."""
    return tfring.allgather(value, name=name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """`tfring.broadcast`."""
    return tfring.broadcast(value, root_rank, name=name)


def reducescatter(
    value: Any, name: str | None = None, op: Any = tfring.Average
) -> Any:
    """`tfring.reducescatter`."""
    return tfring.reducescatter(value, op=op, name=name)


def DistributedOptimizer(  # noqa: N802 (Horovod's name)
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = tfring.Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: Any = tfring.Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = tfring.global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """`tfring.DistributedOptimizer`."""
    return tfring.DistributedOptimizer(
        optimizer,
        name=name,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        backward_passes_per_step=backward_passes_per_step,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        average_aggregated_gradients=average_aggregated_gradients,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
