"""A rank is killed in a collective; the remaining ranks get an error.

  .venv/bin/python tests/gpu/lost.py

It starts jobs of 2, 3 and 4 ranks with GPUs that read each other's memory, and
one job that uses host memory. On the fake GPU the streams of the rank are held
before it is killed; on a real one it is killed while some hundreds of megabytes
are in flight. It does not use TensorFlow.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]
import bare_gpu  # noqa: E402
from tfring.launcher import prepare  # noqa: E402

JOBS = ((2, "1"), (3, "1"), (4, "1"), (2, "0"))  # ranks, TFRING_CUDA_IPC
_JOB_SECONDS, _RANK_SECONDS = 90, 60
_SECONDS_BEFORE = 1.0


def as_rank() -> None:
    """Has the last rank killed; fails unless the others are told in time."""
    faulthandler.dump_traceback_later(_RANK_SECONDS, exit=True)
    gpu = bare_gpu.Gpu()
    world = bare_gpu.start_engine()
    count = 1 << 16 if bare_gpu.is_fake() else 1 << 26
    ones = np.ones(count, np.float32)
    memory, bystander = gpu.array(ones), gpu.array(ones)
    gpu.allreduce("all are there", [memory.address], [count])
    is_lost = world.rank == world.size - 1
    world.Barrier()
    begin = time.monotonic()
    if is_lost:
        if bare_gpu.is_fake():
            bare_gpu.hold_urgent_streams()
        threading.Timer(
            _SECONDS_BEFORE, lambda: os.kill(os.getpid(), signal.SIGKILL)
        ).start()
    try:
        while True:
            gpu.allreduce("until one is lost", [memory.address], [count])
    except bare_gpu.GpuError as error:
        took = time.monotonic() - begin - _SECONDS_BEFORE
        told = str(error)
    assert not is_lost
    # The context serves on.
    np.testing.assert_array_equal(bystander.get(ones), ones)
    gpu.copy(memory.address, bystander.address, ones.nbytes)
    np.testing.assert_array_equal(memory.get(ones), ones)
    print(f"TOLD {took:.1f} s after it, rank {world.rank}: {told}", flush=True)
    bare_gpu.stop_engine()


def run_job(ranks: int, ipc: str) -> list[str]:
    """Returns what the ranks that are left have said.

    Raises:
      RuntimeError: they have not ended well.
    """
    job = subprocess.Popen(
        [
            # Open MPI, told not to end the job with a rank.
            *(prepare.find_launcher().path, "--with-ft", "ulfm"),
            *("--allow-run-as-root", "--oversubscribe", "--bind-to", "none"),
            *("-np", str(ranks), sys.executable, __file__, "as a rank"),
        ],
        env={
            "CUDA_VISIBLE_DEVICES": "0",
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TFRING_CUDA_IPC": ipc,
            # Without it MPI_Finalize may wait for the lost rank without end.
            "OMPI_MCA_async_mpi_finalize": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = job.communicate(timeout=_JOB_SECONDS)
    except subprocess.TimeoutExpired:
        job.terminate()
        output, _ = job.communicate()
    told = re.findall(r"TOLD (.*)", output)
    if len(told) != ranks - 1:
        raise RuntimeError(f"{len(told)} of {ranks - 1} ranks:\n{output}")
    return told


def main() -> int:
    """Prints Markdown for the report; 1 if a job has failed."""
    status = 0
    for ranks, ipc in JOBS:
        print(f"- {ranks} ranks, {'IPC' if ipc == '1' else 'staged'}")
        try:
            for line in run_job(ranks, ipc):
                print(f"  - {line}")
        except RuntimeError as error:
            print(f"  - **failed**: {error}")
            status = 1
    return status


if __name__ == "__main__":
    if len(sys.argv) > 1:
        as_rank()
    else:
        sys.exit(main())
