"""The rules of elastic jobs, by events one after another."""

import unittest.mock

import pytest
from elastic_job import Job, started

from tfring.launcher.elastic import places
from tfring.launcher.elastic.workers import Send


def test_the_first_generation_waits_for_all_that_are_started():
    job = Job({"a": 2, "b": 1}, minimum=1, maximum=3)
    assert job.host_of == {"w1": "a", "w2": "a", "w3": "b"}
    job.be_ready("w1")
    job.be_ready("w2")
    assert job.got("w1", "form") is None
    job.be_ready("w3")
    form = job.got("w1", "form")
    # Workers of a host have neighbouring ranks.
    assert [m["worker"] for m in form["members"]] == ["w1", "w2", "w3"]
    # The message is encoded once.
    assert job.got("w3", "form") is form


def test_np_says_for_how_many_the_first_generation_waits():
    job = Job({"a": 4}, minimum=1, maximum=4, first=2)
    job.be_ready("w1")
    job.wait(1)
    job.be_ready("w4")
    assert job.names() == {"w1", "w4"}
    job.formed("w1", 1)
    job.formed("w4", 1)
    job.be_ready("w2")
    assert job.got("w1", "waiting") == {"kind": "waiting", "workers": 1}


def test_the_first_generation_does_not_wait_for_ever():
    job = Job({"a": 3}, minimum=2, maximum=3)
    job.be_ready("w1")
    job.wait(60)
    assert job.names() == set()
    job.be_ready("w2")
    job.wait(29)
    assert job.names() == set()
    job.wait(2)
    assert job.names() == {"w1", "w2"}


def test_a_loss_stops_the_generation_and_the_newest_state_is_rank_0():
    job = started({"a": 3}, minimum=2, maximum=3)
    job.disconnected("w1")
    assert job.killed == ["w1"]
    assert job.got("w2", "stop")["generation"] == 1
    assert "w1" in job.got("w3", "stop")["why"]
    # Its slot is taken until it is gone.
    assert "w4" not in job.host_of
    job.exited("w1", 137, "killed by SIGKILL")
    assert job.host_of["w4"] == "a"
    assert "killed by SIGKILL" in job.said[-1]
    job.be_ready("w2", 1, steps=7)
    assert job.names() == {"w2", "w3"}
    assert job.got("w2", "form") is None
    job.be_ready("w3", 1, steps=8)
    form = job.got("w2", "form")
    found = [(m["worker"], m["steps"]) for m in form["members"]]
    assert found == [("w3", 8), ("w2", 7)]
    job.formed("w2", 2)
    job.formed("w3", 2)
    job.be_ready("w4")
    assert job.got("w2", "waiting")["workers"] == 1
    job.all_ready(["w2", "w3"], 2, steps=9)
    form = job.got("w4", "form")
    assert [m["worker"] for m in form["members"]] == ["w3", "w2", "w4"]


@pytest.mark.parametrize("how", ["error", "bye"])
def test_nobody_waits_for_one_that_has_said_that_it_ends(how):
    job = started({"a": 3}, minimum=2, maximum=3)
    if how == "error":
        job.error("w1", "ValueError: boom")
    else:
        job.bye("w1", 3)
    # It may still write a traceback.
    assert job.got("w1", "end") is None
    assert job.killed == ["w1"]
    job.all_ready(["w2", "w3"], 1, steps=5)
    assert job.got("w2", "form")["generation"] == 2
    # Its slot is free when it has ended.
    assert "w4" not in job.host_of
    job.exited("w1", 3, "exit status 3")
    assert "w4" in job.host_of
    [said] = [text for text in job.said if "lost" in text]
    assert ("ValueError: boom" if how == "error" else "exit status 3") in said
    assert job.membership.first_failure.status == 3


@pytest.mark.parametrize("status", [0, 3])
def test_who_takes_too_long_to_end_has_the_status_that_it_said(status):
    job = started({"a": 3}, minimum=2, maximum=3)
    job.train(["w1", "w2", "w3"], "begun")
    job.bye("w1", status)
    job.exited("w1", 128 + 9, "killed by SIGKILL")
    [said] = [text for text in job.said if "lost" in text]
    assert f"exit status {status}, in the middle of its training" in said
    assert job.membership.first_failure.status == status


def test_too_few_wait_for_a_replacement_and_then_the_job_fails():
    job = started({"a": 2}, minimum=2, maximum=2, replacement_seconds=50)
    job.exited("w2", 1, "exit status 1")
    job.be_ready("w1", 1, steps=4)
    assert job.names() == {"w1"}
    assert job.got("w1", "form") is None
    job.wait(49)
    assert job.ended is None
    job.wait(2)
    assert "fewer than 2 workers were ready for 50 s" in job.ended
    assert job.membership.first_failure.name == "w2"
    assert job.membership.first_failure.status == 1


def test_all_lost_is_the_end_and_not_a_new_beginning():
    job = started({"a": 2}, minimum=1, maximum=2)
    job.error("w1", "ValueError: boom")
    job.exited("w1", 1, "exit status 1")
    assert job.ended is None
    job.exited("w2", 1, "exit status 1")
    assert job.ended == "all workers are lost."
    assert job.membership.first_failure.error == "ValueError: boom"


def test_the_state_is_not_silently_begun_anew():
    job = started({"a": 2}, minimum=1, maximum=2)
    job.go_on_without("w2", steps=100)
    job.be_ready("w3")
    job.be_ready("w1", 2, steps=110)
    assert job.names() == {"w1", "w3"}
    job.exited("w1", 9, "")  # Before the other has got its state.
    job.be_ready("w3", 3, steps=-1)
    assert job.ended == (
        "all workers that had the state of the training are lost."
    )


def test_a_member_that_does_not_leave_its_generation_is_lost():
    job = started({"a": 3}, minimum=1, maximum=3)
    job.exited("w3", 9, "")
    job.be_ready("w1", 1, steps=1)
    job.wait(29)
    assert "w2" not in job.killed
    job.wait(2)
    assert "w2" in job.killed
    assert job.names() == {"w1"}
    assert job.got("w1", "form")["generation"] == 2


def test_one_that_leaves_by_itself_has_the_others_follow():
    job = started({"a": 2}, minimum=2, maximum=2)
    job.be_ready("w1", 1, steps=1)
    assert job.got("w2", "stop") is None
    job.wait(1.5)
    assert job.got("w2", "stop")["generation"] == 1
    job.be_ready("w2", 1, steps=1)
    assert job.got("w2", "form")["generation"] == 2


def test_a_generation_that_does_not_connect_is_formed_again_three_times():
    job = Job({"a": 2}, minimum=2, maximum=2)
    job.be_ready("w1")
    job.be_ready("w2")
    for generation in (1, 2, 3):
        assert job.ended is None
        assert job.got("w1", "form")["generation"] == generation
        job.formed("w2", generation)
        job.wait(61)
        if generation < 3:
            job.be_ready("w1", generation)
            job.be_ready("w2", generation)
    assert job.ended == "the workers cannot connect to one another."


def test_members_go_on_without_a_new_one_that_never_connects():
    job = Job({"a": 3}, minimum=2, maximum=3, first=2)
    job.start(["w1", "w2"])
    job.be_ready("w3")
    job.all_ready(["w1", "w2"], 1, steps=5)
    assert job.names() == {"w1", "w2", "w3"}
    # Its connections hang, without an error that it could report.
    job.wait(61)
    assert job.killed == ["w3"]
    assert "it was not connected in 60 s" in "".join(job.said)
    job.form_again(["w1", "w2"], 2, steps=5)
    assert job.names() == {"w1", "w2"}
    assert job.ended is None


def test_what_a_lost_or_unknown_worker_says_changes_nothing():
    job = started({"a": 2}, minimum=1, maximum=2)
    job.silent("w2", "silent")
    job.be_ready("w2", 1, steps=100)
    job.formed("w2", 1)
    job.bye("w2", 0)
    job.suspect("w2", 1, "w1", "")
    job.host_of["w99"] = "a"
    job.be_ready("w99", 0)
    job.bye("w99", 0)
    # This message is of an old generation.
    job.be_ready("w1", 0, steps=3)
    assert job.names() == {"w1"}
    assert job.ended is None
    job.be_ready("w1", 1, steps=3)
    assert job.got("w1", "form")["generation"] == 2


def test_one_who_does_not_join_is_lost():
    job = Job({"a": 2}, minimum=1, maximum=2, replacement_seconds=40)
    job.be_ready("w1")
    job.wait(41)
    assert "w2" in job.killed
    assert "w1" not in job.killed


def test_who_joins_later_builds_first_while_the_others_train():
    job = Job({"a": 3}, minimum=2, maximum=3)
    for worker in ("w1", "w2"):
        job.be_ready(worker, building=True)
    job.wait(31)
    assert job.names() == {"w1", "w2"}
    for worker in ("w1", "w2"):
        job.formed(worker, 1)
    job.be_ready("w3", building=True)
    assert job.got("w3", "build")
    job.wait(1)
    assert job.got("w1", "waiting") is None
    job.be_ready("w3")
    assert job.got("w1", "waiting")["workers"] == 1


def test_one_who_hangs_while_it_builds_is_replaced():
    job = started({"a": 2}, minimum=1, maximum=2, replacement_seconds=100)
    job.go_on_without("w2", steps=3)
    job.wait(90)
    job.be_ready("w3", building=True)
    assert job.got("w3", "build")
    job.wait(99)
    assert "w3" not in job.killed
    job.wait(2)
    assert "w3" in job.killed
    assert "did not build what it trains in 100 s" in "".join(job.said)
    job.exited("w3", 137, "killed by SIGKILL")
    assert job.host_of["w4"] == "a"


def test_who_builds_is_told_the_place_that_it_has_in_the_end():
    job = started({"a": 2, "b": 2}, minimum=1, maximum=4)
    job.go_on_without("w1", "w3", steps=3)
    # Both joiners get a job of four, although they may join one at a time.
    told = {}
    for joiner in ("w5", "w6"):
        job.be_ready(joiner, building=True)
        message = job.got(joiner, "build")
        told[joiner] = message["rank"]
        assert sorted(message["nodes"]) == ["a", "a", "b", "b"]
        assert message["nodes"][told[joiner]] == job.host_of[joiner]
    for joiner in ("w5", "w6"):
        job.be_ready(joiner)
    job.all_ready(["w2", "w4"], 2, steps=4)
    for joiner, rank in told.items():
        members = job.got(joiner, "form")["members"]
        assert [each["worker"] for each in members].index(joiner) == rank
        assert len(members) == 4


def test_a_spare_builds_while_the_others_train_and_then_takes_a_place():
    job = Job({"a": 3}, minimum=2, maximum=2, spares=1)
    for worker in ("w1", "w2", "w3"):
        job.be_ready(worker, building=True)
    [spare] = {"w1", "w2", "w3"} - job.names()
    for worker in job.names():
        job.formed(worker, 1)
    told = job.got(spare, "build")
    assert (told["rank"], told["nodes"]) == (1, ["a", "a"])
    # The spare has its time to build, and then waits for a place without limit.
    job.wait(590)
    assert spare not in job.killed
    job.be_ready(spare)
    job.wait(1000)
    assert spare not in job.killed
    lost, left = sorted(job.names())
    job.exited(lost, 137, "killed")
    job.be_ready(left, 1, 4)
    assert job.names() == {left, spare}


def test_the_first_generation_waits_for_hosts_that_come_by_themselves():
    job = Job({"a": 1}, minimum=1, first=2, may_grow=True)
    job.be_ready("w1")
    job.wait(20)
    assert job.names() == set()
    job.table.add("b", 1)
    job.table.came_up("b")
    job.act()
    job.be_ready("w2")
    assert job.names() == {"w1", "w2"}


def test_the_first_generation_does_not_wait_for_them_for_ever():
    job = Job({"a": 1}, minimum=1, first=2, may_grow=True)
    job.be_ready("w1")
    job.wait(31)
    assert job.names() == {"w1"}


def count_calls(monkeypatch, module, name):
    counted = unittest.mock.Mock(wraps=getattr(module, name))
    monkeypatch.setattr(module, name, counted)
    return counted


def test_many_workers_that_come_at_once_cost_one_look_at_them(monkeypatch):
    size = 200
    job = Job({f"host{i}": 8 for i in range(size // 8)}, minimum=2)
    choices = count_calls(monkeypatch, places, "choose")
    keys = count_calls(monkeypatch, places, "_newest_first")
    job.is_behind = True
    for worker in job.host_of:
        job.be_ready(worker)
    [form] = [
        each for each in job.membership.take_actions() if isinstance(each, Send)
    ]
    assert len(form.names) == len(form.message["members"]) == size
    assert choices.call_count == 1
    assert keys.call_count <= 10 * size
    for worker in form.names:
        job.formed(worker, 1)
    job.membership.take_actions()
    job.disconnected("w1")
    [stop] = [
        each
        for each in job.membership.take_actions()
        if isinstance(each, Send) and each.role == "worker"
    ]
    assert stop.message["kind"] == "stop"
    assert len(stop.names) == size - 1
    assert choices.call_count <= 2
