"""The life of the engine in this process, and who is who in the job."""

from __future__ import annotations

import array
import atexit
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from absl import logging

from tfring import _build_info
from tfring._core import agreement, failure, native, reports, settings
from tfring._core.errors import NotInitializedError

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
    # True if all nodes have the same local size.
    is_homogeneous: bool

    @classmethod
    def of(cls, comm: MPI.Intracomm) -> _Topology:
        local = comm.Split_type(native.mpi().COMM_TYPE_SHARED, key=comm.rank)
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


# How often a rank looks whether the others have come.
_LOOK_SECONDS = 0.001
_RESTART_SECONDS = 600.0

_topology: _Topology | None = None
# A duplicate, as that of the caller may be freed.
_job: MPI.Intracomm | None = None
_shutdown_hooks: list[Callable[[], None]] = []
_after_shutdown_hooks: list[Callable[[], None]] = []
_after_restart_hooks: list[Callable[[], None]] = []
_lock = threading.Lock()
_process_hooks_installed = False
# Why this process can join no job any more.
_unusable: str | None = None


def join_job(comm: MPI.Intracomm | Sequence[int] | None) -> bool:
    """Joins this process to the job, as `tfring.init` describes.

    Returns:
        False if it has joined one already.
    """
    with _lock:
        if _topology is not None:
            return False
        _join(comm)
        return True


def _join(comm: Any) -> None:
    """Makes `comm` the job of this process.

    From here on nothing that fails on one rank leaves the others waiting.
    """
    global _topology, _job, _unusable
    native.check_not_forked()
    if _unusable is not None:
        raise RuntimeError(
            f"tfring.init has failed before, and MPI is in use still: "
            f"{_unusable} Start the job again."
        )
    world = native.mpi().COMM_WORLD
    _install_process_hooks()
    party, error = _party_of(comm)
    party.agree(error)
    try:
        _job, _topology = party.run(lambda: _start_engine(comm))
    except Exception as error:
        if world.size > 1:
            # A thread may wait in MPI for a rank that has failed.
            _unusable = str(error)
            atexit.register(world.Abort, 1)
        raise
    # For `tfringrun --elastic`: from here on the others notice if this rank is
    # killed.
    reports.tell("started")
    if outlives_lost_ranks():
        native.finalize_alone()
    logging.debug("tfring: rank %d of %d", _topology.rank, _topology.size)


def _party_of(comm: Any) -> tuple[agreement.Party, Exception | None]:
    """The ranks that join, and what keeps this one from it.

    Raises:
        ValueError: This process is not in the list `comm`.
    """
    MPI = native.mpi()  # noqa: N806
    error: Exception | None = None
    limit = native.INIT_SECONDS
    try:
        limit = settings.seconds("TFRING_INIT_TIMEOUT_SECONDS", limit)
    except ValueError as unusable:
        error = unusable
    world = MPI.COMM_WORLD
    if isinstance(comm, Sequence) and not isinstance(comm, str):
        if world.rank not in comm:
            raise ValueError(
                f"tfring.init: this process, rank {world.rank} of the world, "
                f"is not in comm={list(comm)}. Call it on these ranks alone."
            )
        party = agreement.Party(world, comm, limit)
    elif isinstance(comm, MPI.Intracomm):
        party = agreement.Party(comm, range(comm.size), limit)
    else:
        party = agreement.Party(world, range(world.size), limit)
    try:
        _check_before_start(comm)
    except Exception as failed:
        error = error or failed
    return party, error


def _check_before_start(comm: Any) -> None:
    """Raises the errors that this rank can find without the others."""
    MPI = native.mpi()  # noqa: N806
    if comm is None:
        _check_all_tasks_are_ranks(MPI.COMM_WORLD.size)
    elif isinstance(comm, str) or not isinstance(
        comm, (Sequence, MPI.Intracomm)
    ):
        raise TypeError(
            "tfring.init: comm must be an mpi4py intracommunicator, a list of "
            f"ranks or None, got {type(comm).__name__}."
        )
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise RuntimeError(
            "tfring needs MPI_THREAD_MULTIPLE, as its engine talks to MPI "
            "from a thread of its own. Leave mpi4py.rc.thread_level at "
            "'multiple', or use an MPI library that provides it."
        )
    settings.metrics_endpoint()
    unusable = native.capi().tfring_check_options()
    if unusable is not None:
        raise ValueError(unusable.decode())


def _start_engine(comm: Any) -> tuple[MPI.Intracomm, _Topology]:
    """Waits for the other ranks: not for the main thread."""
    if comm is None:
        comm = native.mpi().COMM_WORLD
    elif isinstance(comm, Sequence):
        comm = _part_of_the_world(comm)
    error = native.capi().tfring_init(comm.py2f())
    if error is not None:
        raise RuntimeError(f"tfring.init failed: {error.decode()}")
    return comm.Dup(), _Topology.of(comm)


def _part_of_the_world(ranks: Sequence[int]) -> MPI.Intracomm:
    world = native.mpi().COMM_WORLD
    part: MPI.Intracomm = world.Create_group(
        world.Get_group().Incl(list(ranks))
    )
    return part


def shutdown() -> None:
    """Leaves the job; what other ranks submit later fails with an error.

    Happens by itself when the interpreter exits. Without `init` it does
    nothing. `init` may be called again afterwards, by every rank.
    """
    global _topology, _job
    with _lock:
        if _topology is None:
            return
        for hook in _shutdown_hooks:
            hook()
        _topology = None
        if native.is_disowned():  # The job is this process's parent's.
            _job = None
            return
        native.capi().tfring_shutdown()
        # After it: what other ranks have in flight has failed, and they come
        # here, too.
        for hook in _after_shutdown_hooks:
            hook()
        if _has_lost_ranks(job()):
            job().Revoke()
        else:
            job().Free()
        _job = None


def restart() -> None:
    """Leaves the job, and joins it again with the ranks that are still there.

    A rank that is not lost must call it: what the others submit fails once one
    of them has, so that they know. Process sets are gone afterwards. A timeline
    goes on, without what a lost rank has recorded.

    Collective over the ranks that are left.

    Raises:
        TimeoutError: Another rank has not come in as long as a collective may
            be stalled.
        RuntimeError: See `init`.
    """
    global _topology, _job
    with _lock:
        _joined()
        for hook in _shutdown_hooks:
            hook()
        native.capi().tfring_shutdown()
        # The old one is not freed: a lost rank would have to take part.
        before, _topology, _job = job(), None, None
        left = _ranks_left(before)
        _join(left)
        left.Free()
        for hook in _after_restart_hooks:
            hook()


def _ranks_left(before: MPI.Intracomm) -> MPI.Intracomm:
    limit = settings.seconds(
        "TFRING_STALL_SHUTDOWN_TIME_SECONDS", _RESTART_SECONDS
    )
    too_late = (
        f"tfring: to start again takes all {before.size} ranks that are not "
        f"lost, and some have not come for {limit:g} s."
    )
    begin = time.monotonic()
    outlives = outlives_lost_ranks()
    if outlives:
        # Who waits for a rank that comes here gets an error.
        before.Revoke()
        request = before.Iagree(array.array("i", [1]))
    else:
        request = before.Ibarrier()
    while not _is_over(request):
        if limit and time.monotonic() - begin > limit:
            raise TimeoutError(too_late)
        time.sleep(_LOOK_SECONDS)
    # Open MPI 5.0's Ishrink fails.
    left: Any = agreement.run_within(
        limit, before.Shrink if outlives else before.Dup, too_late
    )
    return cast("MPI.Intracomm", left)


def _is_over(request: MPI.Request) -> bool:
    MPI = native.mpi()  # noqa: N806
    try:
        return bool(request.Test())
    except MPI.Exception as error:
        # It completes without the ranks that are lost, with this error.
        if error.error_class != MPI.ERR_PROC_FAILED:
            raise
        return True


def _has_lost_ranks(comm: MPI.Intracomm) -> bool:
    return outlives_lost_ranks() and bool(comm.Get_failed().size > 0)


def outlives_lost_ranks() -> bool:
    """Returns True if MPI goes on when a rank is killed: Open MPI can."""
    name = "OMPI_MCA_mpi_ft_enable"
    return os.environ.get(name) == "1"


def reason_of_end() -> str | None:
    """Why all collectives fail from now on: a rank is lost, or has left.

    None while they do not.
    """
    reason: bytes | None = native.capi().tfring_ended()
    return None if reason is None else reason.decode()


def at_shutdown(hook: Callable[[], None]) -> Callable[[], None]:
    """A decorator: `shutdown` calls `hook` before it leaves the job."""
    _shutdown_hooks.append(hook)
    return hook


def after_shutdown(hook: Callable[[], None]) -> Callable[[], None]:
    """A decorator: `shutdown` calls `hook` when the engine has stopped."""
    _after_shutdown_hooks.append(hook)
    return hook


def after_restart(hook: Callable[[], None]) -> Callable[[], None]:
    """A decorator: `restart` calls `hook` with the new `job` in place."""
    _after_restart_hooks.append(hook)
    return hook


def job() -> MPI.Intracomm:
    """The communicator of the job, for what is not the engine's."""
    native.check_not_forked()
    assert _job is not None
    return _job


def is_initialized() -> bool:
    """Returns True if `init` has been called, and `shutdown` not since."""
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
    """Returns True if all nodes of the job have the same number of ranks."""
    return _joined().is_homogeneous


def fusion_threshold_bytes() -> int:
    """The bucket size of gradients, in bytes: rank 0's, on every rank."""
    _joined()
    return int(native.capi().tfring_fusion_threshold_bytes())


def overlap() -> bool:
    """Returns rank 0's setting: True if backpropagation waits for starts."""
    _joined()
    return bool(native.capi().tfring_overlap() == 1)


def _joined() -> _Topology:
    if _topology is None:
        raise NotInitializedError(
            "tfring is not initialized. Call tfring.init() first."
        )
    return _topology


# Variables by which launchers give the number of tasks, their launcher, and how
# to start the tasks so that MPI sees them.
_LAUNCHERS = (
    ("SLURM_STEP_NUM_TASKS", "srun", "with `srun --mpi=pmix`, or "),
    ("OMPI_COMM_WORLD_SIZE", "mpirun", ""),
)


def _check_all_tasks_are_ranks(world_size: int) -> None:
    # With a plain `srun`, or the mpirun of another version, every task is a job
    # of its own to MPI: each would silently train alone.
    if world_size > 1:
        return
    for variable, launcher, remedy in _LAUNCHERS:
        tasks = int(os.environ.get(variable, "1"))
        if tasks > 1:
            raise RuntimeError(
                f"{launcher} started {tasks} tasks, but to tfring's MPI, "
                f"{_build_info.MPI_VERSION}, each is a job of one rank. Start "
                f"them {remedy}with `tfringrun`, which knows the right mpirun. "
                "For independent jobs pass comm=mpi4py.MPI.COMM_SELF to "
                "tfring.init."
            )


def _install_process_hooks() -> None:
    global _process_hooks_installed
    if _process_hooks_installed:
        return
    _process_hooks_installed = True
    # Before MPI_Finalize, which mpi4py leaves to the very end of the process.
    atexit.register(_leave_at_exit)
    failure.end_job_with_this_process(_is_another_gone)
    os.register_at_fork(after_in_child=_disown_in_child)


def _leave_at_exit() -> None:
    status = failure.exit_status()
    if status != 0 and not native.is_disowned():
        reports.tell(f"leaving {status} {os.uname().nodename}")
    shutdown()
    if native.is_disowned():
        return
    reports.tell("ending")
    if status != 0 and native.mpi().COMM_WORLD.size > 1:
        # MPI_Finalize would wait for the others, which are not done, and the
        # status would be lost.
        native.skip_finalize()


def _is_another_gone() -> bool:
    """Returns True if another rank has ended and so failed the job."""
    return _topology is not None and "has shut down" in (reason_of_end() or "")


def _disown_in_child() -> None:
    """Leaves the job to the parent; the ranks and sizes stay known."""
    global _lock
    _lock = threading.Lock()
    native.disown()
