"""MPI, through mpi4py."""

from __future__ import annotations

import numpy as np

from tfring._core import native
from tfring.bench.kinds import KINDS, Array
from tfring.bench.peers.calls import Call, missing_dtype

missing = missing_dtype


def call(
    kind: str, mine: Array, expected: Array, in_place: bool
) -> Call | None:
    MPI = native.mpi()  # noqa: N806
    world = MPI.COMM_WORLD
    if kind == "broadcast":
        if not in_place:
            return None
        buffer = mine.copy()
        return lambda: world.Bcast(buffer, 0), buffer
    if in_place:
        if kind != "allreduce":
            return None
        buffer = mine.copy()
        return lambda: world.Allreduce(MPI.IN_PLACE, buffer), buffer
    out = np.empty_like(expected)
    function = getattr(world, KINDS[kind].mpi or "")
    return lambda: function(mine, out), out
