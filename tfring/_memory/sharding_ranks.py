"""Which ranks share variables out, and which ranks have the same shares.

All ranks of the job share a parameter out, or the ranks of each machine do
("hybrid sharding", HSDP): then each machine has whole parameters, and the ranks
with the same share average its gradient.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

from absl import logging

from tfring._core import runtime
from tfring._core.process_sets import ProcessSet, global_process_set
from tfring._ops.gather_json import gather_json
from tfring._ops.process_set_registry import own_set


@dataclasses.dataclass(frozen=True, eq=False)
class ShardingRanks:
    """The ranks that share variables out.

    Attributes:
        process_set: The ranks that have different shares.
        replicas: The ranks that have the same share as this one, one of each
            set that shares the variables out; None if this is the only set.
        numbers: For each rank of the job, the number of its share, if there are
            replicas.
    """

    process_set: ProcessSet = global_process_set
    replicas: ProcessSet | None = None
    numbers: Sequence[int] | None = None

    @property
    def rank(self) -> int:
        """The number of this rank's share; 0 on a rank outside of the set."""
        return self.process_set.rank() if self.process_set.included() else 0

    @property
    def size(self) -> int:
        """The number of shares; 1 on a rank outside of the set."""
        return self.process_set.size() if self.process_set.included() else 1

    @property
    def copies(self) -> int:
        """The number of ranks that have each share."""
        return 1 if self.replicas is None else self.replicas.size()


def agreed_ranks(
    within: ProcessSet | Literal["host"] | None,
) -> ShardingRanks:
    """Returns the ranks that share parameters out.

    Collective, except in an elastic job: a worker that joins builds alone, and
    `"host"` takes effect when its state is shared.

    Raises:
        ValueError: Another rank has passed a wrong `within`.
    """
    if runtime.may_grow():
        _checked_within(within)
        return ShardingRanks()
    asked, error = None, None
    try:
        asked = _checked_within(within)
    except (TypeError, ValueError) as wrong:
        error = wrong
    own = [asked, None if error is None else str(error)]
    of_ranks = gather_json(own, name="shard_parameters/within")
    if error is not None:
        raise error
    for rank, (_, text) in enumerate(of_ranks):
        if text is not None:
            raise ValueError(f"On rank {rank}: {text}")
    return sharding_ranks([each for each, _ in of_ranks])


def _checked_within(
    within: ProcessSet | Literal["host"] | None,
) -> list[int] | Literal["host"] | None:
    """Checks `within`, and returns the ranks that it names.

    Raises:
        NotImplementedError: `within` is a process set, and ranks may change.
        TypeError: `within` is not a process set, "host" or None.
        ValueError: The process set has not been added.
    """
    if within is None or within == "host":
        return within
    if not isinstance(within, ProcessSet):
        raise TypeError(
            "shard_parameters: within must be a tfring.ProcessSet, 'host' or "
            f"None, got {within!r}."
        )
    if runtime.may_grow():
        raise NotImplementedError(
            f"shard_parameters: within={within!r} is for a job whose ranks do "
            "not change. In an elastic job a change removes process sets: pass "
            "within='host', or leave it out."
        )
    within.size()  # Raises if the set is not part of the job.
    return within.ranks


def ranks_of_hosts() -> ShardingRanks:
    """Returns the ranks of each machine, in a job whose ranks may change.

    If the machines have different numbers of ranks, all ranks of the job share
    variables out until the next change. Collective, and eager.
    """
    sets = _ranks_by_host()
    if len(set(map(len, sets))) == 1:
        return sharding_ranks(sets)
    if runtime.rank() == 0:
        logging.warning(
            "tfring: the machines have different numbers of ranks. Until that "
            "changes, all ranks share out the parameters of "
            "shard_parameters(within='host')."
        )
    return ShardingRanks()


def _ranks_by_host() -> list[list[int]]:
    """Returns, for each rank, the ranks on its machine. Collective."""
    nodes = runtime.job().nodes()
    return [
        [rank for rank, each in enumerate(nodes) if each == node]
        for node in nodes
    ]


def sharding_ranks(
    asked: Sequence[list[int] | Literal["host"] | None],
) -> ShardingRanks:
    """Returns the ranks that share variables out. Collective, and eager.

    Args:
        asked: What `_checked_within` has returned on each rank.

    Raises:
        ValueError: They are no division of all ranks into equal parts. The
            message names a rank.
    """
    by_host = _ranks_by_host() if "host" in asked else []
    sets = [
        by_host[rank] if isinstance(each, str) else each
        for rank, each in enumerate(asked)
    ]
    if all(each is None for each in sets):
        return ShardingRanks()
    for rank, ranks in enumerate(sets):
        if ranks is None or rank not in ranks:
            raise ValueError(
                f"shard_parameters: rank {rank} passes within for the ranks "
                f"{ranks}, which it is not in. Each rank must pass a set that "
                "it is in."
            )
        for other in ranks:
            if sets[other] != ranks:
                raise ValueError(
                    f"shard_parameters: rank {rank} passes within for the "
                    f"ranks {ranks}, and rank {other} for {sets[other]}. The "
                    "ranks of a set must all pass this set."
                )
        if len(ranks) != len(sets[0] or ()):
            raise ValueError(
                f"shard_parameters: rank 0 passes within for {sets[0]}, and "
                f"rank {rank} for {ranks}. All sets must have equally many "
                "ranks: start as many on each machine, or leave within out."
            )
    firsts = [(ranks or [rank])[0] for rank, ranks in enumerate(sets)]
    numbers = [(ranks or [rank]).index(rank) for rank, ranks in enumerate(sets)]
    if len(set(firsts)) == 1:
        return ShardingRanks()
    return ShardingRanks(own_set(firsts), own_set(numbers), numbers)
