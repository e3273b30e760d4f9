"""The rules of a job whose ranks do not change: `FixedMembership`."""

import signal
import types

import pytest
from elastic_job import Job

from tfring.launcher.elastic.driver import Driver


@pytest.fixture
def job():
    """Two ranks on one machine, which are started, and not yet ready."""
    return Job({"a": 2}, minimum=2, replaces=False, init_seconds=60.0)


def test_ranks_that_return_end_the_job_well(job):
    job.start(["w1", "w2"])
    job.end("w1")
    assert job.ended is None
    job.end("w2")
    assert job.ended == ""


def test_ranks_need_not_call_init(job):
    job.exited("w2", 0, "exit status 0")
    job.wait(3600)
    assert job.ended is None
    job.exited("w1", 0, "exit status 0")
    assert job.ended == ""


def test_the_first_loss_ends_the_job(job):
    job.start(["w1", "w2"])
    job.exited("w2", 137, "killed by SIGKILL")
    assert job.ended == "rank 1 (host a) is lost: killed by SIGKILL"
    assert job.membership.first_failure.name == "w2"
    job.wait(60)
    assert [*job.host_of] == ["w1", "w2"], "nobody is replaced"


def test_a_rank_that_fails_before_init_ends_the_job(job):
    job.be_ready("w1")
    job.exited("w2", 1, "exit status 1")
    assert job.ended == "rank 1 (host a) is lost: exit status 1"
    assert job.membership.first_failure.rank == 1


def test_an_exception_is_the_reason(job):
    job.start(["w1", "w2"])
    job.error("w1", "KeyError: 'column'")
    assert job.ended == "rank 0 (host a) is lost: KeyError: 'column'"


def test_a_lost_host_ends_the_job(job):
    job.host_lost("a", "host a was lost")
    assert job.ended == "rank 0 (host a) is lost: host a was lost"


def test_a_rank_does_not_wait_for_one_that_has_ended(job):
    job.be_ready("w1")
    job.exited("w2", 0, "exit status 0")
    assert job.ended == (
        "rank 1 has ended, and rank 0 waits for it in tfring.init."
    )


def test_ranks_do_not_wait_for_ever_for_one(job):
    job.be_ready("w2")
    job.wait(59)
    assert job.ended is None
    job.wait(2)
    assert job.ended == (
        "rank 0 has not come to tfring.init for 60 s, and rank 1 waits for it "
        "(TFRING_INIT_TIMEOUT_SECONDS)."
    )


def test_ranks_may_call_init_again(job):
    job.start(["w1", "w2"])
    job.all_ready(["w1", "w2"], 1, steps=-1)
    members = job.got("w1", "form")["members"]
    assert [each["worker"] for each in members] == ["w1", "w2"]
    assert job.ended is None


def test_nothing_starts_before_all_have_a_place():
    job = Job({}, minimum=3, replaces=False, replacement_seconds=60.0)
    for place in ("x/0", "y/1"):
        job.table.add(place, 1, place[0])
        job.table.came_up(place)
        job.act()
    assert job.host_of == {}
    job.wait(61)
    assert job.ended == "2 of 3 ranks had a place after 60 s."


def test_ranks_of_a_machine_are_neighbours_whoever_comes_first():
    job = Job({}, minimum=4, replaces=False)
    for place in ("x/0", "y/1", "x/2", "y/3"):
        job.table.add(place, 1, place[0])
        job.table.came_up(place)
        job.act()
    assert [*job.host_of.values()] == ["x/0", "x/2", "y/1", "y/3"]
    for worker in ("w3", "w1", "w4", "w2"):
        job.be_ready(worker)
    members = job.got("w1", "form")["members"]
    assert [each["worker"] for each in members] == ["w1", "w2", "w3", "w4"]
    assert [each["node"] for each in members] == ["x", "x", "y", "y"]


def test_places_of_a_machine_share_its_cores():
    job = Job({}, minimum=4, replaces=False)
    for place in ("x/0", "y/1", "x/2", "x/3"):
        job.table.add(place, 1, place[0])
        job.table.came_up(place)
        job.act()
    places = [*job.host_of.values()]
    assert dict(zip(places, job.first_slots.values(), strict=True)) == {
        **{"x/0": 0, "x/2": 1, "x/3": 2},
        "y/1": 0,
    }
    assert [*job.cores_shared_by.values()] == [3, 3, 3, 1]


def test_ranks_have_the_order_of_their_places():
    job = Job({}, minimum=3, replaces=False)
    for place, order in (("y", 1), ("x", 0)):
        job.table.add(place, 2 - order, order=order)
        job.table.came_up(place)
        job.act()
    assert [*job.host_of.values()] == ["x", "x", "y"]


def test_ranks_that_cannot_connect_end_the_job(job):
    for worker in ("w1", "w2"):
        job.be_ready(worker)
    job.wait(61)
    assert job.ended == "the ranks cannot connect to one another."


@pytest.mark.parametrize("outcome", [None, "", "rank 1 is lost"])
def test_a_job_that_is_stopped_late_keeps_its_reason(outcome):
    """Its engine may be gone because it has failed."""
    woken = []
    job = object.__new__(Driver)
    job._signals = []
    job._membership = types.SimpleNamespace(outcome=outcome)
    job._server = types.SimpleNamespace(wake=lambda: woken.append(1))
    job.stop()
    is_stopped = outcome is None
    assert job._signals == [signal.SIGTERM] * is_stopped
    assert woken == [1] * is_stopped
