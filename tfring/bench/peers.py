"""Other libraries that do the same, measured in the same rounds.

MPI, through mpi4py, on NumPy arrays; and gloo, as PyTorch has it, where PyTorch
is installed. Both reduce several arrays one by one.
"""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfring._core import native
from tfring.bench.kinds import KINDS
from tfring.bench.measure import Contestant, Simple

_Array = np.ndarray[Any, Any]
# Dtypes that NumPy, MPI and torch have in common.
_DTYPES = ("float32", "float64", "int32", "int64")


def missing(peer: str, dtype: str) -> str | None:
    """Returns why `peer` cannot take part; None if it can."""
    if dtype not in _DTYPES:
        return f"{peer}: measured with {', '.join(_DTYPES)} only"
    if peer == "gloo" and importlib.util.find_spec("torch") is None:
        return "gloo: PyTorch is not installed"
    return None


def contestants(
    peer: str, kind: str, mine: Sequence[_Array], expected: Sequence[_Array]
) -> list[Contestant]:
    """`peer` doing the collective `kind`, in each variant that it has.

    Args:
        peer: "mpi" or "gloo", if it is not `missing`.
        kind: "allreduce", ...
        mine: This rank's inputs, in one or several arrays.
        expected: This rank's results.

    Returns:
        None at all where the peer has no such collective.
    """
    make = _mpi if peer == "mpi" else _gloo
    result: list[Contestant] = []
    for in_place in (False, True):
        pairs = [
            make(kind, one, result_of_one, in_place)
            for one, result_of_one in zip(mine, expected, strict=True)
        ]
        if any(pair is None for pair in pairs):
            continue
        name = f"{peer} in place" if in_place else peer
        result.append(
            _Together(name, [pair for pair in pairs if pair], list(expected))
        )
    return result


# The call itself, and the array that its result is then in.
_Call = tuple[Callable[[], Any], _Array]


class _Together(Simple):
    """Several arrays, one after the other."""

    def __init__(
        self, name: str, calls: Sequence[_Call], expected: list[_Array]
    ) -> None:
        functions = [function for function, _ in calls]
        self._results = [result for _, result in calls]

        def run() -> list[_Array]:
            for function in functions:
                function()
            return self._results

        super().__init__(name, run, expected)

    def check(self) -> None:
        super().check()
        # Sums in place grow from call to call.
        for result in self._results:
            result.fill(0)


def _mpi(
    kind: str, mine: _Array, expected: _Array, in_place: bool
) -> _Call | None:
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


def _gloo(
    kind: str, mine: _Array, expected: _Array, in_place: bool
) -> _Call | None:
    # Has no out of place, and not all collectives.
    if not in_place or kind not in ("allreduce", "broadcast", "allgather"):
        return None
    import torch

    distributed = torch.distributed
    _join_gloo(distributed)
    buffer = mine.copy()
    tensor = torch.from_numpy(buffer)
    if kind == "allreduce":
        return lambda: distributed.all_reduce(tensor), buffer
    if kind == "broadcast":
        return lambda: distributed.broadcast(tensor, 0), buffer
    out = np.empty_like(expected)
    parts = list(torch.from_numpy(out).chunk(distributed.get_world_size()))
    return lambda: distributed.all_gather(parts, tensor), out


def _join_gloo(distributed: Any) -> None:
    if distributed.is_initialized():
        return
    world = native.mpi().COMM_WORLD
    address = None
    if world.rank == 0:
        with socket.socket() as free:
            free.bind(("", 0))
            address = f"tcp://{socket.gethostname()}:{free.getsockname()[1]}"
    distributed.init_process_group(
        "gloo",
        init_method=world.bcast(address),
        rank=world.rank,
        world_size=world.size,
    )
