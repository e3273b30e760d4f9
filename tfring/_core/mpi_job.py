"""A job of ranks that MPI has started."""

from __future__ import annotations

import atexit
import ctypes
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tfring import _build_info
from tfring._core import between_hosts, joint_steps, native, settings
from tfring._core.between_hosts import TcpRanks
from tfring._core.job import Job, Topology

if TYPE_CHECKING:
    from mpi4py import MPI

_T = TypeVar("_T")

# Why this process cannot join a job again; None if it can.
_unusable: str | None = None


class MpiJob(Job):
    """The ranks of a communicator."""

    def __init__(
        self,
        comm: MPI.Intracomm,
        topology: Topology,
        tcp: TcpRanks | None = None,
    ) -> None:
        """Takes ownership of the communicator.

        `tcp` has the connections that the engines use in place of MPI.
        """
        self._comm = comm
        self._tcp = tcp
        self.topology = topology

    @property
    def comm(self) -> MPI.Intracomm:
        native.check_not_forked()
        return self._comm

    def agreed(self, value: _T) -> _T:
        agreed: _T = self.comm.bcast(value)
        return agreed

    def raise_everywhere(self, error: Exception | None) -> None:
        errors = self.comm.allgather(error)
        if error is not None:
            raise error
        for rank, each in enumerate(errors):
            if each is not None:
                raise type(each)(f"rank {rank}: {each}")

    def add_process_set(
        self, process_set_id: int, ranks: Sequence[int]
    ) -> str | None:
        if self._tcp is not None:
            return self._tcp.connections.add_process_set(process_set_id, ranks)
        part, handle = None, 0
        if self.topology.rank in ranks:
            group = self.comm.Get_group().Incl(list(ranks))
            part = self.comm.Create_group(group, tag=process_set_id)
            handle = part.py2f()
        error = native.capi().tfring_add_process_set(
            process_set_id,
            (ctypes.c_int32 * len(ranks))(*ranks),
            len(ranks),
            handle,
        )
        if part is not None:
            part.Free()  # the engine has duplicates
        return None if error is None else error.decode()

    def nodes(self) -> list[int]:
        return nodes_of(self.comm)

    def leave(self) -> None:
        if self._tcp is not None:
            self._tcp.close()
        self._comm.Free()

    def next(self, steps: int) -> MpiJob:
        job = join(self._comm)
        self.leave()
        return job


def join(comm: Any) -> MpiJob:
    """Joins the job of `comm`, as `tfring.init` describes.

    A failure on one rank ends the waits of all ranks.
    """
    global _unusable
    if _unusable is not None:
        raise RuntimeError(
            f"tfring.init has failed before, and MPI is in use still: "
            f"{_unusable} Start the job again."
        )
    world = native.mpi().COMM_WORLD
    party, error = _party_of(comm)
    party.agree(error)
    try:
        job = MpiJob(*party.run(lambda: _start_engine(comm)))
    except Exception as error:
        if world.size > 1:
            # A thread may still wait in MPI for the failed rank.
            _unusable = str(error)
            atexit.register(world.Abort, 1)
        raise
    return job


def _party_of(comm: Any) -> tuple[joint_steps.Party, Exception | None]:
    """Returns the ranks that join, and the error if this one cannot.

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
        party = joint_steps.Party(world, comm, limit)
    elif isinstance(comm, MPI.Intracomm):
        party = joint_steps.Party(comm, range(comm.size), limit)
    else:
        party = joint_steps.Party(world, range(world.size), limit)
    try:
        _check_before_start(comm)
    except Exception as failed:
        error = error or failed
    return party, error


def _check_before_start(comm: Any) -> None:
    """Raises errors that this rank can find without the others."""
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
            "tfring needs MPI_THREAD_MULTIPLE, because its engine calls MPI "
            "from a thread of its own. Leave mpi4py.rc.thread_level at "
            "'multiple', or use an MPI library that provides it."
        )
    native.check_settings()
    settings.between_hosts()


def _start_engine(
    comm: Any,
) -> tuple[MPI.Intracomm, Topology, TcpRanks | None]:
    """Starts the engine. Waits for all ranks, so call it in a thread."""
    world = native.mpi().COMM_WORLD
    if comm is None:
        comm = world
    elif isinstance(comm, Sequence):
        comm = world.Create_group(world.Get_group().Incl(list(comm)))
    nodes = nodes_of(comm)
    tcp = between_hosts.connect(comm, nodes)
    if tcp is not None:
        tcp.connections.start_world(replaces_ranks=False)
    elif error := native.capi().tfring_init(comm.py2f()):
        raise RuntimeError(f"tfring.init failed: {error.decode()}")
    # The caller may free its communicator.
    return comm.Dup(), Topology.of_nodes(comm.rank, nodes), tcp


def nodes_of(comm: MPI.Intracomm) -> list[int]:
    """Returns, for each rank, the first rank on its node. Collective."""
    local = comm.Split_type(native.mpi().COMM_TYPE_SHARED, key=comm.rank)
    nodes: list[int] = comm.allgather(local.bcast(comm.rank))
    local.Free()
    return nodes


# For each launcher: its variable for the number of tasks, its name, and how to
# start the tasks so that MPI sees them.
_LAUNCHERS = (
    ("SLURM_STEP_NUM_TASKS", "srun", "with `srun --mpi=pmix`, or "),
    ("OMPI_COMM_WORLD_SIZE", "mpirun", ""),
)


def _check_all_tasks_are_ranks(world_size: int) -> None:
    # With a plain `srun`, or with another version's mpirun, MPI sees a job of
    # one rank in every task, and each would silently train alone.
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
