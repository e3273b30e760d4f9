"""How ranks share out a variable: each has a part of its elements.

| split   | a rank's part              | of                              |
|---------|----------------------------|---------------------------------|
| Flat    | consecutive elements, flat | states with `shard_states=True` |
| Strided | every `size`-th row        | tables of `ShardedEmbedding`    |
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Flat:
    """Consecutive elements of the flat variable, in the order of the ranks.

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

    def part_of(self, whole: Any, rank: int) -> np.ndarray:
        """Returns a rank's part of a whole array."""
        begin, end = self.ranges[rank]
        return np.asarray(whole).reshape(-1)[begin:end]

    def joined(self, parts: np.ndarray) -> np.ndarray:
        """Returns the whole of all ranks' parts, one behind the other."""
        return parts.reshape(self.shape)


@dataclasses.dataclass(frozen=True)
class Strided:
    """The rows `i` with `i % size == rank`.

    Attributes:
        shape: The whole table's shape.
        size: The number of ranks.
    """

    shape: tuple[int, ...]
    size: int

    def part_of(self, whole: Any, rank: int) -> np.ndarray:
        """Returns a rank's rows of a table, an array or a file's data set."""
        if rank >= self.shape[0]:  # A data set has no empty selection.
            return np.asarray(whole[:0])
        return np.asarray(whole[rank :: self.size])

    def joined(self, parts: np.ndarray) -> np.ndarray:
        """Returns the table of all ranks' rows, one rank's behind another's."""
        if self.size == 1:
            return parts
        table = np.empty(self.shape, parts.dtype)
        begin = 0
        for rank in range(self.size):
            rows = table[rank :: self.size]
            rows[...] = parts[begin : begin + len(rows)]
            begin += len(rows)
        return table


Split = Flat | Strided
