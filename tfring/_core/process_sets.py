"""Process sets: parts of the job that run collectives among themselves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tfring._core import native, runtime

if TYPE_CHECKING:
    from mpi4py import MPI


class ProcessSet:
    """Some ranks of the job, which run collectives among themselves.

    All ranks must first pass it to `tfring.init` or to
    `tfring.add_process_set`. Until it is removed, or `tfring.shutdown` is
    called, its ranks may pass it to collectives as `process_set=`. Collectives
    of different sets run independently, each set in the order of its own ranks'
    requests.

    Ranks keep their numbers in the job: the root of a broadcast and the ranks
    in errors are numbered as by `tfring.rank()`, and the rows of an `allgather`
    are in the order of these numbers.

    Args:
        ranks_or_comm: The ranks, in any order; or an mpi4py communicator of
            these ranks. Each rank passes the communicator that it is in, so a
            `Split` gives one process set for each part.

    Raises:
        TypeError: The argument is neither, or is `mpi4py.MPI.COMM_NULL`.
        ValueError: There are no ranks, a rank twice, or a negative rank.

    Example:

    ```python
    import tfring

    tfring.init()
    if tfring.size() > 1:
        first = tfring.add_process_set(tfring.ProcessSet([0]))
        assert first.size() == 1
        if first.included():
            total = tfring.allreduce(7, op=tfring.Sum, process_set=first)
            assert total == 7
    ```
    """

    def __init__(self, ranks_or_comm: Iterable[int] | MPI.Intracomm) -> None:
        # None before the set is added, and after it is removed.
        self.process_set_id: int | None = None
        # For a set from a communicator, None until the set is added.
        self.ranks: list[int] | None = None
        self.mpi_comm: MPI.Intracomm | None = None
        if isinstance(ranks_or_comm, Iterable):
            self.ranks = _checked_ranks(ranks_or_comm)
        elif not native.is_tcp_job() and _is_communicator(ranks_or_comm):
            self.mpi_comm = ranks_or_comm
        else:
            raise TypeError(
                "ProcessSet takes a list of ranks, or the mpi4py communicator "
                f"that this rank is in, got {ranks_or_comm!r} of type "
                f"{type(ranks_or_comm).__name__}."
            )

    def size(self) -> int:
        """Returns the number of ranks; raises ValueError before it is added."""
        return len(self._added())

    def rank(self) -> int:
        """Returns this process's number in the set, from 0 to `size() - 1`.

        Raises ValueError before the set is added, or if this process is not in
        it.
        """
        ranks = self._added()
        if runtime.rank() not in ranks:
            raise ValueError(
                f"rank {runtime.rank()} is not in {self}. Ask its included() "
                "first."
            )
        return ranks.index(runtime.rank())

    def included(self) -> bool:
        """Tells whether this process is in the set, which must be added."""
        return runtime.rank() in self._added()

    def _added(self) -> list[int]:
        runtime.check_joined()
        if self.process_set_id is None or self.ranks is None:
            raise ValueError(
                f"{self} is not part of the job: it was never added, or it "
                "was removed. Pass it to tfring.init or tfring.add_process_set "
                "on every rank."
            )
        return self.ranks

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickle an added set by its id, which is the same in all processes.
        if self.process_set_id is None:
            return super().__reduce__()  # type: ignore[return-value]
        return by_id, (self.process_set_id,)

    def __repr__(self) -> str:
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, "
            f"ranks={self.ranks}, mpi_comm={self.mpi_comm})"
        )


class _World(ProcessSet):
    """All ranks of the job, from `init` to `shutdown`."""

    def __init__(self) -> None:
        self.process_set_id = 0

    @property
    def mpi_comm(self) -> MPI.Intracomm | None:  # type: ignore[override]
        if not runtime.is_initialized() or native.is_tcp_job():
            return None
        return runtime.job().comm

    @property
    def ranks(self) -> list[int] | None:  # type: ignore[override]
        if not runtime.is_initialized():
            return None
        return list(range(runtime.size()))

    # These are called for every collective, so they build no list.

    def size(self) -> int:
        return runtime.size()

    def included(self) -> bool:
        runtime.check_joined()
        return True


global_process_set: ProcessSet = _World()

# Process sets that have been added, by id.
_added: dict[int, ProcessSet] = {}


def by_id(process_set_id: int) -> ProcessSet:
    """Returns the process set with this id, an attribute of operations."""
    if process_set_id == 0:
        return global_process_set
    if process_set_id not in _added:
        raise ValueError(
            f"process set {process_set_id} is not part of the job any more."
        )
    return _added[process_set_id]


def added() -> list[ProcessSet]:
    """Returns all added process sets, the world first."""
    return [global_process_set, *_added.values()]


def enter(process_set: ProcessSet, process_set_id: int) -> None:
    """Makes a set part of the job under an id."""
    process_set.process_set_id = process_set_id
    _added[process_set_id] = process_set


def leave(process_set: ProcessSet) -> None:
    """Undoes `enter`."""
    del _added[checked_id(process_set)]
    process_set.process_set_id = None


def checked_id(process_set: ProcessSet) -> int:
    """Returns the id of a set; raises ValueError if it is not in the job."""
    process_set.size()
    assert process_set.process_set_id is not None
    return process_set.process_set_id


def is_alone(process_set: ProcessSet) -> bool:
    """Tells whether a set has only one rank, and will stay so."""
    if process_set is global_process_set:  # others may join it
        return runtime.is_alone()
    return process_set.size() == 1


@runtime.at_shutdown
def _leave_all() -> None:
    for process_set in list(_added.values()):
        leave(process_set)


def _is_communicator(ranks_or_comm: object) -> bool:
    MPI = native.mpi()  # noqa: N806
    return (
        isinstance(ranks_or_comm, MPI.Intracomm)
        and ranks_or_comm != MPI.COMM_NULL
    )


def _checked_ranks(ranks: Iterable[int]) -> list[int]:
    ranks = list(ranks)
    for rank in ranks:
        if isinstance(rank, bool) or not hasattr(rank, "__index__"):
            raise TypeError(
                "ProcessSet: ranks must be integers, got "
                f"{rank!r} of type {type(rank).__name__}."
            )
    ranks = sorted(rank.__index__() for rank in ranks)
    if not ranks or ranks[0] < 0 or len(set(ranks)) < len(ranks):
        raise ValueError(
            "ProcessSet: ranks must be one or more different numbers from 0 "
            f"on, got {ranks}."
        )
    return ranks
