"""Which elements of a sharded variable each rank has.

| split   | the shard of a rank        | used for                        |
|---------|----------------------------|---------------------------------|
| Flat    | consecutive elements, flat | states with `shard_states=True`,|
|         |                            | parameters                      |
| Strided | every `size`-th row        | tables of `ShardedEmbedding`    |
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Flat:
    """Each rank has consecutive elements of the flattened variable.

    Attributes:
        shape: The whole variable's shape.
        ranges: The begin and the end of each rank's elements. A rank may have
            none.
    """

    shape: tuple[int, ...]
    ranges: Sequence[tuple[int, int]]

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.ranges)

    def count_of(self, rank: int) -> int:
        """Returns the length of a rank's shard."""
        begin, end = self.ranges[rank]
        return end - begin

    def shard_of(self, whole: Any, rank: int) -> np.ndarray:
        """Returns a rank's shard of a whole array."""
        begin, end = self.ranges[rank]
        return np.asarray(whole).reshape(-1)[begin:end]

    def joined(self, shards: np.ndarray) -> np.ndarray:
        """Returns the whole array of the ranks' shards, in their order."""
        return shards.reshape(self.shape)


@dataclasses.dataclass(frozen=True)
class Strided:
    """Each rank has the rows `i` with `i % size == rank`.

    Attributes:
        shape: The whole table's shape.
        size: The number of ranks.
    """

    shape: tuple[int, ...]
    size: int

    def count_of(self, rank: int) -> int:
        """Returns the number of a rank's rows."""
        return len(range(rank, self.shape[0], self.size))

    def shard_of(self, whole: Any, rank: int) -> np.ndarray:
        """Returns a rank's rows of a table, an array or a file's data set."""
        if rank >= self.shape[0]:  # data sets allow no empty selection
            return np.asarray(whole[:0])
        return np.asarray(whole[rank :: self.size])

    def joined(self, shards: np.ndarray) -> np.ndarray:
        """Returns the whole table of the ranks' rows, in their order."""
        if self.size == 1:
            return shards
        table = np.empty(self.shape, shards.dtype)
        begin = 0
        for rank in range(self.size):
            rows = table[rank :: self.size]
            rows[...] = shards[begin : begin + len(rows)]
            begin += len(rows)
        return table


Split = Flat | Strided
