"""The allreduce in shared memory that DeepSpeed has for inference on CPUs.

`pip install deepspeed ninja`, with a PyTorch. DeepSpeed compiles it at first.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from typing import Any

import numpy as np

from tfring._core import native, runtime
from tfring.bench.peers.calls import Call, missing_dtype

_Array = np.ndarray[Any, Any]


def missing(dtype: str) -> str | None:
    for module in ("torch", "deepspeed", "ninja"):
        if importlib.util.find_spec(module) is None:
            return f"the package {module} is not installed"
    if runtime.local_size() < runtime.size():
        return "the ranks are on several machines"
    return missing_dtype(dtype, ("float32",))


def call(
    kind: str, mine: _Array, expected: _Array, in_place: bool
) -> Call | None:
    if not in_place or kind != "allreduce":
        return None
    import torch

    function = _joined()
    buffer = mine.copy()
    tensor = torch.from_numpy(buffer)
    return lambda: function(tensor), buffer


@functools.cache
def _joined() -> Any:
    import ninja
    import torch

    world = native.mpi().COMM_WORLD
    path = f"{ninja.BIN_DIR}{os.pathsep}{os.environ['PATH']}"
    # It names its shared memory by the address, which nobody listens at.
    os.environ |= {
        "DS_ACCELERATOR": "cpu",
        "LOCAL_SIZE": str(world.size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(world.bcast(os.getpid())),
        "PATH": path,
    }
    from deepspeed.ops.op_builder.cpu.comm import ShareMemCommBuilder

    # One compiles it, and the others find it.
    for rank in range(world.size):
        if rank == world.rank:
            library = ShareMemCommBuilder().load(verbose=False)
        world.Barrier()
    library.initialize(world.size, world.rank)
    return torch.ops.deepspeed.inference_all_reduce_
