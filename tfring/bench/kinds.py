"""The collectives to measure; importing it does not import TensorFlow.

To add one, add an entry to `KINDS`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class Kind:
    """A collective on equal shares, and each rank's result."""

    # The share of the collective's bytes, as nccl-tests counts them, that has
    # to leave each rank, by the number of ranks. The algorithm bandwidth times
    # this share is the bus bandwidth, which can be compared with the speed of a
    # link for any number of ranks.
    # Reference: github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md.
    bus_factor: Callable[[int], float]
    # Computes this rank's result from the arrays of all ranks and the slice of
    # this rank's share.
    result: Callable[[Sequence[Array], slice], Array]
    # Arguments of `tfring`'s function besides the array and `op`.
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    reduces: bool = False
    # True if XLA, which needs static shapes, can compile the collective.
    with_jit: bool = False
    # True if the input of a rank is only a share of the array.
    brings_share: bool = False
    # True if the array is cut into a share for each rank.
    shares: bool = False
    # The method of mpi4py's communicator from one buffer to another; None for
    # methods of one buffer.
    mpi: str | None = None


def _others(ranks: int) -> float:
    return (ranks - 1) / ranks


def _sum(arrays: Sequence[Array], own: slice) -> Array:
    del own
    return np.asarray(np.add.reduce(arrays, dtype=arrays[0].dtype))


KINDS: dict[str, Kind] = {
    "allreduce": Kind(
        lambda ranks: 2 * _others(ranks),
        _sum,
        reduces=True,
        with_jit=True,
        mpi="Allreduce",
    ),
    "allgather": Kind(
        _others,
        lambda arrays, own: np.concatenate(arrays),
        brings_share=True,
        shares=True,
        mpi="Allgather",
    ),
    "reducescatter": Kind(
        _others,
        lambda arrays, own: _sum(arrays, own)[own],
        reduces=True,
        shares=True,
        mpi="Reduce_scatter_block",
    ),
    "alltoall": Kind(
        _others,
        lambda arrays, own: np.concatenate([array[own] for array in arrays]),
        shares=True,
        mpi="Alltoall",
    ),
    "broadcast": Kind(
        lambda ranks: 1.0,
        lambda arrays, own: arrays[0],
        arguments={"root_rank": 0},
        with_jit=True,
    ),
}
