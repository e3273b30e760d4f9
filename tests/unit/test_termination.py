"""SIGTERM in a worker of an elastic job, and in its children."""

import os
import signal
import threading
import types

import pytest

from tfring._core import runtime, tcp_job
from tfring.elastic import termination


@pytest.fixture
def elastic_job(monkeypatch):
    monkeypatch.setattr(runtime, "may_grow", lambda: True)
    monkeypatch.setattr(termination, "_is_asked", False)


def test_a_worker_is_asked(elastic_job):
    with termination.goes_with_a_commit():
        os.kill(os.getpid(), signal.SIGTERM)
        assert termination._is_asked
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_worker_that_waits_for_a_place_need_not_wait(
    elastic_job, monkeypatch
):
    calls = []
    launcher = types.SimpleNamespace(stop_waiting=lambda: calls.append(1))
    monkeypatch.setattr(tcp_job, "_launcher", launcher)
    with termination.goes_with_a_commit():
        os.kill(os.getpid(), signal.SIGTERM)
    assert calls == [1]


@pytest.mark.parametrize("attempt", range(20))
def test_its_children_end(elastic_job, attempt):
    """The signal may come before the child has done anything."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with termination.goes_with_a_commit():
        readable, writable = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(writable)
            os.read(readable, 1)  # Until the test is over.
            os._exit(0)
        os.kill(child, signal.SIGTERM)
        too_late = threading.Timer(60, os.kill, (child, signal.SIGKILL))
        too_late.start()
        _, status = os.waitpid(child, 0)
        too_late.cancel()
        os.close(writable)
        os.close(readable)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGTERM
    assert not termination._is_asked
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == blocked
