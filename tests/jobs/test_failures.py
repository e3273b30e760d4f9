"""Every rank gets the error of one, and nothing hangs."""

import os
import re
import signal
import sys
import uuid

import pytest
from jobs import JOB_SECONDS, TFRINGRUN, mpirun, running

JOB = """
import os, re, sys, time
import tensorflow as tf
import tfring

def error_of(call):
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("no error")

# What a rank has come to, and the others wait for.
def has_come_to(event):
    open(f"{event}.{tfring.rank()}", "w").close()

def wait_until(event, *ranks):
    while not all(os.path.exists(f"{event}.{rank}") for rank in ranks):
        time.sleep(0.01)
"""


def test_errors_that_a_job_survives(run_job):
    """One job, since what is shown is that it goes on after each."""
    job = run_job(
        3,
        JOB
        + """
# Before init.
for call in (tfring.rank, tfring.size, lambda: tfring.allreduce(1.0)):
    error = error_of(call)
    assert isinstance(error, tfring.NotInitializedError), error
    assert "tfring.init()" in str(error)
tfring.shutdown()

tfring.init()
rank = tfring.rank()

def sum_of_ranks():
    return int(tfring.allreduce(tf.constant(rank), op=tfring.Sum))

def jit_allreduce():
    x = tf.ones([2 + (rank == 2)])
    tf.function(
        lambda x: tfring.allreduce(x, name="jit"), jit_compile=True
    )(x)

one = tf.ones([2])
mismatches = {
    "dtypes": lambda: tfring.allreduce(
        tf.cast(one, tf.int32 if rank == 2 else tf.float32),
        op=tfring.Sum, name="dtypes"),
    "shapes": lambda: tfring.allreduce(
        tf.ones([2, 3 + (rank == 2)]), name="shapes"),
    "ops": lambda: tfring.allreduce(
        one, op=tfring.Max if rank == 2 else tfring.Sum, name="ops"),
    "factors": lambda: tfring.allreduce(
        one, prescale_factor=1.0 + (rank == 2), name="factors"),
    "root ranks": lambda: tfring.broadcast(one, rank // 2, name="root ranks"),
    "collectives": lambda: (
        tfring.allgather(one, name="collectives") if rank == 2
        else tfring.broadcast(one, 0, name="collectives")),
    "numbers of tensors": lambda: tfring.grouped_allreduce(
        [one] * (2 + (rank == 2)), name="numbers of tensors"),
    "shapes of rows": lambda: tfring.allgather(
        tf.ones([5, 2 + (rank == 2)]), name="shapes of rows"),
    "function": lambda: tf.function(
        lambda: tfring.allreduce(tf.ones([2 + (rank == 2)]), name="function")
    )(),
    "jit": jit_allreduce,
}
for name, call in mismatches.items():
    error = error_of(call)
    # Without what TensorFlow adds about the op.
    text = re.search("[a-z]+ of '.*every rank[.]", str(error))
    text = text or [str(error)]
    print(f"{name}|{type(error).__name__}|{text[0]}".replace("\\n", " "))
    assert sum_of_ranks() == 3, name

# Left, and joined again.
tfring.shutdown()
error = error_of(sum_of_ranks)
assert isinstance(error, tfring.NotInitializedError), error
assert not tfring.is_initialized()
tfring.init()
assert sum_of_ranks() == 3
print("done")
""",
    )
    assert job.returncode == 0, job.stdout
    # The difference, the value of ranks 0 and 1, the value of rank 2.
    expected = {
        "dtypes": ("dtypes", "float32", "int32"),
        "shapes": ("shapes", "float32 (2, 3)", "float32 (2, 4)"),
        "ops": ("ops", "sum", "max"),
        "factors": ("factors", "prescale 1,", "prescale 2,"),
        "root ranks": ("root ranks", "0", "1"),
        "collectives": ("collectives", "broadcast", "allgather"),
        "numbers of tensors": ("numbers of tensors", "2 tensors", "3 tensors"),
        "shapes of rows": ("shapes", "float32 (5, 2)", "float32 (5, 3)"),
        "function": ("shapes", "float32 (2,)", "float32 (3,)"),
        "jit": ("shapes", "float32 (2,)", "float32 (3,)"),
    }
    for name, (what, sent_by_most, sent_by_2) in expected.items():
        told = re.findall(
            rf"^\[(\d)\] {name}\|(\w+)\|(.*)$", job.stdout, re.MULTILINE
        )
        assert sorted(rank for rank, _, _ in told) == ["0", "1", "2"], name
        _, kind, text = told[0]
        assert {(kind, text)} == {(kind, text) for _, kind, text in told}
        assert kind == "FailedPreconditionError", (name, text)
        assert f"'{name}" in text
        assert f"{what} differ." in text
        assert re.search(rf"ank [01] sent {re.escape(sent_by_most)}", text)
        assert re.search(rf"ank 2 sent {re.escape(sent_by_2)}", text)
    assert job.stdout.count("done") == 3


@pytest.mark.thorough
def test_an_idle_engine_uses_no_cpu(run_job):
    job = run_job(
        2,
        JOB
        + """
tfring.init()
tfring.barrier()
begin = time.process_time()
time.sleep(10)
idle = time.process_time() - begin
tfring.barrier()
print("idle", idle)
""",
    )
    idle = re.findall(r"idle ([\d.]+)", job.stdout)
    assert len(idle) == 2, job.stdout
    assert max(map(float, idle)) < 0.05


def test_a_missing_rank(run_job):
    job = run_job(
        3,
        JOB
        + """
tfring.init()
rank = tfring.rank()
for step in range(20):  # so that a schedule is cached
    tfring.allreduce(tf.ones([2]), name="lonely")
if rank != 2:
    error = error_of(lambda: tfring.allreduce(tf.ones([2]), name="lonely"))
    print("got", str(error).replace("\\n", " "))
    has_come_to("an error")
wait_until("an error", 0, 1)
assert int(tfring.allreduce(tf.constant(1), op=tfring.Sum, name="next")) == 3
# Ranks that wait for one another; the last one comes first.
if rank == 2:
    has_come_to("b")
wait_until("b", 2)
error = error_of(
    lambda: tfring.allreduce(tf.ones([2]), name="b" if rank == 2 else "a"))
print("stuck", str(error).replace("\\n", " "))
has_come_to("another error")
# And one that ends early.
if rank != 2:
    error = error_of(lambda: tfring.allreduce(tf.ones([2]), name="late"))
    print("left", str(error).replace("\\n", " "))
else:
    wait_until("another error", 0, 1)
    tfring.shutdown()
print("done")
""",
        env={
            "TFRING_STALL_CHECK_TIME_SECONDS": "2",
            # A rank that has no core for so long counts as missing.
            "TFRING_STALL_SHUTDOWN_TIME_SECONDS": "8",
        },
    )
    assert job.returncode == 0, job.stdout
    assert job.stdout.count("done") == 3
    deadlock = (
        "ranks wait for one another: ranks 0 and 1 in allreduce of 'a' for "
        "rank 2; rank 2 in allreduce of 'b' for ranks 0 and 1."
    )
    for rank in range(3):
        assert f"warning on rank {rank}: {deadlock}" in job.stdout
    (stuck,) = (line for line in job.stdout.splitlines() if "[2] stuck" in line)
    for rank in (0, 1):
        assert f", and rank {rank} waits in allreduce of 'a'" in stuck
        said = [
            line for line in job.stdout.splitlines() if f"[{rank}] " in line
        ]
        warnings = [line for line in said if "warning" in line]
        assert "'lonely'" in warnings[0]
        assert "for rank 2; ranks 0 and 1 asked for it" in warnings[0]
        (got,) = (line for line in said if line.startswith(f"[{rank}] got"))
        assert "'lonely'" in got
        assert "for rank 2" in got
        (left,) = (line for line in said if line.startswith(f"[{rank}] left"))
        assert "rank 2 has shut down" in left


TRAINING = (
    JOB
    + """
tfring.init()
rank = tfring.rank()
for step in range(10**9):
    tfring.allreduce(tf.ones([1000]))
    if step == 10:
        print("training", flush=True)
        END
"""
)


# Stops a process until what lies on stderr, unread, grows no more.
WAKE = """
import fcntl, os, signal, sys, termios, time

launcher = int(sys.argv[1])
os.kill(launcher, signal.SIGSTOP)
open("stopped", "w").close()
nothing = before = bytes(4)
for _ in range(600):
    time.sleep(0.1)
    unread = fcntl.ioctl(2, termios.FIONREAD, nothing)
    if unread == before != nothing:
        break
    before = unread
os.kill(launcher, signal.SIGCONT)
"""


@pytest.mark.parametrize("plain_mpirun", [False, True])
def test_an_exception_on_one_rank(run_job, plain_mpirun):
    # The launcher looks up when the rank has said why it ends, and so late, as
    # on a busy machine. A rank that did not wait for it would have its words
    # and the job's end lie before it together.
    script = f"WAKE = {WAKE!r}\n" + TRAINING.replace(
        "END",
        """
        if rank == 1:
            import subprocess
            subprocess.Popen([sys.executable, "-c", WAKE, str(os.getppid())])
            while not os.path.exists("stopped"):
                time.sleep(0.01)
            raise ValueError('boom')
""",
    )
    job = run_job(2, script, plain_mpirun=plain_mpirun)
    assert job.returncode == 1, job.stdout
    raised = re.search(r"ValueError: boom$", job.stdout, re.MULTILINE)
    assert raised, job.stdout
    # Nothing of the other ranks, or of MPI, before the traceback.
    before = job.stdout[: raised.start()]
    assert len(re.findall(r"\bTraceback \(", before)) == 1
    assert not re.search(r"abort|mpirun|terminated", before, re.IGNORECASE)
    if not plain_mpirun:
        assert "[1] ValueError: boom" in job.stdout


def test_a_killed_rank(run_job):
    script = TRAINING.replace(
        "END",
        "if rank == 1: os.kill(os.getpid(), 9)",
    )
    job = run_job(2, script)
    assert "training" in job.stdout
    assert job.returncode == 137, job.stdout


@pytest.mark.parametrize("plain_mpirun", [False, True])
def test_ctrl_c_leaves_no_process(start, write_script, plain_mpirun):
    marker = f"TFRING_TEST_JOB={uuid.uuid4()}"
    launcher = mpirun(2) if plain_mpirun else [*TFRINGRUN, "-np", "2"]
    process = start(
        [*launcher, sys.executable, write_script(TRAINING.replace("END", ""))],
        env=dict([marker.split("=")]),
    )
    output = ""
    while output.count("training") < 2:
        line = process.stdout.readline()
        assert line, output
        output += line
    # A terminal signals all processes in the foreground.
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=JOB_SECONDS)
    assert process.returncode == (1 if plain_mpirun else 130)
    assert running(marker) == []


def test_tasks_of_srun_that_mpi_does_not_see(start, write_script):
    script = write_script("""
        import tfring
        from mpi4py import MPI

        try:
            tfring.init()
        except RuntimeError as error:
            print(error)
        tfring.init(MPI.COMM_SELF)
        print("size", tfring.size())
    """)
    job = start([sys.executable, script], env={"SLURM_STEP_NUM_TASKS": "2"})
    output, _ = job.communicate(timeout=JOB_SECONDS)
    assert job.returncode == 0, output
    assert "srun started 2 tasks" in output
    assert "srun --mpi=pmix" in output
    assert "size 1" in output
