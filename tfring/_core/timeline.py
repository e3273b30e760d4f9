"""Records every rank's collectives, with their times.

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

from tfring._core import (
    clocks,
    failure,
    native,
    runtime,
    tcp_job,
    tcp_recordings,
    trace,
)

if TYPE_CHECKING:
    from mpi4py import MPI

# Interval at which a rank checks whether all have arrived.
_LOOK_SECONDS = 0.001


@dataclasses.dataclass(frozen=True)
class _Running:
    path: str  # the file that rank 0 writes
    ranks: MPI.Intracomm | tcp_job.TcpJob  # the ranks of the present job
    offset_ns: int = 0  # rank 0's clock minus this rank's


_running: _Running | None = None


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Records the collectives of every rank, until `stop_timeline`.

    Each collective is shown from its submission over the ranks' negotiation to
    its end, with its phases: copies into the fusion buffer, the ring, copies
    back; and how long TensorFlow had to wait for it. Up to 500,000 of these are
    kept on each rank.

    The environment variable `TFRING_TIMELINE=FILE` records from `init` to
    `shutdown`.

    In an elastic job it continues from one generation to the next, and the file
    has the recordings of the workers that are there at the end, each by its
    last rank. A worker that joins later records from its own call of this
    function on. Rank 0 waits a minute for all ranks.

    Collective: every rank must call it.

    Args:
        file_path: The file that rank 0 writes in `stop_timeline`, as JSON for
            https://ui.perfetto.dev or chrome://tracing. Other ranks ignore it,
            but in an elastic job any rank may become rank 0.
        mark_cycles: If True, each response list of the coordinator is marked.
            The name is Horovod's: its engine works in cycles.

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
    first = runtime.rank() == 0 and not runtime.is_beside()
    path = os.fspath(file_path)
    # Check before the training, which may take hours.
    if first and not Path(path).absolute().parent.is_dir():
        raise FileNotFoundError(
            f"start_timeline: there is no directory for {path!r}."
        )
    ranks = _ranks()
    if isinstance(ranks, tcp_job.TcpJob):
        _running = _Running(path, ranks)
        native.capi().tfring_timeline_start(int(mark_cycles))
        return
    _running = _Running(ranks.bcast(path), ranks, _clock_offset_ns(ranks))
    native.capi().tfring_timeline_start(int(mark_cycles))
    # Wait: entries that other ranks submit after their start are recorded here,
    # too.
    ranks.Barrier()


def stop_timeline() -> None:
    """Ends the recording of `start_timeline`; rank 0 writes the file.

    Collective: every rank must call it.

    Raises:
        ValueError: No timeline is being recorded.

    Example: see `start_timeline`.
    """
    global _running
    if _running is None:
        raise ValueError("stop_timeline: no timeline is being recorded.")
    running, _running = _running, None
    ranks = running.ranks
    if isinstance(ranks, tcp_job.TcpJob):
        recordings = tcp_recordings.gather(ranks, _recorded())
    else:
        # A rank that waits leaves its core to the others.
        barrier = ranks.Ibarrier()
        while not barrier.Test():
            time.sleep(_LOOK_SECONDS)
        recording = trace.Recording(
            socket.gethostname(),
            running.offset_ns,
            *trace.parse(_recorded()),
        )
        recordings = ranks.gather(recording)
        ranks.Free()
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


def _recorded() -> str:
    text: bytes = native.capi().tfring_timeline_stop()
    return text.decode()


@runtime.after_shutdown
def _stop_if_recording() -> None:
    global _running
    leaves = tcp_job.has_left() or failure.exit_status() != 0
    if native.is_tcp_job() and leaves:
        # The other ranks continue, or the launcher ends them.
        _running = None
    if _running is not None:
        stop_timeline()


@runtime.after_restart
def _go_on_with_the_ranks_left() -> None:
    global _running
    if _running is not None:
        _running = dataclasses.replace(_running, ranks=_ranks())


def _ranks() -> MPI.Intracomm | tcp_job.TcpJob:
    job = runtime.job()
    return job if isinstance(job, tcp_job.TcpJob) else job.comm.Dup()


def _clock_offset_ns(comm: MPI.Intracomm) -> int:
    # Ranks of one kernel share a clock, so their offset is exactly 0.
    kernels = comm.allgather(clocks.kernel())
    offset_ns = 0
    for rank in range(1, comm.size):
        if comm.rank in (0, rank) and kernels[rank] != kernels[0]:
            offset_ns = _measured_offset_ns(comm, rank)
    return offset_ns


def _measured_offset_ns(comm: MPI.Intracomm, rank: int) -> int:
    """Measures the offset of `rank` by ping-pongs; valid on `rank` only."""

    def ask() -> int:
        comm.send(None, 0)
        answer: int = comm.recv(source=0)
        return answer

    if comm.rank != 0:
        return clocks.offset_ns(ask)
    for _ in range(clocks.PING_PONGS):
        comm.recv(source=rank)
        comm.send(time.monotonic_ns(), rank)
    return 0
