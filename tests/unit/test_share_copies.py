"""Which rank keeps the copy of another rank's shards, and what is lost."""

import numpy as np
import pytest
import tensorflow as tf

from tfring._state.shards import Shard
from tfring._state.splits import Flat
from tfring.elastic import share_copies
from tfring.elastic.share_copies import (
    FoundCopies,
    ShardCopy,
    copy_holders,
    may_leave_at_once,
)
from tfring.elastic.state import LostStateError

pytestmark = pytest.mark.usefixtures("initialized")


@pytest.mark.parametrize(
    ("nodes", "holders"),
    [
        ([0, 0], [1, 0]),
        ([0, 0, 0], [1, 2, 0]),
        ([0, 1], [1, 0]),
        ([0, 0, 2, 2], [2, 3, 0, 1]),
        # Ranks of a machine need not be neighbours.
        ([0, 1, 0, 1], [1, 0, 3, 2]),
        ([0, 0, 2, 3], [2, 3, 0, 1]),
        ([0, 0, 2, 2, 4, 4], [2, 3, 4, 5, 0, 1]),
        # The first machine has more ranks than all others.
        ([0, 0, 0, 3], [3, 0, 1, 2]),
    ],
)
def test_copies_are_on_other_machines(nodes, holders):
    assert copy_holders(nodes) == holders
    assert sorted(holders) == list(range(len(nodes)))
    largest = max(map(nodes.count, nodes))
    same = [nodes[r] == nodes[h] for r, h in enumerate(holders)]
    # No other choice leaves fewer copies on the same machine.
    if len(set(nodes)) > 1:
        assert sum(same) == max(0, 2 * largest - len(nodes))


@pytest.mark.parametrize(
    ("asked", "leaving"),
    [
        ([], set()),
        ([2], {2}),
        # Both ranks of a machine leave.
        ([2, 3], {2, 3}),
        # Ranks 0 and 2 hold the copies of each other's shards.
        ([0, 2], {0}),
        ([0, 1, 2, 3], {0, 1}),
    ],
)
def test_no_rank_leaves_with_the_copy_of_its_shards(asked, leaving):
    holders = copy_holders([0, 0, 2, 2])
    is_asked = [rank in asked for rank in range(4)]
    assert may_leave_at_once(is_asked, holders) == leaving


def test_one_rank_has_no_copies_elsewhere():
    assert may_leave_at_once([True], copy_holders([0])) == {0}


def shard_of_four(rank):
    """This rank's shard of four elements on two ranks."""
    split = Flat((4,), [(0, 3), (3, 4)])
    return Shard(tf.Variable([0.0]), split, rank)


def found(monkeypatch, *of_ranks):
    """Finds the newest copies; `of_ranks` are the owners that each rank has."""
    values = {0: [0.0, 1.0, 2.0], 1: [3.0]}
    copies = {
        owner: [ShardCopy(owner, 2, np.float32(values[owner]))]
        for owner in of_ranks[0]
    }
    told = [
        [[owner, [[owner, len(values[owner])]]] for owner in owners]
        for owners in of_ranks
    ]

    def gather(own, name):
        assert own == told[0]
        return told

    monkeypatch.setattr(share_copies, "gather_json", gather)
    return FoundCopies(copies, [shard_of_four(0)])


@pytest.mark.parametrize("owners", [[0, 1], [1, 0]])
def test_values_are_put_together_in_the_order_of_the_shards(
    monkeypatch, owners
):
    whole = found(monkeypatch, owners, []).whole(0, shard_of_four(0))
    assert whole.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(("owners", "left"), [([0], r"\[0\]"), ([], r"\[\]")])
def test_names_what_is_lost_with_both_ranks(monkeypatch, owners, left):
    with pytest.raises(LostStateError, match=rf"'Variable.*{left} alone"):
        found(monkeypatch, owners, [])
