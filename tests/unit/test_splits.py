"""How ranks share out a variable."""

import numpy as np
import pytest

from tfring._state.splits import Flat, Strided

SPLITS = [
    Flat((3, 4), [(0, 12)]),
    Flat((3, 4), [(0, 5), (5, 10), (10, 12)]),
    Flat((3, 4), [(0, 0), (0, 12), (12, 12)]),
    Flat((), [(0, 0), (0, 1)]),
    Flat((2, 0), [(0, 0), (0, 0)]),
    Strided((7, 2), 1),
    Strided((7, 2), 3),
    Strided((2, 3), 4),
    Strided((4, 0), 2),
]


@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_parts_make_the_whole_again(split):
    count = np.prod(split.shape, dtype=int)
    whole = np.arange(count, dtype="float32").reshape(split.shape)
    shards = [split.shard_of(whole, rank) for rank in range(split.size)]
    assert sum(shard.size for shard in shards) == count
    counts = [split.count_of(rank) for rank in range(split.size)]
    assert counts == [len(shard) for shard in shards]
    joined = split.joined(np.concatenate(shards))
    np.testing.assert_array_equal(joined, whole, strict=True)


def test_rows_are_every_size_th():
    split = Strided((5, 1), 2)
    whole = np.arange(5).reshape(5, 1)
    assert split.shard_of(whole, 1)[:, 0].tolist() == [1, 3]
