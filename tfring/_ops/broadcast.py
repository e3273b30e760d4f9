"""broadcast of a tensor; `broadcast_variables` is for variables."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfring._core.process_sets import ProcessSet, global_process_set
from tfring._ops import gradients as gradients  # registers them
from tfring._ops.arguments import (
    check_process_set,
    check_root_rank,
    checked_name,
    checked_tensor,
)
from tfring._ops.autograph import not_converted
from tfring._ops.chains import finish, start_broadcast


@not_converted
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Gives every rank the tensor of one of them.

    Collective: every rank must call it, with the same dtype, shape,
    `root_rank` and `name`.

    Its gradient is, on the root, the average of the ranks' gradients, and zero
    on other ranks. Horovod defines it so; the gradient of the sum of the ranks'
    losses would be `size()` times as large.

    Args:
        tensor: A tensor of a dtype that `allreduce` takes. On ranks other than
            the root, only its dtype and shape matter.
        root_rank: The rank that sends its tensor, from 0 to `size() - 1`, as
            `tfring.rank()` counts.
        name: See `allreduce`.
        ignore_name_scope: See `allreduce`.
        process_set: See `allreduce`.

    Returns:
        The tensor of `root_rank`.

    Raises:
        TypeError: The dtype is not supported, or `root_rank` is no integer.
        ValueError: There is no such rank, or `init` has not been called.
        tf.errors.FailedPreconditionError: The ranks did not agree.

    Example:
    ```python
    import tensorflow as tf
    import tfring

    tfring.init()
    seed = tfring.broadcast(tf.constant(100 + tfring.rank()), 0)
    assert seed == 100
    ```
    """
    check_process_set("broadcast", process_set)
    tensor = checked_tensor("broadcast", tensor)
    check_root_rank("broadcast", root_rank, process_set)
    name = checked_name("broadcast", name, ignore_name_scope, process_set)
    started = start_broadcast(
        [tensor],
        request_name=name,
        tensor_names=[name],
        process_set=process_set,
        root_rank=root_rank,
    )
    [result] = finish(started)
    return result
