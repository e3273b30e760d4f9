"""The supervisor of a host: how it ends, binds and starts its workers."""

import math
import os
import subprocess
import threading
import types

import pytest
from moved_clock import Clock

from tfring.launcher.elastic import (
    launcher_channels,
    supervisor,
    worker_process,
)
from tfring.rendezvous import wire
from tfring.rendezvous.handshake import HandshakeError


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
    worker_process.kill("outer", "w1", worker.pid)
    assert [worker.wait(60), child.wait(60)] == [-9, -9]
    for each in others:
        each.terminate()
    assert [each.wait(60) for each in others] == [-15, -15]


@pytest.fixture
def reach(monkeypatch):
    """Returns a function that tries for 600 s, while each attempt fails.

    It returns the seconds until the launcher was reached.
    """
    clock = Clock()

    def pause(seconds):
        clock.now += seconds

    # `time.sleep` itself is called by other threads, too.
    moving = types.SimpleNamespace(sleep=pause)
    monkeypatch.setattr(launcher_channels, "time", moving)

    def reach(error, until=math.inf):
        def connect(address, token, hello, timeout_seconds):
            clock.now += timeout_seconds
            if clock.now < until:
                raise error

        monkeypatch.setattr(wire, "connect", connect)
        launcher_channels.reach(("head", 9), "", {}, 600.0, clock)
        return clock.now

    reach.clock = clock
    return reach


@pytest.mark.parametrize("error", [TimeoutError, ConnectionRefusedError])
def test_a_task_tries_for_its_time_to_reach_the_launcher(reach, error):
    assert 300 <= reach(error, until=300) < 340
    reach.clock.now = 0.0
    with pytest.raises(error):
        reach(error)
    assert 600 <= reach.clock.now < 640


def test_a_task_of_another_job_does_not_try_again(reach):
    with pytest.raises(HandshakeError):
        reach(HandshakeError)
    assert reach.clock.now == launcher_channels._CONNECT_SECONDS


def test_threads_that_the_script_has_bound_stay_where_they_are():
    first, *rest = sorted(os.sched_getaffinity(0))
    if not rest:
        pytest.skip("one core")
    found = {}
    done = threading.Barrier(3)

    def run(name, cpus):
        os.sched_setaffinity(0, cpus)
        done.wait(60)  # Both are bound.
        done.wait(60)  # Both have been bound again.
        found[name] = os.sched_getaffinity(0)

    threads = [
        threading.Thread(target=run, args=each)
        for each in (("ours", {first}), ("own", {rest[0]}))
    ]
    for thread in threads:
        thread.start()
    done.wait(60)
    worker_process.rebind(os.getpid(), {first}, {first, rest[0]})
    done.wait(60)
    for thread in threads:
        thread.join(60)
    assert found == {"ours": {first, rest[0]}, "own": {rest[0]}}


@pytest.mark.parametrize(
    ("owner", "name"), [(subprocess, "Popen"), (threading.Thread, "start")]
)
def test_a_worker_that_cannot_be_started_harms_no_other(
    monkeypatch, owner, name
):
    def fail(*arguments, **options):
        raise RuntimeError("no process is left")

    said = []
    host = object.__new__(supervisor.Supervisor)
    host._workers, host._forwarders, host._environment = {}, [], {}
    host._configuration = {"command": ["sleep", "1000"]}
    host._directory = "/"
    host._control = types.SimpleNamespace(send=said.append)
    started, popen = [], subprocess.Popen

    def start(*arguments, **options):
        started.append(popen(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(owner, name, fail)
    order = {"worker": "w1", "environment": {}}
    host._start({**order, "first_slot": 0, "cores_shared_by": 1})
    [message] = said
    assert (message["kind"], message["worker"]) == ("exited", "w1")
    assert message["how"] == "it cannot be started: no process is left"
    assert host._workers == {}
    # The worker whose output no thread can forward was killed and waited for.
    assert len(started) == (owner is threading.Thread)
    assert [each.returncode for each in started] == [-9] * len(started)
