"""The job of this process: the interface of all kinds of jobs."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from mpi4py import MPI

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Topology:
    """This rank's numbers: in the job, on its node, and across nodes."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    # True if all nodes have the same local size.
    is_homogeneous: bool

    @classmethod
    def of_nodes(cls, rank: int, nodes: Sequence[object]) -> Topology:
        """Returns the topology of `rank`; `nodes` has the node of each rank."""
        peers: dict[object, list[int]] = {}
        for each, node in enumerate(nodes):
            peers.setdefault(node, []).append(each)
        local_rank = peers[nodes[rank]].index(rank)
        # One rank per node, from the nodes with more than `local_rank` ranks.
        cross = sorted(
            of_node[local_rank]
            for of_node in peers.values()
            if len(of_node) > local_rank
        )
        return cls(
            rank,
            len(nodes),
            local_rank,
            len(peers[nodes[rank]]),
            cross.index(rank),
            len(cross),
            is_homogeneous=len(set(map(len, peers.values()))) == 1,
        )


class Job(abc.ABC):
    """The ranks that this process runs collectives with, until it leaves.

    Attributes:
        topology: This rank's numbers, among the ranks that collectives reach.
    """

    topology: Topology

    @property
    def place(self) -> Topology:
        """The topology for scripts; see Note [A place to come]."""
        return self.topology

    @property
    @abc.abstractmethod
    def comm(self) -> MPI.Intracomm:
        """A communicator of the job. The engine has another one.

        Raises:
            RuntimeError: The job does not use MPI.
        """

    @abc.abstractmethod
    def agreed(self, value: _T) -> _T:
        """Returns rank 0's value of a setting. Collective."""

    @abc.abstractmethod
    def raise_everywhere(self, error: Exception | None) -> None:
        """Raises the error of any rank on every rank. Collective.

        Args:
            error: This rank's error, with a text as its only argument; None if
                it has none.
        """

    @abc.abstractmethod
    def add_process_set(
        self, process_set_id: int, ranks: Sequence[int]
    ) -> str | None:
        """Starts the engine of a set on its ranks; other ranks register it.

        Collective.

        Returns:
            The error on this rank, or None.
        """

    def leave(self) -> None:  # noqa: B027
        """Frees what the job has besides the engine, which has stopped."""

    @abc.abstractmethod
    def nodes(self) -> list[int]:
        """Returns, for each rank, the first rank on its node. Collective."""

    @abc.abstractmethod
    def next(self, steps: int) -> Job:
        """Starts the next job, with the ranks that are left or have joined.

        The engine has stopped. Collective over these ranks.

        Args:
            steps: The number of commits in this rank's state; -1 without a
                state.

        Raises:
            TimeoutError: A rank is missing for as long as a collective may be
                stalled.
            RuntimeError: See `tfring.init`.
        """
