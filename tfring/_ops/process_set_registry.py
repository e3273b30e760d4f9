"""add_process_set and remove_process_set, on which all ranks must agree.

The ranks agree by an allgather of their arguments. So all ranks get the same
error if they disagree, and a missing rank is reported as for any collective.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

import tensorflow as tf

from tfring._core import native, runtime
from tfring._core.process_sets import (
    ProcessSet,
    added,
    by_id,
    enter,
    global_process_set,
    leave,
)
from tfring._ops import chains

# All agreements share this request name: if some ranks add a set while another
# rank removes one, their requests match and fail.
_REQUEST = "process sets"

_lock = threading.Lock()
# An id is never used again in this process, even after a shutdown: a
# tf.function that was traced for one set must not run in another.
_next_id = 1


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Makes a process set part of the job.

    Collective: every rank of the job must call it, eagerly, with the same ranks
    (or with its own part of a communicator; see `tfring.ProcessSet`), in the
    same order among its collectives.

    Unlike in Horovod it may always be called, without any setting.

    Args:
        process_set: A `tfring.ProcessSet` or a list of ranks.

    Returns:
        The process set, ready for use.

    Raises:
        RuntimeError: It was called while tracing a `tf.function`, or a rank
            could not start it.
        TypeError: It is neither a process set nor a list of ranks.
        ValueError: A rank is not in the job, the ranks passed different lists,
            a process set of these ranks exists already, or `init` has not been
            called. `tfring.global_process_set` counts as a process set of all
            ranks, except in an elastic job of varying size.

    Example:

    ```python
    import tfring

    tfring.init()
    if tfring.size() > 2:
        pair = tfring.add_process_set([0, 2])
        assert pair.size() == 2
        if pair.included():
            ranks = tfring.allgather([tfring.rank()], process_set=pair)
            assert ranks.numpy().tolist() == [0, 2]
    ```
    """
    global _next_id
    _check_eager("add_process_set")
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    ranks = _ranks_in_job(process_set)
    with _lock:
        membership = [int(rank in ranks) for rank in range(runtime.size())]
        from_comm = int(process_set.mpi_comm is not None)
        asked = _gather("add_process_set", [_next_id, from_comm, *membership])
        sets = _checked_sets(asked)
        first_id = max(next_id for next_id, *_ in asked)
        _next_id = first_id + len(sets)
        for process_set_id, its_ranks in enumerate(sets, first_id):
            mine = its_ranks == ranks
            new = process_set if mine else ProcessSet(its_ranks)
            new.ranks = its_ranks
            _start(new, process_set_id)
        return process_set


def add_unless_known(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Adds a set like `add_process_set`, unless the job has it already."""
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
        for old in added():
            if old.ranks == process_set.ranks:
                return old
    if any(process_set is old for old in added()):
        return process_set
    return add_process_set(process_set)


def host_set() -> ProcessSet:
    """Returns the process set of this machine's ranks; each machine gets one.

    Collective, and eager: adds the sets that the job does not have.
    """
    return own_set(runtime.job().nodes())


def own_set(labels: Sequence[int]) -> ProcessSet:
    """Returns the process set of the ranks with this rank's label.

    Collective, and eager: all ranks add the sets of all labels, unless the job
    has them.

    Args:
        labels: A number for each rank of the job, the same on all ranks.
    """
    sets = [
        add_unless_known([r for r, each in enumerate(labels) if each == label])
        for label in sorted(set(labels))
    ]
    return next(each for each in sets if each.included())


def remove_process_set(process_set: ProcessSet) -> bool:
    """Takes a process set out of the job.

    Collectives in flight on it fail. The set must not be used afterwards, but
    may be added again. Collective: every rank of the job must call it, eagerly,
    in the same order among its collectives.

    Args:
        process_set: The result of `tfring.add_process_set`, or a set that was
            given to `tfring.init`.

    Returns:
        True; False for `tfring.global_process_set` and for a set that is not
        part of the job, which stay as they are.

    Raises:
        RuntimeError: It was called while tracing a `tf.function`.
        TypeError: It is not a `tfring.ProcessSet`.
        ValueError: The ranks called it with different sets, or `init` has not
            been called.

    Example:

    ```python
    import tfring

    tfring.init()
    if tfring.size() > 1:
        last = tfring.add_process_set([tfring.size() - 1])
        assert tfring.remove_process_set(last)
    ```
    """
    _check_eager("remove_process_set")
    if not isinstance(process_set, ProcessSet):
        raise TypeError(
            "remove_process_set takes a tfring.ProcessSet, got "
            f"{process_set!r} of type {type(process_set).__name__}."
        )
    with _lock:
        process_set_id = process_set.process_set_id or 0
        asked = [i for [i] in _gather("remove_process_set", [process_set_id])]
        ids = sorted(set(asked))
        # Ranks may name different parts of a split communicator, each its own.
        if len(ids) > 1 and not all(
            asked[rank] == i for i in ids for rank in by_id(i).ranks or []
        ):
            raise ValueError(
                "remove_process_set: the ranks passed different sets. In the "
                f"order of ranks their ids are {asked}, where 0 is the world "
                "or a set that was not added. Make the same calls on every "
                "rank."
            )
        if process_set_id == 0:
            return False
        for i in ids:
            leave(by_id(i))
            native.capi().tfring_remove_process_set(i)
        return True


def were_added() -> bool:
    """Tells whether a function may have been traced for a removed set."""
    return _next_id > 1


def _ranks_in_job(process_set: ProcessSet) -> list[int]:
    """Returns the ranks of a set to be added, as ranks of the job."""
    size = runtime.size()
    if process_set.mpi_comm is None:
        ranks = process_set.ranks or []
        if ranks[-1] >= size:
            raise ValueError(
                f"add_process_set: {process_set} has rank {ranks[-1]}, and the "
                f"job has only the ranks 0 to {size - 1}."
            )
        return ranks
    MPI = native.mpi()  # noqa: N806
    group = process_set.mpi_comm.Get_group()
    job = runtime.job().comm.Get_group()
    ranks = list(MPI.Group.Translate_ranks(group, range(group.size), job))
    if MPI.UNDEFINED in ranks:
        raise ValueError(
            "add_process_set: the communicator has processes that are not "
            "part of this job. Pass one that was made of that of tfring.init."
        )
    return sorted(ranks)


def _checked_sets(asked: list[list[int]]) -> list[list[int]]:
    """Returns the sets to add, sorted by the first rank that asked for each.

    `asked[r]` is the request of rank r: the next free id there, 1 if the ranks
    are from a communicator, and for each rank of the job 1 if it is a member.
    """
    of_rank = [
        [rank for rank, member in enumerate(membership) if member]
        for _, _, *membership in asked
    ]
    sets = [s for r, s in enumerate(of_rank) if s not in of_rank[:r]]
    parts = any(from_comm for _, from_comm, *_ in asked)
    for r, ranks in enumerate(of_rank):
        # Parts of a communicator differ, but the members of one part agree.
        others = [of_rank[other] for other in ranks] if parts else of_rank[:1]
        if any(other != ranks for other in others):
            other = next(o for o, s in enumerate(of_rank) if s != ranks)
            raise ValueError(
                "add_process_set: the ranks passed different lists. Rank "
                f"{other} passed {of_rank[other]}; rank {r} passed {ranks}. "
                "Pass the same on every rank, also on those that are not in "
                "it."
            )
    for old in added():
        # In an elastic job the remaining ranks may be exactly the ranks of a
        # set.
        if old is global_process_set and runtime.may_grow():
            continue
        if old.ranks in sets:
            raise ValueError(
                f"add_process_set: there is a process set of the ranks "
                f"{old.ranks} already, {old}. Use it, or remove it first."
            )
    return sets


def _start(process_set: ProcessSet, process_set_id: int) -> None:
    """Registers a set that all ranks agreed on; its own start its engine."""
    ranks = process_set.ranks or []
    error = runtime.job().add_process_set(process_set_id, ranks)
    started = _gather("add_process_set", [int(error is None)])
    if [0] in started:
        native.capi().tfring_remove_process_set(process_set_id)
        raise RuntimeError(
            f"add_process_set: rank {started.index([0])} could not start "
            f"{process_set}: {error or 'see the error there'}"
        )
    enter(process_set, process_set_id)


def _gather(function: str, row: list[int]) -> list[list[int]]:
    """Returns the rows of all ranks of the job, by rank."""
    started = chains.start_allgather(
        [tf.constant([row], tf.int64)],
        request_name=_REQUEST,
        tensor_names=[function],
    )
    [rows], _ = chains.finish_allgather(started)
    result: list[list[int]] = rows.numpy().tolist()
    return result


def _check_eager(function: str) -> None:
    runtime.check_joined()
    if not tf.executing_eagerly():
        raise RuntimeError(
            f"{function} was called while tracing a tf.function. Call it "
            "eagerly, before."
        )
