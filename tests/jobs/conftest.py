"""Starts whole jobs from a test, and bounds them in time."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from elastic_launches import Elastic
from jobs import JOB_SECONDS, LEAN, TFRINGRUN, mpirun, running


def _heed_interrupts():
    # A shell's job in the background ignores them, and so does all it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _is_rank(pid):
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    names = {each.partition(b"=")[0] for each in environment.split(b"\0")}
    return bool(names & {b"TFRING_ELASTIC_WORKER", b"OMPI_COMM_WORLD_RANK"})


@pytest.fixture
def marker(tmp_path):
    """A variable in the environment of all that `start` starts."""
    return f"TFRING_TEST_JOB={tmp_path}"


@pytest.fixture
def start(tmp_path, marker):
    """Returns a function that starts a command line and gives its `Popen`.

    `popen` may be that of a `HostNetwork`. stdout and stderr are one pipe.
    Processes that outlive the test are killed, and their output is printed,
    with the stacks of the ranks.
    """
    started = []

    def start(
        command, *, env=None, stdin=subprocess.DEVNULL, popen=subprocess.Popen
    ):
        process = popen(
            [str(word) for word in command],
            env={
                **os.environ,
                "TF_CPP_MIN_LOG_LEVEL": "2",
                # The tests have more ranks than cores.
                "TF_NUM_INTRAOP_THREADS": "1",
                "PYTHONFAULTHANDLER": "1",
                **dict([marker.split("=")]),
                **LEAN,
                **(env or {}),
            },
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=tmp_path,
            start_new_session=True,
            preexec_fn=_heed_interrupts,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            for pid in running(marker):
                if _is_rank(pid):
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGABRT)
            process.send_signal(signal.SIGTERM)
            try:
                output, _ = process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                output, _ = process.communicate()
            print("still running at the end of the test, which wrote:", output)


@pytest.fixture
def run(start):
    """Returns a function that runs a command line to its end.

    It returns the output, and expects the exit status `status`; None is any but
    0.
    """

    def run(command, *, status=0, env=None, timeout=JOB_SECONDS):
        process = start(command, env=env)
        output, _ = process.communicate(timeout=timeout)
        ended = process.returncode
        assert ended != 0 if status is None else ended == status, output
        return output

    return run


@pytest.fixture
def run_job(run, write_script):
    """Returns a function that runs a script on some ranks, as `run` does."""

    def run_job(ranks, script, *, options=(), plain_mpirun=False, **how):
        launcher = [*TFRINGRUN, *options, "-np", ranks]
        if plain_mpirun:
            launcher = mpirun(ranks)
        return run([*launcher, sys.executable, write_script(script)], **how)

    return run_job


@pytest.fixture
def write_script(tmp_path):
    """Returns a function that writes a Python program and gives its path."""

    def write_script(text):
        path = tmp_path / f"script{len(list(tmp_path.glob('*.py')))}.py"
        path.write_text(textwrap.dedent(text))
        return path

    return write_script


@pytest.fixture
def elastic(start):
    """Returns a function that starts `tfringrun --elastic` with options.

    It takes the workers' arguments, and variables of the environment.
    """
    jobs = []

    def elastic(options, *arguments, launcher=TFRINGRUN, **env):
        jobs.append(Elastic(start, options.split(), arguments, env, launcher))
        return jobs[-1]

    yield elastic
    for job in jobs:
        job.process.kill()
        for pid in running(job.marker):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
