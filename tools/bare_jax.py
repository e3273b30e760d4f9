"""tfring's allreduce under JAX's jit, without TensorFlow.

For tests/gpu: by the handlers of tfring_ops/ffi, which JAX is given here, as
TensorFlow is by tfring_ops/xla.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence

import jax
import numpy as np

import bare_gpu

# XLA's names of the platforms, by JAX's.
PLATFORMS = {"cpu": "cpu", "gpu": "CUDA"}

# Handles have 64 bits.
jax.config.update("jax_enable_x64", True)


@functools.cache
def register() -> None:
    """Gives JAX the handlers of both platforms."""
    for name, place in ("cpu", "host"), ("CUDA", "cuda"):
        for call in "start", "done":
            handler = getattr(bare_gpu.library(), f"tfring_{place}_{call}")
            jax.ffi.register_ffi_target(
                f"tfring_{call}", jax.ffi.pycapsule(handler), name
            )


def allreduce(
    buckets: Sequence[Sequence[jax.Array]],
    name: str,
    platform: str,
    op: str = "sum",
) -> list[list[jax.Array]]:
    """Reduces every tensor; to be called inside `jit`. Collective.

    Each bucket is a request of its own; their starts are one chain, and all
    dones come after the last of them, as in a step of training.
    """
    register()
    handle = jax.numpy.zeros((), np.int64)
    started: list[tuple[list[jax.Array], jax.Array]] = []
    for number, bucket in enumerate(buckets):
        request = encode(f"{name} {number}", bucket, op)
        place = "" if started else "first"
        attributes = {"place": place} if platform == "gpu" else {}
        *buffers, handle = _call(
            "tfring_start", bucket, handle, request=request, **attributes
        )
        started.append((buffers, handle))
    last = handle
    return [
        _call("tfring_done", buffers, own, last)[:-1]
        for buffers, own in started
    ]


def encode(name: str, bucket: Sequence[jax.Array], op: str) -> bytes:
    """Returns the attribute `request` of a start."""
    arguments = (
        name.encode(),
        len(bucket),
        bare_gpu.DTYPES.index(str(bucket[0].dtype)),
        bare_gpu.OPS.index(op),
    )
    function = bare_gpu.library().tfring_encode_allreduce
    function.restype = ctypes.c_int64
    size = function(*arguments, None, ctypes.c_int64(0))
    request = ctypes.create_string_buffer(size)
    function(*arguments, request, ctypes.c_int64(size))
    return request.raw


def _call(
    target: str,
    buffers: Sequence[jax.Array],
    *handles: jax.Array,
    **attributes: object,
) -> list[jax.Array]:
    """A custom call in place: its results are the buffers, and a handle."""
    results = [jax.ShapeDtypeStruct(b.shape, b.dtype) for b in buffers]
    call = jax.ffi.ffi_call(
        target,
        [*results, jax.ShapeDtypeStruct((), np.int64)],
        has_side_effect=True,
        input_output_aliases={i: i for i in range(len(buffers))},
    )
    return list(call(*buffers, *handles, **attributes))
