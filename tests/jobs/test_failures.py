"""Every rank gets the error of one, and nothing hangs."""

import os
import re
import signal
import sys

import pytest
from jobs import JOB_SECONDS, TFRINGRUN, mpirun, running, wait_until

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


@pytest.mark.thorough
def test_an_idle_engine_uses_no_cpu(run_job):
    output = run_job(
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
    idle = re.findall(r"idle ([\d.]+)", output)
    assert len(idle) == 2, output
    assert max(map(float, idle)) < 0.05


_DIFFERENT = "allreduce(tf.zeros(2 + tfring.rank()), name='x')"
_MODEL = """
import keras
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
def fit(loss, *callbacks):
    model.compile(tfring.DistributedOptimizer("sgd"), loss)
    first = tfring.callbacks.BroadcastGlobalVariablesCallback(0)
    data = np.ones((4, 1)), np.ones((4, 1))
    model.fit(*data, callbacks=[first, *callbacks], verbose=0)
"""
_SHAPES = "FailedPreconditionError: allreduce of '.*x': shapes differ. Rank"
_ENDS = {  # by where the error is: the script, and the last line's reason
    "fit": (
        _MODEL + "fit(lambda y, p: tf.reduce_mean(p) + "
        f"tf.reduce_sum(tfring.{_DIFFERENT}))",
        _SHAPES,
    ),
    "a function": (
        f"tf.function(lambda: tfring.{_DIFFERENT})()",
        _SHAPES,
    ),
    "an eager call": (
        f"tfring.{_DIFFERENT}",
        _SHAPES,
    ),
    "a callback": (
        _MODEL
        + """
def end(epoch, logs):
    raise OSError("the disk is full")
fit("mse", keras.callbacks.LambdaCallback(on_epoch_end=end))
""",
        "OSError: the disk is full",
    ),
    "user code": ("raise LookupError('no data')", "LookupError: no data"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("where", _ENDS)
def test_the_last_line_says_why(run_job, where):
    script, reason = _ENDS[where]
    output = run_job(
        2, f"{JOB}tfring.init()\nimport numpy as np\n{script}", status=1
    )
    last = output.strip().rpartition("\n")[2]
    assert re.fullmatch(rf"tfringrun: rank .* failed first: .*{reason}.*", last)
    assert not re.search(r"\{\{|\[Op:", last)


def test_a_missing_rank(run_job):
    output = run_job(
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
# Rank 2 ends while the others wait for it.
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
            # A rank that gets no core for this long counts as missing.
            "TFRING_STALL_SHUTDOWN_TIME_SECONDS": "8",
        },
    )
    assert output.count("done") == 3
    deadlock = (
        "ranks wait for one another: ranks 0 and 1 in allreduce of 'a' for "
        "rank 2; rank 2 in allreduce of 'b' for ranks 0 and 1."
    )
    for rank in range(3):
        assert f"warning on rank {rank}: {deadlock}" in output
    (stuck,) = (line for line in output.splitlines() if "[2] stuck" in line)
    for rank in (0, 1):
        assert f", and rank {rank} waits in allreduce of 'a'" in stuck
        said = [line for line in output.splitlines() if f"[{rank}] " in line]
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


# Stops a process until the unread data on stderr stops growing.
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
    # The launcher wakes up only after the rank has printed its error, as on a
    # busy machine. If the rank did not wait for the launcher, the launcher
    # would find the error and the end of the job at the same time.
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
    output = run_job(2, script, plain_mpirun=plain_mpirun, status=1)
    raised = re.search(r"ValueError: boom$", output, re.MULTILINE)
    assert raised, output
    # No output of another rank or of MPI is before the traceback.
    before = output[: raised.start()]
    assert len(re.findall(r"\bTraceback \(", before)) == 1
    assert not re.search(r"abort|mpirun|terminated", before, re.IGNORECASE)
    if not plain_mpirun:
        assert "[1] ValueError: boom" in output


@pytest.mark.parametrize("plain_mpirun", [False, True])
def test_ctrl_c_leaves_no_process(start, write_script, marker, plain_mpirun):
    launcher = mpirun(2) if plain_mpirun else [*TFRINGRUN, "-np", "2"]
    process = start(
        [*launcher, sys.executable, write_script(TRAINING.replace("END", ""))]
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
    # mpirun does not wait for the ends of all ranks, as tfringrun does.
    if plain_mpirun:
        wait_until(lambda: not running(marker))
    assert running(marker) == []


def test_tasks_of_srun_that_mpi_does_not_see(run, write_script):
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
    output = run([sys.executable, script], env={"SLURM_STEP_NUM_TASKS": "2"})
    assert "srun started 2 tasks" in output
    assert "srun --mpi=pmix" in output
    assert "size 1" in output
