"""A GPU without TensorFlow, by ctypes: memory of the driver, kernels of tfring.

For tests/gpu and benchmarks/gpu.py. `make -f tools/native.mk fake-gpu` builds
the library that it loads, and the fake driver of tests/gpu/fake/cuda, which is
used on a machine without a GPU.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tfring._core import abi, native
from tfring.launcher import rank_wrapper

_TESTS = Path(__file__).parents[1] / "build/native/plain/tests"
FAKE_DRIVER = _TESTS / "gpu/fake/cuda/libcuda.so.1"
FAKE_NCCL = _TESTS / "gpu/fake/nccl/libnccl.so.2"
FAKE_GPU = _TESTS / "gpu/fake/device/fake_gpu.so"
# The op library with the functions of tests/gpu/bare_gpu.cc. In an archive,
# the only one has them.
_LIBRARY = _TESTS / "gpu/libtfring_ops.so"

# The dtypes of tfring_ops/base/types.h, in its order.
DTYPES = (
    *("float16", "bfloat16", "float32", "float64"),
    *("int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64"),
    "bool",
)
OPS = ("average", "sum", "min", "max", "product")

Array = npt.NDArray[Any]


class GpuError(Exception):
    """An error of the driver or of tfring."""


@functools.cache
def driver() -> ctypes.CDLL:
    """The driver; the op library finds this very one by its name."""
    fake = FAKE_DRIVER.exists() and not rank_wrapper.count_gpus()
    return ctypes.CDLL(str(FAKE_DRIVER) if fake else "libcuda.so.1")


def is_fake() -> bool:
    """Tells whether the driver is the fake one of tests/gpu/fake/cuda."""
    return hasattr(driver(), "FakeCudaOptions")


def load_fake_gpu() -> None:
    """Loads TensorFlow's fake GPU, before TensorFlow makes its devices."""
    from tensorflow.python.framework import load_library

    load_library.load_pluggable_device_library(str(FAKE_GPU))
    # tfring finds it by its name, because it is there.
    ctypes.CDLL(str(FAKE_NCCL))


def hold_urgent_streams() -> None:
    """Holds the streams of the engine on the fake device from now on."""
    options = driver().FakeCudaOptions
    options.restype = ctypes.POINTER(ctypes.c_int)
    options()[2] = 2  # `held`, and its value kUrgentStream


def loaded_modules() -> int:
    """The number of times that this process has loaded kernels; on the fake."""
    count = driver().FakeCudaCounts
    count.restype = ctypes.POINTER(ctypes.c_int64)
    return int(count()[5])


@functools.cache
def library() -> ctypes.CDLL:
    """Returns the op library, without TensorFlow's Python."""
    if nccl := _packaged_nccl():
        ctypes.CDLL(str(nccl))  # found by its name, as the driver is
    native.mpi()
    opened = ctypes.CDLL(str(_LIBRARY if _LIBRARY.exists() else abi.LIBRARY))
    opened.tfring_gpu_context.restype = ctypes.c_void_p
    opened.tfring_gpu_stream.restype = ctypes.c_void_p
    for function in ("gpu_open", "gpu_finish", "gpu_allreduce"):
        getattr(opened, f"tfring_{function}").restype = ctypes.c_char_p
    for function in ("init", "describe_gpus"):
        getattr(opened, f"tfring_{function}").restype = ctypes.c_char_p
    return opened


def _packaged_nccl() -> Path | None:
    """The NCCL of NVIDIA's package, or the fake one."""
    if is_fake():
        return FAKE_NCCL
    found = (Path(entry, "nvidia/nccl/lib/libnccl.so.2") for entry in sys.path)
    return next((path for path in found if path.exists()), None)


def check(sentence: bytes | None) -> None:
    """Raises what a function of the op library has returned."""
    if sentence is not None:
        raise GpuError(sentence.decode())


def call(function: str, *arguments: object) -> None:
    """Calls a function of the driver."""
    result = getattr(driver(), function)(*arguments)
    if result != 0:
        error = ctypes.c_char_p()
        driver().cuGetErrorName(result, ctypes.byref(error))
        raise GpuError(f"{function}: {(error.value or b'?').decode()}")


def _address(value: int) -> ctypes.c_uint64:
    return ctypes.c_uint64(value)


class Memory:
    """Some bytes of a GPU, freed with this object."""

    def __init__(self, gpu: Gpu, nbytes: int) -> None:
        self._gpu = gpu
        self.nbytes = nbytes
        address = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(address), _size(max(nbytes, 1)))
        self.address = address.value

    def __del__(self) -> None:
        if getattr(self, "address", 0):
            driver().cuMemFree_v2(_address(self.address))

    def put(self, array: Array, offset: int = 0) -> None:
        """Copies `array` to byte `offset`, and waits."""
        source = np.ascontiguousarray(array)
        self._gpu.from_host(
            self.address + offset, source.ctypes.data, source.nbytes
        )
        self._gpu.finish()

    def get(self, like: Array, offset: int = 0) -> Array:
        """Waits, and returns an array like `like` from byte `offset`."""
        result = np.empty_like(like)
        self._gpu.to_host(
            result.ctypes.data, self.address + offset, result.nbytes
        )
        self._gpu.finish()
        return result


def _size(nbytes: int) -> ctypes.c_size_t:
    return ctypes.c_size_t(nbytes)


class Gpu:
    """This rank's GPU, with a stream; its context is this thread's.

    It is the one that `tfring.init` would choose.

    Kernels take addresses on the device and numbers of elements; they are asked
    for only, and `finish` waits.
    """

    def __init__(self) -> None:
        self._handle = ctypes.c_void_p()
        self.ordinal = _local_rank() % number_of_gpus()
        check(
            library().tfring_gpu_open(self.ordinal, ctypes.byref(self._handle))
        )
        self.context = ctypes.c_void_p(
            library().tfring_gpu_context(self._handle)
        )
        self.stream = ctypes.c_void_p(library().tfring_gpu_stream(self._handle))
        call("cuCtxPushCurrent_v2", self.context)

    def finish(self) -> None:
        """Waits until the stream has done everything."""
        check(library().tfring_gpu_finish(self._handle))

    def memory(self, nbytes: int) -> Memory:
        """New memory, of undefined content."""
        return Memory(self, nbytes)

    def array(self, array: Array) -> Memory:
        """A copy of `array`."""
        memory = Memory(self, array.nbytes)
        memory.put(array)
        return memory

    def pinned(self, nbytes: int) -> int:
        """The address of pinned memory of the host, which is never freed."""
        memory = ctypes.c_void_p()
        call("cuMemHostAlloc", ctypes.byref(memory), _size(nbytes), 0)
        return memory.value or 0

    def from_host(self, dst: int, host: int, nbytes: int) -> None:
        """From an address of the host, in the order of the stream."""
        call(
            "cuMemcpyHtoDAsync_v2",
            _address(dst),
            ctypes.c_void_p(host),
            _size(nbytes),
            self.stream,
        )

    def to_host(self, host: int, src: int, nbytes: int) -> None:
        """The other way."""
        call(
            "cuMemcpyDtoHAsync_v2",
            ctypes.c_void_p(host),
            _address(src),
            _size(nbytes),
            self.stream,
        )

    def reduce(
        self, dst: int, a: int, b: int, count: int, dtype: str, op: str
    ) -> None:
        """`dst[i] = a[i] op b[i]`."""
        library().tfring_gpu_reduce(
            self._handle,
            *map(_address, (dst, a, b)),
            ctypes.c_int64(count),
            DTYPES.index(dtype),
            OPS.index(op),
        )

    def scale(
        self, dst: int, src: int, count: int, dtype: str, factor: float
    ) -> None:
        """`dst[i] = src[i] * factor`."""
        library().tfring_gpu_scale(
            self._handle,
            *map(_address, (dst, src)),
            ctypes.c_int64(count),
            DTYPES.index(dtype),
            ctypes.c_double(factor),
        )

    def copy(self, dst: int, src: int, nbytes: int) -> None:
        """Within the device."""
        library().tfring_gpu_copy(
            self._handle, *map(_address, (dst, src)), ctypes.c_int64(nbytes)
        )

    def copy_pieces(
        self,
        to: Sequence[int],
        source: Sequence[int],
        counts: Sequence[int],
        dtype: str,
        to_dtype: str | None = None,
        factor: float = 1.0,
    ) -> None:
        """Copies runs of `counts[i]` elements, as a bucket is packed.

        They are cast to `to_dtype`, if that is another, and scaled.
        """
        number = len(counts)
        library().tfring_gpu_copy_pieces(
            self._handle,
            number,
            (ctypes.c_uint64 * number)(*to),
            (ctypes.c_uint64 * number)(*source),
            (ctypes.c_int64 * number)(*counts),
            DTYPES.index(dtype),
            DTYPES.index(to_dtype or dtype),
            ctypes.c_double(factor),
        )

    def adasum(self, dst: int, a: int, b: int, count: int, dtype: str) -> None:
        """Adasum of two whole tensors."""
        library().tfring_gpu_adasum(
            self._handle,
            *map(_address, (dst, a, b)),
            ctypes.c_int64(count),
            DTYPES.index(dtype),
        )

    def allreduce(
        self,
        name: str,
        buffers: Sequence[int],
        counts: Sequence[int],
        dtype: str = "float32",
        op: str = "sum",
        prescale_factor: float = 1.0,
    ) -> None:
        """In place, by the world's engine, and waits. Collective."""
        number = len(buffers)
        check(
            library().tfring_gpu_allreduce(
                self._handle,
                name.encode(),
                number,
                (ctypes.c_uint64 * number)(*buffers),
                (ctypes.c_int64 * number)(*counts),
                DTYPES.index(dtype),
                OPS.index(op),
                ctypes.c_double(prescale_factor),
            )
        )


def name() -> str:
    """The GPU's, and the version of CUDA that its driver is for."""
    text, number = ctypes.create_string_buffer(256), ctypes.c_int()
    call("cuInit", 0)
    call("cuDeviceGetName", text, 255, 0)
    call("cuDriverGetVersion", ctypes.byref(number))
    major, minor = number.value // 1000, number.value % 1000 // 10
    return f"{text.value.decode()}, CUDA {major}.{minor}"


def number_of_gpus() -> int:
    """The number of GPUs that this process may use."""
    number = ctypes.c_int()
    call("cuInit", 0)
    call("cuDeviceGetCount", ctypes.byref(number))
    return number.value


def context_exists(ordinal: int) -> bool:
    """Returns True if this process has made a context on that GPU."""
    flags, active = ctypes.c_uint(), ctypes.c_int()
    call(
        "cuDevicePrimaryCtxGetState",
        ordinal,
        ctypes.byref(flags),
        ctypes.byref(active),
    )
    return active.value != 0


def description() -> list[tuple[str, str]]:
    """The facts that `tfringrun --check-build` says of GPUs."""
    lines = library().tfring_describe_gpus().decode().splitlines()
    return [
        (name, text) for name, _, text in (s.partition("\t") for s in lines)
    ]


def nccl_version() -> int:
    """NCCL's version as a number: 22105 is 2.21.5; 0 if there is none."""
    return int(library().tfring_nccl_version())


def nccl_collectives() -> int:
    """The number of collectives that the fake NCCL has done in this process."""
    options = ctypes.CDLL(str(FAKE_NCCL)).FakeNcclOptions
    options.restype = ctypes.POINTER(ctypes.c_int)
    return int(options()[6])


def _local_rank() -> int:
    names = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
    found = [os.environ[name] for name in names if name in os.environ]
    return int(found[0]) if found else 0


def rank() -> int:
    """This process's, in the job."""
    return int(native.mpi().COMM_WORLD.rank)


def start_engine() -> Any:
    """Starts the world's engine; returns MPI's communicator. Collective."""
    world = native.mpi().COMM_WORLD
    check(library().tfring_init(ctypes.c_int32(world.py2f())))
    return world


def stop_engine() -> None:
    """Stops the engine."""
    library().tfring_shutdown()
