"""Cuts: which rank has which elements of a variable.

Note [Shares]: each rank updates a part of each large variable, and some small
variables as a whole (ZeRO-2: Rajbhandari et al.,
https://arxiv.org/abs/1910.02054). A part begins at a multiple of 16 elements,
and the last part ends where its variable ends. A CPU kernel uses vector
instructions and, for the elements left over at the end, other instructions.
With such parts it uses for each element the same instructions as in the whole
variable, so the result has the same bits.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from tfring._memory.parameters import ParameterShare

# The widest CPU vector has at most this many elements.
# SYNC: kShareMultiple in tfring_ops/engine/tensor_entry.h.
_ALIGNED_COUNT = 16
# A variable with fewer elements per rank belongs to one rank, so that the parts
# of larger variables differ little in size.
_LEAST_PART = 32
# A variable with at least this many elements is sent without packing.
LARGE = 16384


@dataclasses.dataclass(frozen=True)
class Cut:
    """How one variable is divided into parts.

    Attributes:
        shape: The variable's shape.
        part: The number of elements of each rank; the last ranks may have
            fewer. 0 if one rank has the whole variable.
        owner: The rank that has the whole variable.
    """

    shape: tuple[int, ...]
    part: int
    owner: int = 0

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    def range_of(self, rank: int) -> tuple[int, int]:
        """Returns the begin and the end of a rank's elements."""
        if self.part == 0:
            return 0, self.count if rank == self.owner else 0
        begin = min(self.count, rank * self.part)
        return begin, min(self.count, begin + self.part)

    def ranges(self, size: int) -> tuple[tuple[int, int], ...]:
        """Returns the range of each of `size` ranks."""
        return tuple(map(self.range_of, range(size)))


def ranges_of(shape: tuple[int, ...], size: int) -> tuple[tuple[int, int], ...]:
    """Returns the elements of each rank of a sharded parameter."""
    return _split(shape, size).ranges(size)


def _split(shape: tuple[int, ...], size: int) -> Cut:
    return Cut(shape, aligned(-(-math.prod(shape) // size)))


def cut_all(
    shapes: Sequence[tuple[int, ...]],
    parameters: Sequence[ParameterShare | None],
    size: int,
) -> list[Cut]:
    """Cuts variables; sharded parameters are split, however small they are."""
    counts = [math.prod(shape) for shape in shapes]
    loads = [0] * size
    cuts = {}
    # Large variables come first, so that the small ones balance the loads.
    for i in sorted(range(len(shapes)), key=lambda i: -counts[i]):
        if (parameter := parameters[i]) is not None:
            cuts[i] = _split(shapes[i], parameter.group.ranks.size)
            continue
        if size > 1 and counts[i] >= _LEAST_PART * size:
            cuts[i] = _split(shapes[i], size)
        else:
            owner = loads.index(min(loads))
            cuts[i] = Cut(shapes[i], part=0, owner=owner)
        for rank, (begin, end) in enumerate(cuts[i].ranges(size)):
            loads[rank] += end - begin
    return [cuts[i] for i in range(len(shapes))]


def aligned(count: int) -> int:
    """Returns the least multiple of 16 that is not below `count`."""
    return -(-count // _ALIGNED_COUNT) * _ALIGNED_COUNT
