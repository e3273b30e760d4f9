"""Records what every rank's collectives do, and when.

The file is for https://ui.perfetto.dev or chrome://tracing, and for
tfring/timeline, which sums it up.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

from absl import logging

from tfring._core import native, runtime, trace

if TYPE_CHECKING:
    from mpi4py import MPI

_PING_PONGS = 20
# Interval at which a rank checks whether the others have come.
_LOOK_SECONDS = 0.001


@dataclasses.dataclass(frozen=True)
class _Running:
    path: str  # rank 0's
    comm: MPI.Intracomm
    # Added to this rank's clock, it gives that of rank 0.
    offset_ns: int


_running: _Running | None = None


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Records what collectives do on every rank, until `stop_timeline`.

    Each collective is shown from its submission over the ranks' negotiation to
    its end, with what it does in between: copies into the fusion buffer, the
    ring, copies back; and how long TensorFlow had to wait for it. Up to 500,000
    of these are kept on each rank.

    The same from `init` to `shutdown`: the environment variable
    `TFRING_TIMELINE=FILE`.

    Collective: every rank must call it.

    Args:
        file_path: The file that rank 0 writes in `stop_timeline`, as JSON for
            https://ui.perfetto.dev or chrome://tracing. On other ranks it does
            not matter.
        mark_cycles: If True, each response list of the coordinator is marked.
            The name is Horovod's, whose engine works in cycles.

    Raises:
        FileNotFoundError: There is no directory for the file; on rank 0.
        NotInitializedError: `init` has not been called.
        ValueError: A timeline is being recorded.

    Example:
    ```python
    import tensorflow as tf
    import tfring

    tfring.init()
    tfring.start_timeline("timeline.json")
    tfring.allreduce(tf.ones([1000]))
    tfring.stop_timeline()
    ```
    """
    global _running
    if _running is not None:
        raise ValueError(
            f"start_timeline: one is being recorded for {_running.path!r}. "
            "Call stop_timeline first."
        )
    first = runtime.rank() == 0
    path = os.fspath(file_path)
    # Before the ranks need each other, and not after hours of training.
    if first and not Path(path).absolute().parent.is_dir():
        raise FileNotFoundError(
            f"start_timeline: there is no directory for {path!r}."
        )
    comm = runtime.job().comm.Dup()
    _running = _Running(comm.bcast(path), comm, _clock_offset_ns(comm))
    native.capi().tfring_timeline_start(int(mark_cycles))
    # Entries that other ranks submit after their start are recorded here, too.
    comm.Barrier()


def stop_timeline() -> None:
    """Ends what `start_timeline` began; rank 0 writes the file.

    Collective: every rank must call it.

    Raises:
        ValueError: No timeline is being recorded.

    Example: see `start_timeline`.
    """
    global _running
    if _running is None:
        raise ValueError("stop_timeline: no timeline is being recorded.")
    running, _running = _running, None
    # A rank that comes early leaves its core to the others.
    barrier = running.comm.Ibarrier()
    while not barrier.Test():
        time.sleep(_LOOK_SECONDS)
    text = native.capi().tfring_timeline_stop().decode()
    recording = trace.Recording(
        socket.gethostname(), running.offset_ns, *trace.parse(text)
    )
    recordings = running.comm.gather(recording)
    running.comm.Free()
    if recordings is None:
        return
    for rank, of_rank in enumerate(recordings):
        if of_rank.dropped:
            logging.warning(
                "tfring: the timeline lacks the last %d events of rank %d.",
                of_rank.dropped,
                rank,
            )
    trace.write(Path(running.path), recordings)


def is_recording() -> bool:
    """Tells whether `start_timeline` has been called, and not yet ended."""
    return _running is not None


@runtime.after_shutdown
def _stop_if_recording() -> None:
    if is_recording():
        stop_timeline()


@runtime.after_restart
def _go_on_with_the_ranks_left() -> None:
    global _running
    if _running is not None:
        _running = dataclasses.replace(_running, comm=runtime.job().comm.Dup())


def _clock_offset_ns(comm: MPI.Intracomm) -> int:
    """Returns what this rank adds to its clock to have that of rank 0."""
    # One kernel has one clock, and nothing is as exact.
    clocks = comm.allgather(_kernel())
    offset_ns = 0
    for rank in range(1, comm.size):
        if comm.rank in (0, rank) and clocks[rank] != clocks[0]:
            offset_ns = _measured_offset_ns(comm, rank)
    return offset_ns


def _kernel() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        return f"{socket.gethostname()}, process {os.getpid()}"


def _measured_offset_ns(comm: MPI.Intracomm, rank: int) -> int:
    """The offset of `rank`, on which alone it is of use, by ping-pongs.

    Rank 0's answer is taken to be made in the middle of the fastest of them.
    """
    fastest_ns, offset_ns = None, 0
    for _ in range(_PING_PONGS):
        if comm.rank == 0:
            comm.recv(source=rank)
            comm.send(time.monotonic_ns(), rank)
            continue
        sent = time.monotonic_ns()
        comm.send(None, 0)
        answered = comm.recv(source=0)
        received = time.monotonic_ns()
        if fastest_ns is None or received - sent < fastest_ns:
            fastest_ns = received - sent
            offset_ns = answered - (sent + received) // 2
    return offset_ns
