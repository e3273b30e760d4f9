"""When signals and failures end a job, by a clock that the tests move."""

import signal
from signal import SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2

import pytest

from tfring.launcher import ending
from tfring.launcher.ending import Ending
from tfring.launcher.wrapper import RankStates, Report


class Job:
    """A job of two ranks, at a time that tests set."""

    def __init__(self, *, started=(0, 1), grace_seconds=30.0):
        self.states = RankStates()
        self.ending = Ending(self.states, 2, grace_seconds)
        self.now = 100.0
        for rank in started:
            self.report(rank, "started", 0)

    def report(self, rank, word, status):
        self.states.take(Report(rank, word, status, "node1"))

    def signal(self, number):
        return self.ending.take_signal(number, self.now)

    def stops(self, launcher_failed=False):
        return self.ending.is_stop_due(
            self.now, launcher_failed=launcher_failed
        )

    def status(self, launcher_status=0):
        return self.ending.status(launcher_status, launcher_failed=False)


@pytest.mark.parametrize("number", [SIGUSR1, SIGUSR2])
def test_warnings_of_batch_systems_reach_the_ranks(number):
    job = Job(started=[0])
    job.signal(number)
    assert job.ending.signals_for_ranks() == []
    job.report(1, "started", 0)
    assert job.ending.signals_for_ranks() == [number]
    assert job.ending.signals_for_ranks() == []
    job.now += 1e6
    assert not job.stops()
    assert job.status() == 0


@pytest.mark.parametrize(
    ("number", "passed_on"),
    [(SIGTERM, SIGTERM), (SIGINT, SIGINT), (SIGHUP, SIGTERM)],
)
def test_ranks_have_a_grace(number, passed_on):
    job = Job(grace_seconds=7.0)
    assert f"{signal.Signals(number).name}: the ranks have 7 s" in job.signal(
        number
    )
    assert job.ending.signals_for_ranks() == [passed_on]
    # If a rank ends with an error, the others still have their grace.
    job.report(1, "exit", 1)
    job.now += 6.9
    assert not job.stops()
    job.now += 0.2
    assert job.stops()
    assert not job.stops()
    assert not job.ending.is_kill_due(job.now)
    job.now += ending.STOP_GRACE_SECONDS
    assert job.ending.is_kill_due(job.now)
    for rank in range(2):
        job.report(rank, "exit", 137)
    assert job.status() == 128 + number


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [((0, 0), 0), ((85, 85), 85), ((143, 143), 143), ((0, 1), 143)],
)
def test_the_status_of_ranks_that_end_within_the_grace(statuses, expected):
    job = Job()
    job.signal(SIGTERM)
    assert not job.stops()
    for rank, status in enumerate(statuses):
        job.report(rank, "exit", status)
    # The processes around the ranks wait for it.
    assert job.stops()
    assert job.status(1) == expected


def test_a_second_signal_ends_the_job_at_once_and_a_third_kills():
    job = Job()
    job.signal(SIGINT)
    # `timeout` and closed terminals send signals twice.
    job.signal(SIGINT)
    job.now += 1
    job.signal(SIGHUP)
    assert not job.stops()
    job.signal(SIGINT)
    assert job.stops()
    assert not job.ending.is_kill_due(job.now)
    job.signal(SIGTERM)
    assert job.ending.is_kill_due(job.now)
    assert job.ending.signals_for_ranks() == [SIGINT]
    assert job.status() == 130


@pytest.mark.parametrize("state", ["starts", "fails", "has no grace"])
def test_no_grace_without_ranks_that_could_save(state):
    job = Job(
        started=[0] if state == "starts" else [0, 1],
        grace_seconds=0.0 if state == "has no grace" else 30.0,
    )
    if state == "fails":
        job.report(1, "exit", 3)
        assert not job.stops()
    assert job.signal(SIGTERM) == ""
    assert job.stops()
    assert job.ending.signals_for_ranks() == []
    assert job.status() == 143


def test_a_failure_ends_the_job_soon():
    job = Job()
    job.report(1, "exit", 3)
    assert not job.stops()
    job.now += ending.FAILURE_GRACE_SECONDS
    assert job.stops()
    assert job.status(1) == 3


@pytest.mark.parametrize(
    ("error", "status"),
    [(BrokenPipeError(), 141), (OSError(28, "No space left on device"), 1)],
)
def test_an_output_that_cannot_be_written_ends_the_job(error, status):
    job = Job()
    job.ending.take_write_error(error, job.now)
    assert job.stops()
    assert job.status() == status
    assert job.ending.is_by_request() == (status == 141)


def test_a_full_output_takes_no_grace_away():
    job = Job()
    job.signal(SIGTERM)
    job.ending.take_write_error(OSError(28, "No space left"), job.now)
    assert not job.stops()
    assert not job.ending.is_reader_late(job.now)
    job.now += ending.READER_GRACE_SECONDS + 0.1
    assert job.ending.is_reader_late(job.now)
