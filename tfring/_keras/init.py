"""init joins the job, and applies its arguments and settings.

It is in a layer above the runtime, because it adds process sets by collectives
and installs the hooks of Keras.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tfring._core import monitor, runtime, timeline
from tfring._core.process_sets import ProcessSet
from tfring._keras.hooks import install_hooks
from tfring._ops.choose_gpu import choose_gpu
from tfring._ops.process_set_registry import (
    add_process_set,
    add_unless_known,
)
from tfring._ops.stragglers import watch_where_asked

if TYPE_CHECKING:
    from mpi4py import MPI


def init(
    comm: MPI.Intracomm | Sequence[int] | None = None,
    process_sets: Sequence[ProcessSet | Sequence[int]] | str | None = None,
) -> None:
    """Joins this process to the job; call it before anything else of tfring.

    Collective: every rank of `comm` must call it. A process that no launcher
    started is a job of size 1. A second call only adds any `process_sets` that
    the job does not have yet.

    An error on one rank is raised on every rank. `init` stops waiting for a
    missing rank after `TFRING_INIT_TIMEOUT_SECONDS` (default 600; 0 means
    never).

    If the job has more than one rank, an uncaught exception shows its traceback
    and then ends the whole job. Otherwise all other ranks would wait for this
    one forever.

    On a machine with GPUs, TensorFlow will use only the GPU of this rank, by
    `local_rank`, unless the script itself chooses visible GPUs by
    `tf.config.set_visible_devices`, before this or after it.

    Args:
        comm: An mpi4py communicator of the ranks that train together, or a list
            of ranks of the world; the default is the world. Only the ranks of a
            list may call `init` with it. The engine works on a duplicate of it.
        process_sets: Process sets that the job has from the start, the same on
            every rank, as if added by `tfring.add_process_set`. The value
            "dynamic" has no effect; in Horovod it allows sets to be added
            later.

    Raises:
        ImportError: `TFRING_METRICS_PORT` is set, and prometheus_client is not
            installed, here or on another rank; then there is no job.
        RuntimeError: MPI does not provide `MPI_THREAD_MULTIPLE`, does not see
            all tasks of an `srun` or of another version's `mpirun`, or the
            engine cannot start, here or on another rank; or this process was
            forked from a rank. The message says why.
        TimeoutError: A rank is missing; the message says which.
        TypeError: `comm` is neither an mpi4py communicator nor a list.
        ValueError: A `TFRING_*` environment variable has an unusable value,
            here or on another rank, this process is not in the list `comm`, or
            as for `tfring.add_process_set`; then there is no job.

    Example:

    ```python
    import tfring

    tfring.init()
    print(f"rank {tfring.rank()} of {tfring.size()}")
    ```
    """
    if isinstance(process_sets, str) and process_sets != "dynamic":
        raise ValueError(
            "tfring.init: process_sets must be a list of process sets or "
            f"'dynamic', got {process_sets!r}."
        )
    is_new = runtime.join_job(comm)
    if is_new:
        choose_gpu()
        install_hooks()
        timeline_path = runtime.job().agreed(os.environ.get("TFRING_TIMELINE"))
        if timeline_path:
            timeline.start_timeline(timeline_path)
    if process_sets is None or isinstance(process_sets, str):
        process_sets = ()
    add = add_process_set if is_new else add_unless_known
    try:
        if is_new:
            monitor.serve_where_asked()
            watch_where_asked()
        for process_set in process_sets:
            add(process_set)
    except Exception:
        if is_new:
            runtime.shutdown()
        raise
