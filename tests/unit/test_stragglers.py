"""The rank that the others wait for is found, and said in words."""

import itertools
import json

import pytest
import tensorflow as tf

from tfring._core import monitor, runtime
from tfring._ops import stragglers


def sample(
    wait=0.0, *, given_in=0.0, host="node", steps=50, requests=200, parts=()
):
    """A rank's sample of steps of 0.1 s, with seconds of a step or request."""
    return stragglers.Sample(
        host=host,
        seconds=0.1 * steps,
        steps=steps,
        requests=requests,
        wait_seconds=wait * requests,
        input_seconds=given_in * steps,
        parts=[*parts],
    )


def test_its_input_keeps_a_rank():
    verdict = stragglers.verdict_on(
        {
            0: sample(0.031, given_in=0.001),
            1: sample(0.03, given_in=0.002),
            2: sample(0.033, given_in=0.001),
            3: sample(0.001, given_in=0.029, host="node2"),
        }
    )
    assert (verdict.rank, verdict.waits_for_input) == (3, True)
    assert verdict.text == (
        "rank 3 (node2) is behind. In the last 50 steps the other ranks waited "
        "for it for 30 ms of each step of 100 ms. It waits for its input "
        "pipeline for 28 ms longer than the median of the others."
    )


def test_its_computation_keeps_a_rank():
    # Its input is slower, but by less than half of what it is late.
    verdict = stragglers.verdict_on(
        {0: sample(0.0, given_in=0.01), 1: sample(0.04), 2: sample(0.05)}
    )
    assert (verdict.rank, verdict.waits_for_input) == (0, False)
    assert "so its computation does" in verdict.text
    assert "40 ms of each step of 100 ms" in verdict.text


@pytest.mark.parametrize(
    ("parts", "share"),
    [
        pytest.param(([(4, 0.2)] * 20, [(4, 0.0)] * 20), "100%", id="all"),
        pytest.param(
            # In 17 of 18 parts rank 2 is the last; two more parts say nothing.
            (
                [(2, 0.1)] * 17 + [(2, 0.0), (0, 0.0), (2, 0.1)],
                [(4, 0.1)] * 18 + [(4, 0.1), (0, 0.0)],
            ),
            "94%",
            id="most",
        ),
        pytest.param(([(1, 1.0)] * 9, [(1, 0.0)] * 9), None, id="too few"),
    ],
)
def test_how_often_a_rank_was_the_last(parts, share):
    waits = 0.05, 0.0
    verdict = stragglers.verdict_on(
        {
            rank: sample(wait, parts=own)
            for rank, (wait, own) in enumerate(zip(waits, parts, strict=True))
        }
    )
    said = f"100 ms. It was the last in {share} of that time. Its input"
    assert (said in verdict.text) == (share is not None)
    assert ("the last in" in verdict.text) == (share is not None)


@pytest.mark.parametrize(
    "waits",
    [
        pytest.param([0.03, 0.03, 0.03], id="late in turn"),
        pytest.param([0.0, 0.0, 0.0], id="as fast as each other"),
        pytest.param([0.001, 0.004, 0.005], id="late by 4%"),
        pytest.param([0.0, 0.0, 0.09], id="one is early"),
    ],
)
def test_no_rank_is_behind(waits):
    samples = {rank: sample(wait) for rank, wait in enumerate(waits)}
    assert stragglers.verdict_on(samples) is None


class Job:
    """Stands for the other ranks, and for time, which waiting moves."""

    def __init__(self, monkeypatch, looks, samples):
        self.now = 100.0
        self.counted = []
        self.looks_left = looks
        self.samples = itertools.cycle(samples)
        self.gathered_at = []
        monkeypatch.setattr(runtime, "rank", lambda: 0)
        monkeypatch.setattr(runtime, "reason_of_end", lambda: None)
        monkeypatch.setattr(monitor, "current", lambda: NOTHING)
        for name in ("start_counting", "stop_counting"):
            monkeypatch.setattr(
                monitor, name, lambda name=name: self.note(name)
            )
        self.watch = stragglers.StragglerWatch(
            60.0,
            clock=lambda: self.now,
            wait=self.wait,
            gather=self.gather,
        )

    def note(self, name):
        self.counted.append((name.partition("_")[0], self.now))

    def wait(self, seconds):
        self.now += max(seconds, 0)
        return self.looks_left == 0

    def gather(self, own):
        json.dumps(own)
        self.parts = own["parts"]
        self.looks_left -= 1
        self.gathered_at.append(self.now)
        samples = next(self.samples)
        if isinstance(samples, Exception):
            raise samples
        return {rank: vars(each) for rank, each in samples.items()}


NOTHING = monitor.Statistics(*[0] * 2, *[0] * 7, {}, {}, 0.0)
BEHIND = {0: sample(0.05), 1: sample(0.0)}
EVEN = {0: sample(0.01), 1: sample(0.01)}


def test_ranks_count_in_the_last_tenth_of_each_period(monkeypatch):
    job = Job(monkeypatch, 2, [EVEN])
    job.watch.run()
    assert job.parts == [(0, 0)] * 20
    assert job.gathered_at == [160.0, 220.0]
    assert job.counted[:4] == [
        ("start", 154.0),
        ("stop", 160.0),
        ("start", 214.0),
        ("stop", 220.0),
    ]


def test_ranks_with_few_steps_go_on_counting(monkeypatch):
    few = {0: sample(0.05), 1: sample(0.0, steps=3)}
    job = Job(monkeypatch, 3, [few, few, EVEN])
    job.watch.run()
    assert len(job.parts) == 3 * 20
    assert job.gathered_at == [160.0, 220.0, 280.0]
    assert job.counted[:2] == [("start", 154.0), ("stop", 280.0)]


def test_a_verdict_is_said_again_after_ten_looks(monkeypatch, caplog):
    job = Job(monkeypatch, 21, [BEHIND])
    job.watch.run()
    assert caplog.text.count("rank 1 (node) is behind") == 3
    assert caplog.text.count("TFRING_STRAGGLERS=0 turns this off.") == 3


def test_another_verdict_is_said_at_once(monkeypatch, caplog):
    for_input = {0: sample(0.05), 1: sample(0.0, given_in=0.05)}
    job = Job(monkeypatch, 3, [BEHIND, for_input, for_input])
    job.watch.run()
    assert caplog.text.count("is behind") == 2


def test_only_rank_0_says_it(monkeypatch, caplog):
    job = Job(monkeypatch, 1, [BEHIND])
    monkeypatch.setattr(runtime, "rank", lambda: 1)
    job.watch.run()
    assert "is behind" not in caplog.text


def test_a_rank_that_cannot_take_part_does_so_the_next_time(
    monkeypatch, caplog
):
    job = Job(monkeypatch, 2, [RuntimeError("rank 0 has joined"), BEHIND])
    job.watch.run()
    assert job.gathered_at == [160.0, 220.0]
    assert "is behind" in caplog.text


def test_a_program_without_eager_operations_is_left_alone(monkeypatch):
    job = Job(monkeypatch, 9, [BEHIND])
    with tf.Graph().as_default():
        job.watch.run()
    assert job.gathered_at == job.counted == []


def test_it_ends_with_the_job(monkeypatch):
    job = Job(monkeypatch, 9, [RuntimeError("rank 1 has shut down")])
    monkeypatch.setattr(runtime, "reason_of_end", lambda: "it has shut down")
    job.watch.run()
    assert len(job.gathered_at) == 1
    assert [what for what, _ in job.counted] == ["start", "stop"]
