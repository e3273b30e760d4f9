"""The life of the engine in this process, and who is who in the job."""

from __future__ import annotations

import atexit
import dataclasses
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from absl import logging

from tfring import _native
from tfring.errors import NotInitializedError

if TYPE_CHECKING:
    from mpi4py import MPI


@dataclasses.dataclass(frozen=True)
class _Topology:
    """Where this rank stands: in the job, on its node, and across nodes."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    # Whether all nodes have the same local size.
    is_homogeneous: bool

    @classmethod
    def of(cls, comm: MPI.Intracomm) -> _Topology:
        local = comm.Split_type(_native.mpi().COMM_TYPE_SHARED, key=comm.rank)
        cross = comm.Split(color=local.rank, key=comm.rank)
        local_sizes = comm.allgather(local.size)
        topology = cls(
            comm.rank,
            comm.size,
            local.rank,
            local.size,
            cross.rank,
            cross.size,
            is_homogeneous=len(set(local_sizes)) == 1,
        )
        local.Free()
        cross.Free()
        return topology


_topology: _Topology | None = None
_lock = threading.Lock()
_process_hooks_installed = False


def init(comm: MPI.Intracomm | None = None) -> None:
    """Joins this process to the job; call it before anything else of tfring.

    Collective: every rank of `comm` must call it. A process that no launcher
    started is a job of size 1. A second call does nothing.

    When the job has more than one rank, an exception that nobody catches ends
    the whole job, its traceback shown first: the other ranks would wait for
    this one for ever.

    Args:
        comm: An mpi4py communicator whose ranks train together; the default is
            the world. The engine works on a duplicate of it.

    Raises:
        RuntimeError: MPI gives no `MPI_THREAD_MULTIPLE`, does not see the other
            tasks of an `srun`, or the engine cannot start; the message says
            why.
        TypeError: `comm` is not an mpi4py communicator.
        ValueError: A `TFRING_*` environment variable has an unusable value.

    Example:

    ```python
    import tfring

    tfring.init()
    print(f"rank {tfring.rank()} of {tfring.size()}")
    ```
    """
    global _topology
    MPI = _native.mpi()  # noqa: N806
    with _lock:
        if _topology is not None:
            return
        if comm is None:
            comm = MPI.COMM_WORLD
            _check_all_tasks_are_ranks(comm.size)
        if not isinstance(comm, MPI.Intracomm):
            raise TypeError(
                "tfring.init: comm must be an mpi4py intracommunicator or "
                f"None, got {type(comm).__name__}."
            )
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            raise RuntimeError(
                "tfring needs MPI_THREAD_MULTIPLE, as its engine talks to MPI "
                "from a thread of its own. Leave mpi4py.rc.thread_level at "
                "'multiple', or use an MPI library that provides it."
            )
        error = _native.capi().tfring_init(comm.py2f())
        if error is not None:
            message = error.decode()
            if "TFRING_" in message:
                raise ValueError(message)
            raise RuntimeError(f"tfring.init failed: {message}")
        _topology = _Topology.of(comm)
        _install_process_hooks()
        logging.debug("tfring: rank %d of %d", comm.rank, comm.size)


def shutdown() -> None:
    """Leaves the job; what other ranks submit later fails with an error.

    Happens by itself when the interpreter exits. Without `init` it does
    nothing. `init` may be called again afterwards, by every rank.
    """
    global _topology
    with _lock:
        if _topology is None:
            return
        _topology = None
        _native.capi().tfring_shutdown()


def is_initialized() -> bool:
    """Whether `init` has been called, and `shutdown` not since."""
    return _topology is not None


def rank() -> int:
    """This process's number in the job, from 0 to `size() - 1`."""
    return _joined().rank


def size() -> int:
    """The number of processes in the job."""
    return _joined().size


def local_rank() -> int:
    """This process's number on its machine: which GPU it takes."""
    return _joined().local_rank


def local_size() -> int:
    """The number of the job's processes on this machine."""
    return _joined().local_size


def cross_rank() -> int:
    """This machine's number among those that have this `local_rank`."""
    return _joined().cross_rank


def cross_size() -> int:
    """The number of machines that have a process with this `local_rank`."""
    return _joined().cross_size


def is_homogeneous() -> bool:
    """Whether all machines of the job have the same number of ranks."""
    return _joined().is_homogeneous


def fusion_threshold_bytes() -> int:
    """The bucket size of gradients, in bytes: rank 0's, on every rank."""
    _joined()
    return int(_native.capi().tfring_fusion_threshold_bytes())


def _joined() -> _Topology:
    if _topology is None:
        raise NotInitializedError(
            "tfring is not initialized. Call tfring.init() first."
        )
    return _topology


def _check_all_tasks_are_ranks(world_size: int) -> None:
    # With a plain `srun`, an MPI that Slurm does not speak to starts every task
    # as a job of its own: each would train alone without a word.
    tasks = int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))
    if world_size == 1 and tasks > 1:
        raise RuntimeError(
            f"srun started {tasks} tasks, but to MPI each is a job of one "
            "rank. Start them with `srun --mpi=pmix`, or with `tfringrun` "
            "inside of the allocation. For independent jobs pass "
            "comm=mpi4py.MPI.COMM_SELF to tfring.init."
        )


def _install_process_hooks() -> None:
    global _process_hooks_installed
    if _process_hooks_installed:
        return
    _process_hooks_installed = True
    # Before MPI_Finalize, which mpi4py leaves to the very end of the process.
    atexit.register(shutdown)
    previous_hook = sys.excepthook

    def abort_job(kind: Any, value: Any, traceback: Any) -> None:
        previous_hook(kind, value, traceback)
        sys.stdout.flush()
        sys.stderr.flush()
        world = _native.mpi().COMM_WORLD
        if world.size > 1:
            interrupted = issubclass(kind, KeyboardInterrupt)
            world.Abort(130 if interrupted else 1)

    sys.excepthook = abort_job
