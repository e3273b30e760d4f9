"""Gloo, as PyTorch has it."""

from __future__ import annotations

import functools
import importlib.util
import socket
from typing import Any

import numpy as np

from tfring._core import native
from tfring.bench.kinds import Array
from tfring.bench.peers.calls import Call, missing_dtype


def missing(dtype: str) -> str | None:
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed"
    return missing_dtype(dtype)


def call(
    kind: str, mine: Array, expected: Array, in_place: bool
) -> Call | None:
    # Has no out of place, and not all collectives.
    if not in_place or kind not in ("allreduce", "broadcast", "allgather"):
        return None
    import torch

    distributed = _joined()
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
def _joined() -> Any:
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
