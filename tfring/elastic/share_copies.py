"""Copies of shards in commits, each on two ranks.

A rank keeps its own shards of the last commit in the host's memory, and the
shards of one other rank, which is on another machine if possible. After a
change of the ranks, the whole values are put together from the copies that are
left, one variable at a time.

Note [One commit on all ranks]: shards of different commits must not be mixed.
All ranks number their commits alike. A rank keeps the commit before until a
barrier has told it that all ranks have the new one. If some rank has passed
that barrier, every rank has the new commit; otherwise every rank has the one
before. After a loss, the ranks therefore take the newest commit that any of
them has confirmed.
"""

from __future__ import annotations

import collections
import math
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfring._core import runtime
from tfring._core.process_sets import global_process_set
from tfring._ops.allgather import allgather
from tfring._ops.alltoall import alltoall
from tfring._ops.gather_json import gather_json
from tfring._state.shards import Shard
from tfring._state.weights import variable_name
from tfring.elastic.state import LostStateError


class ShardCopy(NamedTuple):
    """A copy of a shard in host memory.

    Attributes:
        number: The number of the shard.
        size: How many shards the variable has.
        values: The elements, flat.
    """

    number: int
    size: int
    values: np.ndarray

    def is_of(self, shard: Shard) -> bool:
        """Tells whether a shard has the same elements of the variable."""
        return (self.number, self.size) == (shard.rank, shard.size)


# The copies that a rank keeps, by the rank whose shards they are. This rank
# comes first. The copies are in the order of the variables. None stands for a
# shard of another rank that this rank does not copy.
Copies = dict[int, list[ShardCopy | None]]


def copy_holders(nodes: Sequence[int]) -> list[int]:
    """Returns, for each rank, the rank that has the copy of its shards.

    It is on another node, except for some ranks of a node that has more than
    half of all ranks. In a job of one rank, it is that rank.

    Args:
        nodes: For each rank the number of its node.
    """
    order = sorted(range(len(nodes)), key=lambda rank: nodes[rank])
    largest = max(collections.Counter(nodes).values())
    # The ranks stand in a circle, node by node. A shift by the size of the
    # largest node leads to another node, unless that node has more than half of
    # all ranks.
    shift = largest if largest < len(nodes) else 1
    holders = dict(zip(order, order[shift:] + order[:shift], strict=True))
    return [holders[rank] for rank in range(len(nodes))]


def may_leave_at_once(
    is_asked: Sequence[bool], holders: Sequence[int]
) -> set[int]:
    """Returns the ranks that may leave without the loss of a shard.

    The other ranks that were asked to leave wait until the remaining ranks have
    shared the shards out again. If any rank was asked, at least one may leave.

    Args:
        is_asked: For each rank whether it has been asked to leave.
        holders: See `copy_holders`.
    """
    leaving: set[int] = set()
    for rank, asked in enumerate(is_asked):
        if asked and not leaving & {holders[rank], holders.index(rank)}:
            leaving.add(rank)
    return leaving


def own_copies(shards: Sequence[Shard]) -> Copies:
    """Returns copies of this rank's shards."""
    return {
        runtime.rank(): [
            ShardCopy(
                shard.rank,
                shard.size,
                # `numpy` copies the elements.
                tf.convert_to_tensor(shard.variable).numpy(),
            )
            for shard in shards
        ]
    }


def exchanged_copies(shards: Sequence[Shard], holders: Sequence[int]) -> Copies:
    """Returns copies of this rank's shards, and of another rank's.

    Shards that several sets of ranks have are copies of each other already.
    Collective, and eager.

    Args:
        shards: The shards of this rank.
        holders: See `copy_holders`.
    """
    copies, rank = own_copies(shards), runtime.rank()
    if holders[rank] == rank:
        return copies
    owner = holders.index(rank)
    received: list[ShardCopy | None] = []
    for shard in shards:
        if shard.process_set is not global_process_set:
            received.append(None)
            continue
        own = tf.convert_to_tensor(shard.variable)
        splits = np.zeros(len(holders), np.int64)
        splits[holders[rank]] = len(own)
        values, _ = alltoall(
            own, splits=splits, name="elastic/copies", ignore_name_scope=True
        )
        received.append(ShardCopy(owner, shard.size, np.asarray(values)))
    return copies | {owner: received}


# The copies of the last commit, by optimizer. A state that is made later for
# the same optimizer begins with them.
_last: weakref.WeakKeyDictionary[Any, Copies] = weakref.WeakKeyDictionary()


def remember(optimizer: Any, copies: Copies) -> None:
    """Keeps the copies of a commit for states that are made later."""
    _last[optimizer] = copies


def remembered(optimizer: Any, own: Copies) -> Copies | None:
    """Returns the copies of an earlier state's commit, if still current.

    Args:
        optimizer: The optimizer of both states.
        own: What `own_copies` has returned.
    """
    copies = _last.get(optimizer, {})
    [(rank, now)] = own.items()
    then = copies.get(rank)
    if then is None or len(then) != len(now):
        return None
    return copies if all(map(_are_equal, then, now)) else None


def _are_equal(one: ShardCopy | None, other: ShardCopy | None) -> bool:
    """Compares two copies to the bit."""
    if one is None or other is None or one[:2] != other[:2]:
        return False
    return np.array_equal(one.values.view("u1"), other.values.view("u1"))


class FoundCopies:
    """The copies of one commit that the ranks of the job have.

    Collective.

    Args:
        copies: The copies of this rank; none on a rank that has joined since.
        shards: The shards that the ranks have now, in the order of the copies.

    Raises:
        LostStateError: Some shards are lost. It is raised on every rank.
    """

    def __init__(self, copies: Copies, shards: Sequence[Shard]) -> None:
        self._copies = copies
        own = [
            [
                owner,
                [copy and [copy.number, len(copy.values)] for copy in of_owner],
            ]
            for owner, of_owner in copies.items()
        ]
        of_ranks = gather_json(own, name="elastic/found copies")
        # For each variable, by the number of a shard: the rank that has a copy,
        # the rank whose shard it was, and the count of its elements.
        self._sources: list[dict[int, tuple[int, int, int]]] = [
            {} for _ in shards
        ]
        for rank, of_rank in enumerate(of_ranks):
            for owner, told in of_rank:
                for sources, copy in zip(self._sources, told, strict=True):
                    if copy is not None:
                        number, count = copy
                        sources.setdefault(number, (rank, owner, count))
        for shard, sources in zip(shards, self._sources, strict=True):
            found = sum(count for _, _, count in sources.values())
            if found != math.prod(shard.split.shape):
                owners = sorted({o for each in of_ranks for o, _ in each})
                raise LostStateError(
                    f"A part of '{variable_name(shard.variable)}', which is "
                    "sharded, is lost. A commit keeps each rank's shards on "
                    "that rank and on another one, and both were lost at "
                    f"once: there are the shards of the earlier ranks {owners} "
                    "alone. Start the job again; with "
                    "tfring.callbacks.Checkpoint it goes on from the last "
                    "checkpoint."
                )

    def whole(self, index: int, shard: Shard) -> np.ndarray:
        """Returns the whole value of a shard's variable. Collective."""
        sources = sorted(self._sources[index].items())
        dtype = tf.as_dtype(shard.variable.dtype)
        own = [np.zeros(0, dtype.as_numpy_dtype)]
        for _, (rank, owner, _) in sources:
            if rank == runtime.rank():
                copy = self._copies[owner][index]
                assert copy is not None
                own.append(copy.values)
        with tf.device("CPU:0"):
            gathered = allgather(
                tf.constant(np.concatenate(own), dtype),
                name="elastic/whole",
                ignore_name_scope=True,
            ).numpy()
        # The ranks' parts come in the order of the ranks.
        begins, begin = {}, 0
        for number, (_, _, count) in sorted(sources, key=lambda s: s[1][0]):
            begins[number] = begin
            begin += count
        if list(begins) != sorted(begins):
            gathered = np.concatenate(
                [
                    gathered[begins[number] : begins[number] + count]
                    for number, (_, _, count) in sources
                ]
            )
        whole: np.ndarray = gathered.reshape(shard.split.shape)
        return whole
