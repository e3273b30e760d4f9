"""The result of a function of `run`, for workers that join after it."""

import json

import numpy as np
import pytest
from absl import logging

import tfring
from tfring._core import runtime
from tfring._core.launcher_link import Over
from tfring.elastic import running
from tfring.elastic.state import LostStateError


def deep():
    value = []
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (None, None),
        ({"loss": [0.5, 1]}, {"loss": [0.5, 1]}),
        ([np.float32(0.5), np.arange(2)], [0.5, [0, 1]]),
        ("x" * (1 << 19), "x" * (1 << 19)),
    ],
)
def test_a_later_worker_gets_the_result(result, expected):
    answer, missing = running._as_json(result)
    assert missing == ""
    assert running._result_of_others(Over(answer)) == expected


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (
            lambda: [0.123456789] * 100_000,
            "has 1300012 bytes as JSON, more than 1048576",
        ),
        (object, "JSON cannot hold its result"),
        (deep, "JSON cannot hold its result"),
    ],
)
def test_a_result_that_is_not_kept_is_named(make, why):
    answer, missing = running._as_json(make())
    assert why in missing
    assert len(answer) < 100
    with pytest.raises(RuntimeError, match=f"{why}.* Return None"):
        running._result_of_others(Over(answer))


@pytest.mark.usefixtures("initialized")
def test_the_next_function_warns_of_it(monkeypatch):
    told, warned = [], []
    monkeypatch.setattr(running, "_missing_result", "")
    monkeypatch.setattr(runtime, "may_grow", lambda: True)
    monkeypatch.setattr(
        runtime, "tell_of_training", lambda phase, **more: told.append(more)
    )
    monkeypatch.setattr(
        logging, "warning", lambda text, *values: warned.append(text % values)
    )
    state = tfring.elastic.ObjectState(tfring.broadcast_object)
    for result in (1, object(), 2, 3):
        tfring.elastic.run(lambda state, result=result: result)(state)
    results = [json.loads(each["result"]) for each in told if "result" in each]
    assert [*results[0]] == [*results[2]] == ["result"]
    assert [*results[1]] == ["missing"]
    assert len(warned) == 1
    assert "JSON cannot hold its result" in warned[0]


def test_a_lost_state_ends_the_training_although_others_have_left(monkeypatch):
    monkeypatch.setattr(runtime, "is_initialized", lambda: True)
    monkeypatch.setattr(runtime, "reason_of_end", lambda: "rank 1 is lost")
    assert running._is_of_the_job(RuntimeError("of a collective"))
    assert not running._is_of_the_job(LostStateError("no copies"))
