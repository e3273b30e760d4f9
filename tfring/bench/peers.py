"""Other libraries with the same collectives, measured in the same rounds.

Each library takes NumPy arrays, one by one. To add a library, add a function to
`PEERS`, and its requirements to `missing`.
"""

from __future__ import annotations

import functools
import importlib.util
import socket
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfring._core import native
from tfring.bench.kinds import KINDS, Array
from tfring.bench.measure import Contestant, Simple

# The dtypes that NumPy and most libraries support.
_DTYPES = ("float32", "float64", "int32", "int64")

# A function that makes the call, and the array that has the result afterwards.
Call = tuple[Callable[[], Any], Array]


def _mpi(
    kind: str, mine: Array, expected: Array, in_place: bool
) -> Call | None:
    """Calls MPI through mpi4py; None if it has no such collective.

    `expected` has the shape and dtype of this rank's result. With `in_place`
    the result replaces the input.
    """
    MPI = native.mpi()  # noqa: N806
    world = MPI.COMM_WORLD
    buffer = mine.copy()
    if kind == "broadcast":
        return (lambda: world.Bcast(buffer, 0), buffer) if in_place else None
    if in_place:
        if kind != "allreduce":
            return None
        return lambda: world.Allreduce(MPI.IN_PLACE, buffer), buffer
    out = np.empty_like(expected)
    function = getattr(world, KINDS[kind].mpi or "")
    return lambda: function(mine, out), out


def _gloo(
    kind: str, mine: Array, expected: Array, in_place: bool
) -> Call | None:
    """Calls PyTorch's gloo, as `_mpi` calls MPI.

    It reduces in place only, and lacks some collectives.
    """
    if not in_place or kind not in ("allreduce", "broadcast", "allgather"):
        return None
    import torch

    distributed = _joined_gloo()
    buffer = mine.copy()
    tensor = torch.from_numpy(buffer)
    if kind == "allreduce":
        return lambda: distributed.all_reduce(tensor), buffer
    if kind == "broadcast":
        return lambda: distributed.broadcast(tensor, 0), buffer
    out = np.empty_like(expected)
    parts = list(torch.from_numpy(out).chunk(distributed.get_world_size()))
    return lambda: distributed.all_gather(parts, tensor), out


@functools.cache
def _joined_gloo() -> Any:
    import torch

    world = native.mpi().COMM_WORLD
    address = None
    if world.rank == 0:
        with socket.socket() as free:
            free.bind(("", 0))
            address = f"tcp://{socket.gethostname()}:{free.getsockname()[1]}"
    torch.distributed.init_process_group(
        "gloo",
        init_method=world.bcast(address),
        rank=world.rank,
        world_size=world.size,
    )
    return torch.distributed


PEERS = {"mpi": _mpi, "gloo": _gloo}


def missing(peer: str, dtype: str) -> str | None:
    """Returns why a peer cannot take part with a dtype; None if it can."""
    if peer == "gloo" and importlib.util.find_spec("torch") is None:
        return "gloo: PyTorch is not installed"
    if dtype not in _DTYPES:
        return f"{peer}: measured with {', '.join(_DTYPES)} only"
    return None


def contestants(
    peer: str, kind: str, mine: Sequence[Array], expected: Sequence[Array]
) -> list[Contestant]:
    """Returns a contestant for each variant of the collective in `peer`.

    `mine` are this rank's inputs, in one or several arrays. The peer must not
    be `missing`.

    Returns:
        The contestants; an empty list if the peer does not have the collective.
    """
    result: list[Contestant] = []
    for in_place in (False, True):
        calls = [
            PEERS[peer](kind, one, result_of_one, in_place)
            for one, result_of_one in zip(mine, expected, strict=True)
        ]
        if any(call is None for call in calls):
            continue
        name = f"{peer} in place" if in_place else peer
        result.append(
            _Together(name, [call for call in calls if call], list(expected))
        )
    return result


class _Together(Simple):
    """Calls a peer for several arrays, in order."""

    def __init__(
        self, name: str, calls: Sequence[Call], expected: list[Array]
    ) -> None:
        functions = [function for function, _ in calls]
        self._results = [result for _, result in calls]

        def run() -> list[Array]:
            for function in functions:
                function()
            return self._results

        super().__init__(name, run, expected)

    def check(self) -> None:
        super().check()
        # Reset the arrays, because sums in place grow with each call.
        for result in self._results:
            result.fill(0)
