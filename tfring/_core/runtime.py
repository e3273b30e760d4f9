"""The life of the engine in this process, and who is who in the job."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from absl import logging

from tfring._core import failure, mpi_job, native, reports, tcp_job
from tfring._core.errors import NotInitializedError
from tfring._core.job import Job, Topology
from tfring._core.launcher_link import Over

if TYPE_CHECKING:
    from mpi4py import MPI


_job: Job | None = None
_shutdown_hooks: list[Callable[[], None]] = []
_after_shutdown_hooks: list[Callable[[], None]] = []
_after_restart_hooks: list[Callable[[], None]] = []
# How many jobs this process has joined.
_starts = 0
# The most parts of a state that are compared: a message with more would be too
# long.
_MOST_PARTS = 10_000
_lock = threading.Lock()
_process_hooks_installed = False


def join_job(comm: MPI.Intracomm | Sequence[int] | None) -> bool:
    """Joins this process to the job, as `tfring.init` describes.

    Returns:
        False if this process is in a job already.
    """
    global _job
    with _lock:
        if _job is not None:
            return False
        native.check_not_forked()
        if is_first := _starts == 0:
            reports.tell("joining")
        join: Callable[[Any], Job] = tcp_job.join
        if not native.is_tcp_job():
            native.mpi()  # registers MPI's hook first, so it runs last
            join = mpi_job.join
        _install_process_hooks()
        _begin(join(comm))
        if is_first:
            reports.tell("joined")
        return True


def _begin(job: Job) -> None:
    """Makes a job that this process has joined the current one."""
    global _job, _starts
    _job = job
    _starts += 1
    logging.debug("tfring: rank %d of %d", job.topology.rank, job.topology.size)


def shutdown() -> None:
    """Leaves the job; what other ranks submit later fails with an error.

    It is called when the interpreter exits, and does nothing without `init`.
    Every rank may then call `init` again; in an elastic job only before a
    function of `tfring.elastic.run` has ended.
    """
    global _job
    with _lock:
        if _job is None:
            return
        for hook in _shutdown_hooks:
            hook()
        left, _job = _job, None
        if native.is_disowned():  # the job belongs to the parent
            return
        native.capi().tfring_shutdown()
        # Other ranks' collectives in flight have failed by now, so they come
        # here, too.
        for hook in _after_shutdown_hooks:
            hook()
        left.leave()


def restart(steps: int = -1) -> Over | None:
    """Leaves the job, and joins it again with the ranks that are left.

    Every rank that is not lost must call it: once one has, submissions on all
    ranks fail, so that all notice. Process sets are removed. A timeline
    continues, without the recordings of lost ranks.

    Collective over the ranks that are left.

    Args:
        steps: The number of commits in this rank's state; -1 without a state.
            If ranks join the job, a rank with the most commits becomes rank 0.

    Returns:
        None, or `Over` if the other ranks of an elastic job have ended the
        training that this rank would continue. Then this rank is alone until
        the next call.

    Raises:
        TimeoutError: A rank is missing for as long as a collective may be
            stalled.
        RuntimeError: See `init`.
    """
    global _job
    with _lock:
        before = _joined()
        for hook in _shutdown_hooks:
            hook()
        native.capi().tfring_shutdown()
        _job = None
        _begin(before.next(steps))
        for hook in _after_restart_hooks:
            hook()
        return _job.over if isinstance(_job, tcp_job.TcpJob) else None


def may_grow() -> bool:
    """Tells whether the job is elastic, so that its ranks may change."""
    return native.is_elastic()


def may_leave() -> bool:
    """Asks whether an elastic job can go on without this worker."""
    return not isinstance(_job, tcp_job.TcpJob) or _job.launcher.may_leave()


def tell_of_training(phase: str, **more: Any) -> None:
    """Tells the launcher of an elastic job about this worker's training.

    Args:
        phase: "begun"; "done" if all ranks have reached the end of the
            training; "left" if this rank ends it for another reason.
        **more: With "begun" the `function`'s name; with "done" its `result` as
            JSON.
    """
    if isinstance(_job, tcp_job.TcpJob):
        _job.launcher.say("training", phase=phase, **more)


def tell_of_state(
    describe: Callable[[], list[tuple[str, str]] | None],
) -> None:
    """Tells the launcher of an elastic job the parts of the workers' state.

    Args:
        describe: Returns the parts, each with its name; None if they are
            unknown. It is called on rank 0, because all ranks have the same
            parts, and in a worker that builds while a generation trains.
    """
    if not isinstance(_job, tcp_job.TcpJob) or _job.topology.rank != 0:
        return
    parts = describe()
    if parts is not None:
        _job.launcher.say("state", parts=parts[:_MOST_PARTS])


def is_beside() -> bool:
    """Tells whether this worker has yet to join a generation that trains."""
    return isinstance(_job, tcp_job.TcpJob) and _job.is_beside


def has_waiting() -> bool:
    """Tells whether other workers wait to join at a new start of the job."""
    return isinstance(_job, tcp_job.TcpJob) and _job.launcher.has_waiting


def reason_of_end() -> str | None:
    """Returns why all collectives fail from now on: a rank is lost or has left.

    None while collectives can succeed.
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


def job() -> Job:
    """Returns the job that this process is in."""
    native.check_not_forked()
    return _joined()


def job_number() -> int:
    """Returns how many jobs this process has joined, with the present one.

    Raises:
        NotInitializedError: This process is in no job.
    """
    _joined()
    return _starts


def is_initialized() -> bool:
    """Returns True between `init` and `shutdown`."""
    return _job is not None


def place() -> Topology:
    """Returns the topology for scripts; see Note [A place to come]."""
    return _joined().place


def rank() -> int:
    """This process's number among the ranks that collectives reach."""
    return _joined().topology.rank


def size() -> int:
    """The number of processes that collectives reach."""
    return _joined().topology.size


def is_alone() -> bool:
    """Tells whether the job has one process, and none can join it."""
    return _joined().topology.size == 1 and not may_grow()


def local_rank() -> int:
    """This process's number on its machine: which GPU it takes."""
    return _joined().topology.local_rank


def local_size() -> int:
    """The number of the job's processes on this machine."""
    return _joined().topology.local_size


def fusion_threshold_bytes() -> int:
    """Returns the bucket size of gradients in bytes, which rank 0 has set."""
    _joined()
    return int(native.capi().tfring_fusion_threshold_bytes())


def check_joined() -> None:
    """Raises NotInitializedError before `init`, and after `shutdown`."""
    _joined()


def _joined() -> Job:
    if _job is None:
        raise NotInitializedError(
            "tfring is not initialized. Call tfring.init() first."
        )
    return _job


def _install_process_hooks() -> None:
    global _process_hooks_installed
    if _process_hooks_installed:
        return
    _process_hooks_installed = True
    # Runs before MPI_Finalize, which mpi4py leaves to the very end.
    atexit.register(_leave_at_exit)
    failure.end_job_with_this_process(_is_another_gone, _end_job)
    os.register_at_fork(after_in_child=_disown_in_child)


def _leave_at_exit() -> None:
    status = failure.exit_status()
    if not native.is_disowned():
        reports.tell("leaving", status)
    shutdown()
    if native.is_disowned():
        return
    if native.is_tcp_job():
        tcp_job.leave(status)
    elif status != 0 and native.mpi().COMM_WORLD.size > 1:
        # MPI_Finalize would wait for other ranks, and the status would be lost.
        native.skip_finalize()


def _is_another_gone() -> bool:
    """Returns True if another rank has ended and so failed the job."""
    return _job is not None and "has shut down" in (reason_of_end() or "")


def _end_job(status: int, text: str) -> None:
    """Ends all ranks, unless they can go on without this one."""
    if native.is_tcp_job():
        tcp_job.fail(text)
        return
    world = native.mpi().COMM_WORLD
    if world.size > 1:
        told = reports.tell("failed", status)
        if told and status == failure.INTERRUPTED:
            # After a Ctrl-C other ranks may be saving, and the launcher knows
            # how long they may. Ranks in a collective fail.
            shutdown()
            os._exit(status)
        world.Abort(status)


def _disown_in_child() -> None:
    """Leaves the job to the parent; the ranks and sizes stay known."""
    global _lock
    _lock = threading.Lock()
    native.disown()
    tcp_job.disown()
