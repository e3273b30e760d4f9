"""The supervisor of a host: how it ends, binds and starts its workers."""

import subprocess

import pytest

from tfring.launcher.elastic import supervisor


@pytest.fixture
def start():
    """Returns a function that starts a process of a worker of a job."""
    started = []

    def start(job, worker):
        process = subprocess.Popen(
            ["sleep", "1000"],
            env={"TFRING_ELASTIC_JOB": job, "TFRING_ELASTIC_WORKER": worker},
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_the_end_of_a_worker_ends_none_of_another_job(start):
    """A worker may start an elastic job of its own, which has a w1, too."""
    worker, child = start("outer", "w1"), start("outer", "w1")
    others = [start("outer", "w2"), start("inner", "w1")]
    supervisor._kill("outer", "w1", worker.pid)
    assert [worker.wait(60), child.wait(60)] == [-9, -9]
    for each in others:
        each.terminate()
    assert [each.wait(60) for each in others] == [-15, -15]
