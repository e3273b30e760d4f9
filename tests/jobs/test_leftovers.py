"""A job whose rank is killed, or lacks files or room, leaves nothing behind.

It ends in time, and its processes, its files and its shared memory are gone.
"""

import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from jobs import JOB_SECONDS, RANK, TFRINGRUN, running, wait_until

SHARED_MEMORY = Path("/dev/shm")
SCRIPT = (
    RANK
    + """
import resource, signal
from pathlib import Path
import tensorflow as tf
import tfring

victim, harm = int(sys.argv[1]), sys.argv[2]
if rank == victim and harm == "few files":
    used = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 8, used + 8))
tfring.init()
for step in range(12):
    if rank == victim and step == 5 and harm == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    value = tfring.allreduce(tf.fill([1000], step + 1.0), op=tfring.Sum)
    if not tf.reduce_all(value == tfring.size() * (step + 1.0)):
        print("wrong values", flush=True)
print("done", flush=True)
"""
)


@pytest.fixture
def folder():
    """A temporary folder, so short that Open MPI's socket has a short path."""
    folder = Path("/tmp", f"left{uuid.uuid4().hex[:8]}")
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("harm", "victim"),
    [
        *(("kill", 0), ("kill", 2), ("few files", 1)),
        *(("full tmp", 1), ("full shm", 1)),
    ],
)
def test_nothing_is_left(start, write_script, folder, marker, harm, victim):
    # The job's own shared memory, in which the test sees what is left.
    shared = SHARED_MEMORY / folder.name
    small = "mount -t tmpfs -o size=64k tmpfs"
    mount = {
        "full shm": f"{small} {SHARED_MEMORY}",
        "full tmp": f"{small} {folder}",
    }.get(harm, f"mount --bind {shared} {SHARED_MEMORY}")
    mounts = ["unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh"]
    shared.mkdir()
    if subprocess.run([*mounts, "true"]).returncode != 0:
        pytest.skip("needs unshare -m")
    job = start(
        [
            *(*mounts, *TFRINGRUN, "-np", "3", sys.executable),
            *(write_script(SCRIPT), victim, harm),
        ],
        env={
            "TMPDIR": str(folder),
            "TFRING_STALL_CHECK_TIME_SECONDS": "2",
            "TFRING_STALL_SHUTDOWN_TIME_SECONDS": "6",
            "TFRING_INIT_TIMEOUT_SECONDS": "60",
        },
    )
    output, _ = job.communicate(timeout=JOB_SECONDS)
    assert "wrong values" not in output, output
    if harm == "kill":
        assert job.returncode == 137, output
        assert f"tfringrun: rank {victim} (host " in output, output
    elif job.returncode == 0:
        assert output.count("done") == 3, output
    wait_until(lambda: not running(marker) and not list(shared.iterdir()))
    assert not [path for path in folder.rglob("*") if not path.is_dir()]
    shared.rmdir()
