"""The driver calls that the ring needs, between two processes on one GPU.

Each test makes one or two driver calls, so that a failure of the machine can be
told from a failure of the engine. The figures are for the report.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import tempfile
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import bare_gpu
from tfring._core import native

# cuda.h's numbers.
_DISABLE_TIMING, _INTERPROCESS = 2, 4
_LAZY_PEER_ACCESS = 1
_PORTABLE, _DEVICE_MAP = 1, 2
_GREATER_OR_EQUAL = 0
_NOT_READY = 600
_PATIENCE_SECONDS = 20.0
_ROUND_TRIPS = 200
_FLAG_BYTES = 64


class Handle(ctypes.Structure):
    """A CUipcMemHandle or CUipcEventHandle, which are passed by value."""

    _fields_ = (("reserved", ctypes.c_char * 64),)


@pytest.fixture(scope="module")
def mpi():
    """The communicator of two ranks."""
    world = native.mpi().COMM_WORLD
    assert world.size == 2
    return world


@pytest.fixture(scope="module")
def nbytes():
    return 1 << 20 if bare_gpu.is_fake() else 256 << 20


def swap(mpi, own):
    """Returns the other rank's."""
    return mpi.sendrecv(own, 1 - mpi.rank, source=1 - mpi.rank)


def is_done(gpu) -> Callable[[], bool]:
    """Returns a function that tells if the stream has done all so far."""
    event = ctypes.c_void_p()
    bare_gpu.call("cuEventCreate", ctypes.byref(event), _DISABLE_TIMING)
    bare_gpu.call("cuEventRecord", event, gpu.stream)
    return lambda: bare_gpu.driver().cuEventQuery(event) != _NOT_READY


def wait(gpu, release: Callable[[], None]) -> None:
    """Waits for the stream, but not for ever."""
    done, end = is_done(gpu), time.monotonic() + _PATIENCE_SECONDS
    while not done() and time.monotonic() < end:
        time.sleep(1e-5)
    if not done():
        release()
        pytest.fail(f"the stream waits after {_PATIENCE_SECONDS} s")
    gpu.finish()


def seconds(gpu, work: Callable[[], None]) -> float:
    """Returns the time of one `work`: the median of five."""
    work()
    gpu.finish()
    found = []
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(4):
            work()
        gpu.finish()
        found.append((time.perf_counter() - begin) / 4)
    return float(np.median(found))


@contextlib.contextmanager
def peers_memory(gpu, mpi, memory) -> Iterator[int]:
    """Maps the peer's memory, while the peer maps this rank's memory."""
    own, mapped = Handle(), ctypes.c_uint64()
    bare_gpu.call(
        "cuIpcGetMemHandle",
        ctypes.byref(own),
        ctypes.c_uint64(memory.address),
    )
    theirs = Handle.from_buffer_copy(swap(mpi, bytes(own)))
    bare_gpu.call(
        "cuIpcOpenMemHandle_v2",
        ctypes.byref(mapped),
        theirs,
        _LAZY_PEER_ACCESS,
    )
    mpi.Barrier()
    try:
        yield mapped.value
    finally:
        mpi.Barrier()  # nobody frees what the other still reads
        bare_gpu.call("cuIpcCloseMemHandle", mapped)
        mpi.Barrier()


def test_memory_of_the_other_process(gpu, mpi, nbytes, record_property):
    values = np.arange(nbytes // 4, dtype=np.uint32)
    memory, to = gpu.array(values + mpi.rank), gpu.memory(nbytes)
    with peers_memory(gpu, mpi, memory) as mapped:
        gpu.copy(to.address, mapped, nbytes)
        np.testing.assert_array_equal(to.get(values), values + 1 - mpi.rank)
        for name, source in ("own", memory.address), ("the other's", mapped):
            for rank in range(2):  # in turns
                mpi.Barrier()
                if rank == mpi.rank:
                    took = seconds(
                        gpu,
                        lambda source=source: gpu.copy(
                            to.address, source, nbytes
                        ),
                    )
            rate = 2 * nbytes / took / 1e9
            record_property(f"GB/s in a copy of {name}", round(rate))


def test_both_at_once(gpu, mpi, nbytes, record_property):
    """Twice as long: the two take turns, as without MPS."""
    a, b = gpu.memory(nbytes), gpu.memory(nbytes)

    def copy():
        gpu.copy(b.address, a.address, nbytes)

    alone = 0.0
    for rank in range(2):
        mpi.Barrier()
        if rank == mpi.rank:
            alone = seconds(gpu, copy)
    mpi.Barrier()
    both = seconds(gpu, copy)
    mpi.Barrier()
    record_property("times as long", round(both / alone, 2))


@contextlib.contextmanager
def flags(gpu, mpi) -> Iterator[tuple[np.ndarray, Callable[[int], int]]]:
    """Two numbers in memory that both processes have registered.

    Yields them as the host sees them, and the address of each on the GPU.
    """
    pages = mmap.PAGESIZE
    with contextlib.ExitStack() as stack:
        if mpi.rank == 0:
            file = stack.enter_context(
                tempfile.NamedTemporaryFile(dir="/dev/shm")
            )
            file.truncate(pages)
        name = mpi.bcast(file.name if mpi.rank == 0 else None)
        with open(name, "r+b") as shared:  # noqa: PTH123
            mapped = mmap.mmap(shared.fileno(), pages)
        host = np.frombuffer(mapped, np.uint32)
        host_address = ctypes.c_void_p(host.ctypes.data)
        bare_gpu.call(
            "cuMemHostRegister_v2",
            host_address,
            ctypes.c_size_t(pages),
            _PORTABLE | _DEVICE_MAP,
        )
        device = ctypes.c_uint64()
        bare_gpu.call(
            "cuMemHostGetDevicePointer_v2",
            ctypes.byref(device),
            host_address,
            0,
        )
        mpi.Barrier()
        try:
            yield host, lambda rank: device.value + rank * _FLAG_BYTES
        finally:
            bare_gpu.call("cuMemHostUnregister", host_address)
            mpi.Barrier()


def set_flag(gpu, address: int, number: int) -> None:
    bare_gpu.call(
        "cuStreamWriteValue32_v2",
        gpu.stream,
        ctypes.c_uint64(address),
        number,
        0,
    )


def await_flag(gpu, address: int, number: int) -> None:
    bare_gpu.call(
        "cuStreamWaitValue32_v2",
        gpu.stream,
        ctypes.c_uint64(address),
        number,
        _GREATER_OR_EQUAL,
    )


def test_streams_wait_for_each_others_flags(gpu, mpi, record_property):
    with flags(gpu, mpi) as (host, address):
        own, other = address(mpi.rank), address(1 - mpi.rank)
        begin = time.perf_counter()
        for number in range(1, 1 + _ROUND_TRIPS):
            if mpi.rank == 0:
                set_flag(gpu, own, number)
            await_flag(gpu, other, number)
            if mpi.rank == 1:
                set_flag(gpu, own, number)
        wait(gpu, lambda: host.fill(1 << 30))
        took = (time.perf_counter() - begin) / _ROUND_TRIPS
        record_property("us for a round trip", round(1e6 * took, 1))
        assert host[:: _FLAG_BYTES // 4][:2].tolist() == [_ROUND_TRIPS] * 2
        mpi.Barrier()


def test_a_stream_that_waits_holds_no_one_up(gpu, mpi, nbytes, record_property):
    """Rank 1 waits for a number that rank 0 sets after its copies."""
    a, b = gpu.memory(nbytes), gpu.memory(nbytes)
    with flags(gpu, mpi) as (host, address):
        if mpi.rank == 1:
            await_flag(gpu, address(0), 1)
        mpi.Barrier()
        if mpi.rank == 0:
            took = seconds(gpu, lambda: gpu.copy(b.address, a.address, nbytes))
            rate = 2 * nbytes / took / 1e9
            record_property("GB/s in a copy meanwhile", round(rate))
            set_flag(gpu, address(0), 1)
        wait(gpu, lambda: host.fill(1 << 30))
        mpi.Barrier()


def test_the_host_releases_a_stream(gpu, mpi):
    """The host also does this when a peer is lost."""
    with flags(gpu, mpi) as (host, address):
        at = mpi.rank * _FLAG_BYTES // 4
        await_flag(gpu, address(mpi.rank), 7)
        done = is_done(gpu)
        time.sleep(0.1)
        assert not done()
        host[at] = 7
        wait(gpu, lambda: host.fill(1 << 30))
        mpi.Barrier()


def test_events_of_the_other_process(gpu, mpi):
    if not hasattr(bare_gpu.driver(), "cuIpcGetEventHandle"):
        pytest.skip("the fake driver has no events for other processes")
    event, own, theirs = ctypes.c_void_p(), Handle(), ctypes.c_void_p()
    bare_gpu.call(
        "cuEventCreate", ctypes.byref(event), _DISABLE_TIMING | _INTERPROCESS
    )
    bare_gpu.call("cuEventRecord", event, gpu.stream)
    bare_gpu.call("cuIpcGetEventHandle", ctypes.byref(own), event)
    handle = Handle.from_buffer_copy(swap(mpi, bytes(own)))
    bare_gpu.call("cuIpcOpenEventHandle", ctypes.byref(theirs), handle)
    bare_gpu.call("cuStreamWaitEvent", gpu.stream, theirs, 0)
    wait(gpu, lambda: None)
    mpi.Barrier()
    bare_gpu.call("cuEventDestroy_v2", theirs)
