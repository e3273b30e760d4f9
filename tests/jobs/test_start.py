"""How jobs start, and calls that a rank may make around the start."""

import re

from tfring.launcher.stages import Stage


def test_init(run_job):
    """Uses one job, because the imports of a rank take most of the time."""
    output = run_job(
        2,
        """
import os, sys, time
import mpi4py
mpi4py.rc.initialize = False
import tensorflow as tf
import tfring
from pathlib import Path
from tfring._core import monitor

def error_of(call):
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("no error")

def total():
    return int(tfring.allreduce(tf.constant(1), op=tfring.Sum))

# One rank's bad setting is every rank's error, and does no harm.
name = "TFRING_FUSION_THRESHOLD"
if os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")) == "1":
    os.environ[name] = "abc"
error = error_of(tfring.init)
assert isinstance(error, ValueError), error
print("told", error)
os.environ.pop(name, None)

world = tfring.ProcessSet([0])
tfring.init(process_sets=[world])
rank = tfring.rank()
assert total() == 2
assert tfring.global_process_set.mpi_comm.size == 2

# Once more: only what the job has not.
tfring.init(process_sets=[world, [1], [0]])
tfring.init(process_sets=[[1]])
assert world.included() == (rank == 0)
assert "a process set of" in str(
    error_of(lambda: tfring.init(process_sets=[tfring.ProcessSet([1])]))
)

# Nobody but this machine's ranks can talk to this one.
sockets = {os.readlink(fd) for fd in Path("/proc/self/fd").iterdir()
           if os.path.islink(fd)}
for table in ("tcp", "tcp6"):
    for line in Path("/proc/net", table).read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
            print("listens", fields[1])

def status_of_child(work):
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        work()
        sys.exit(5)
    for _ in range(600):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.1)
    os.kill(child, 9)
    raise AssertionError("the child hangs")

def collective():
    error = error_of(total)
    assert "forked from a rank" in str(error), error

def boom():
    raise ValueError("boom")

# A thread of this process serves its figures, and none in a child.
monitor._server = monitor.Server("127.0.0.1", 0)
assert status_of_child(tfring.rank) == 5
assert status_of_child(collective) == 5
assert status_of_child(boom) == 1
assert total() == 2
print("done")
""",
        options=["--verbose"],
    )
    assert output.count("done") == 2
    # At the end, where the seconds went.
    told = re.findall(r"^tfringrun: +\d+\.\d\d s until (.*)$", output, re.M)
    assert told == [stage.value for stage in Stage]
    name = "TFRING_FUSION_THRESHOLD"
    assert re.search(rf"^\[0\] told .* on rank 1: {name}", output, re.M)
    assert re.search(rf"^\[1\] told {name}", output, re.M)
    listeners = re.findall(r"listens (\w+):", output)
    assert not [a for a in listeners if a in ("0" * 8, "0" * 32)], output


def test_a_rank_that_does_not_come_to_mpi(run_job):
    """`MPI_Init` waits for it, and cannot be interrupted."""
    output = run_job(
        2,
        """
import os, time
if os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")) == "1":
    time.sleep(1000)
import tfring
tfring.init()
""",
        env={"TFRING_INIT_TIMEOUT_SECONDS": "2"},
        status=None,
    )
    assert "tfring.init: MPI has not started for 2 s." in output


def test_a_rank_that_does_not_come(run_job):
    output = run_job(
        2,
        """
import os, time
import tfring
from mpi4py import MPI
if MPI.COMM_WORLD.rank == 1:
    time.sleep(1000)
tfring.init()
""",
        env={"TFRING_INIT_TIMEOUT_SECONDS": "2"},
        status=1,
    )
    assert "TimeoutError: tfring.init takes all 2 ranks" in output
    assert "and rank 1 did not come" in output
