"""barrier: ranks wait for each other."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfring._core.process_sets import ProcessSet, global_process_set
from tfring._ops import chains
from tfring._ops.arguments import check_process_set, checked_name
from tfring._ops.autograph import not_converted


@not_converted
def barrier(
    process_set: ProcessSet = global_process_set, name: str | None = None
) -> Any:
    """Waits until every rank has called it.

    Use it to order effects outside the collectives. For example, rank 0 writes
    a file, and all ranks read it after the barrier.

    Collective: every rank must call it. In a `tf.function` it keeps its place
    among operations on collectives, variables, prints and files. Operations
    that only compute may run before or after it. Not supported under
    `jit_compile=True`.

    Args:
        process_set: See `allreduce`.
        name: See `allreduce`.

    Returns:
        None; in a graph of TensorFlow 1, the operation to be run.

    Raises:
        NotImplementedError: It is being traced for XLA.
        TypeError: `name` is not a string.
        ValueError: `init` has not been called.
        tf.errors.FailedPreconditionError: The ranks did not agree.

    Example:
    ```python
    import tfring

    tfring.init()
    if tfring.rank() == 0:
        print("Rank 0 prepares something.")
    tfring.barrier()
    ```
    """
    check_process_set("barrier", process_set)
    name = checked_name("barrier", name, process_set=process_set)
    done = chains.barrier(name, process_set)
    graph = tf.compat.v1.get_default_graph()
    # A function runs all stateful operations, and cannot return one.
    return None if graph.building_function else done
