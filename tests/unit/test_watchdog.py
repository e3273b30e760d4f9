"""A process that cannot look at the time is ended all the same."""

import signal

from programs import run_python

# Python's lock is held, as in `MPI_Init`.
_STUCK = """
import ctypes
from tfring._core import watchdog
with watchdog.ends_this_process({limit}, "it has taken too long"):
    ctypes.PyDLL(None).sleep({sleep})
print("done")
"""


def _run(limit, sleep):
    return run_python("-c", _STUCK.format(limit=limit, sleep=sleep))


def test_it_ends_a_process_that_is_stuck():
    job = _run(limit=0.5, sleep=1000)
    assert job.returncode == -signal.SIGTERM
    assert "it has taken too long" in job.stderr
    assert "done" not in job.stdout


def test_it_does_nothing_to_one_that_is_in_time():
    for limit in (0, 1000):
        job = _run(limit=limit, sleep=0)
        assert (job.returncode, job.stdout, job.stderr) == (0, "done\n", "")


def test_it_leaves_no_process():
    """Otherwise its process would have a child that it could wait for."""
    script = _STUCK.format(limit=100, sleep=0) + (
        "print(ctypes.CDLL(None).waitpid(-1, None, 1))"
    )
    assert run_python("-c", script).stdout == "done\n-1\n"
