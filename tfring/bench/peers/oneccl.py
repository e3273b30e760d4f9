"""Intel's oneCCL, on CPUs, by its C API.

Its wheel has an Intel MPI beside it, with commands of the same names as Open
MPI's: so it is installed into a folder of its own, which CCL_ROOT names.

    pip install --target=/some/folder oneccl
    CCL_ROOT=/some/folder tfringrun -np 2 tfring-bench allreduce --peers=oneccl

Reference: oneapi/ccl.h of the package oneccl-devel.
"""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path
from typing import Any

import numpy as np

from tfring._core import native, runtime
from tfring.bench.peers.calls import Call, missing_dtype

_Array = np.ndarray[Any, Any]

# By the order in which one needs the other, as the loader does not look into
# their folder.
_LIBRARIES = (
    "libintlc.so.5",
    "libirng.so",
    "libimf.so",
    "libsvml.so",
    "libur_loader.so.0",
    "libsycl.so.[0-9]",
    "libccl.so.2",
    "libccl.so.1",
    "libccl_legacy_cpu.so",
)
_DTYPES = {"int32": 2, "int64": 4, "float32": 7, "float64": 8}
_SUM = 0


class _UniqueId(ctypes.Structure):
    _fields_ = (("data", ctypes.c_char * 4096),)


def missing(dtype: str) -> str | None:
    if not (_folder() / "libccl.so.2").exists():
        return (
            "CCL_ROOT names no folder of oneCCL: pip install "
            "--target=/some/folder oneccl"
        )
    return missing_dtype(dtype, _DTYPES)


def call(
    kind: str, mine: _Array, expected: _Array, in_place: bool
) -> Call | None:
    if kind != "allreduce":
        return None
    library, communicator = _joined()
    out = mine.copy() if in_place else np.empty_like(expected)
    source = out if in_place else mine
    arguments = (
        ctypes.c_void_p(source.ctypes.data),
        ctypes.c_void_p(out.ctypes.data),
        ctypes.c_size_t(out.size),
        _DTYPES[out.dtype.name],
        _SUM,
        communicator,
        None,
    )

    def run() -> None:
        _check(library, library.onecclAllReduce(*arguments))

    return run, out


def _folder() -> Path:
    return Path(os.environ.get("CCL_ROOT", "")) / "lib"


@functools.cache
def _joined() -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    os.environ |= {
        "CCL_PLUGIN": "ONECCL_LEGACY_CPU",
        "CCL_ATL_TRANSPORT": "ofi",
        "CCL_LOG_LEVEL": "error",
        "CCL_PROCESS_LAUNCHER": "none",
        "CCL_LOCAL_RANK": str(runtime.local_rank()),
        "CCL_LOCAL_SIZE": str(runtime.local_size()),
    }
    for name in _LIBRARIES:
        path = next(_folder().glob(name))
        library = ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
        if name == "libccl.so.2":
            api = library
    api.onecclGetLastError.restype = ctypes.c_char_p
    world = native.mpi().COMM_WORLD
    unique_id = _UniqueId()
    if world.rank == 0:
        _check(api, api.onecclGetUniqueId(ctypes.byref(unique_id)))
    unique_id = _UniqueId.from_buffer_copy(world.bcast(bytes(unique_id)))
    communicator = ctypes.c_void_p()
    _check(
        api,
        api.onecclCommInitRank(
            ctypes.byref(communicator),
            ctypes.c_size_t(world.size),
            unique_id,
            world.rank,
        ),
    )
    return api, communicator


def _check(library: ctypes.CDLL, result: int) -> None:
    if result != 0:
        text = library.onecclGetLastError(None) or b""
        raise RuntimeError(f"oneCCL: error {result}: {text.decode()}")
