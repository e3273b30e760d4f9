"""What several of the tests need."""

import pytest
from places import first_of
from reductions import Recorder

from tfring._core import runtime
from tfring._gradients import reducer
from tfring._ops import chains


@pytest.fixture
def recorder(monkeypatch):
    recorder = Recorder()
    monkeypatch.setattr(runtime, "_job", first_of(2))
    monkeypatch.setattr(runtime, "fusion_threshold_bytes", lambda: 64)
    monkeypatch.setattr(runtime, "overlap", lambda: True)
    monkeypatch.setattr(chains, "start_allreduce", recorder.start_allreduce)
    monkeypatch.setattr(chains, "finish", recorder.finish)
    monkeypatch.setattr(reducer, "allreduce", recorder.allreduce)
    monkeypatch.setattr(reducer, "start_slices", recorder.start_slices)
    monkeypatch.setattr(reducer, "finish_slices", recorder.finish_slices)
    return recorder
