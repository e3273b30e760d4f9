"""The rules of elastic jobs: workers that end, and ends of trainings."""

import pytest
from elastic_job import Job, started


def test_the_job_ends_well_when_all_members_have_said_so_and_exited():
    job = Job({"a": 3}, minimum=2, maximum=2, spares=1)
    job.be_ready("w3")
    job.be_ready("w1")
    job.be_ready("w2")
    assert job.names() == {"w1", "w3"}
    job.bye("w1", 0)
    job.disconnected("w1")
    job.exited("w1", 0, "exit status 0")
    assert job.ended is None
    assert job.got("w2", "end") is None
    job.bye("w3", 0)
    assert job.got("w2", "end")["status"] == 0
    assert job.ended is None
    job.exited("w3", 0, "exit status 0")
    assert job.ended == ""
    assert "lost" not in "".join(job.said)


def test_who_fails_after_the_training_fails_the_job():
    job = started({"a": 2}, minimum=2, maximum=2)
    job.bye("w1", 0)
    job.bye("w2", 0)
    job.exited("w1", 139, "killed by SIGSEGV")
    assert job.got("w2", "stop") is None
    job.exited("w2", 0, "exit status 0")
    assert "lost at the end" in job.ended
    assert job.membership.first_failure.status == 139


def test_the_jobs_status_is_that_of_who_fails_at_the_end():
    job = started({"a": 3}, minimum=2, maximum=2, spares=1)
    job.exited("w3", 9, "exit status 9")  # a spare, which is replaced
    job.bye("w1", 0)
    job.bye("w2", 0)
    job.exited("w1", 5, "exit status 5")
    job.exited("w2", 0, "exit status 0")
    job.wait(100)
    assert job.membership.first_failure.status == 5


def test_who_ends_because_the_job_has_failed_is_no_failure():
    job = started({"a": 1, "b": 1}, minimum=2, maximum=2)
    job.leaving("w2")
    job.table.update({"a": 1})
    job.exited("w2", 0, "exit status 0")
    assert "only 1 workers are left" in job.ended
    job.exited("w1", 1, "exit status 1")
    assert job.membership.first_failure is None


def test_the_slot_of_a_worker_that_ends_is_waited_for():
    job = started({"a": 2}, minimum=2, maximum=2)
    job.train(["w1", "w2"], "begun", "done")
    job.bye("w2", 0)
    job.training("w1", "begun")
    job.be_ready("w1", 1, steps=0)
    job.wait(2)
    assert job.ended is None
    job.exited("w2", 0, "exit status 0")
    job.be_ready("w3")
    assert job.names() == {"w1", "w3"}


@pytest.mark.parametrize("how", ["killed", "host"])
def test_who_is_killed_after_its_training_is_not_missed(how):
    job = started({"a": 1, "b": 1}, minimum=2, maximum=2)
    job.bye("w1", 0)
    if how == "killed":
        job.exited("w1", 137, "killed by SIGKILL")
    else:
        job.host_lost(job.host_of["w1"], "host was lost")
    # The other one has not said so yet, but its training is over, too.
    assert job.got("w2", "stop") is None
    assert job.ended is None
    job.end("w2")
    assert job.ended == ""
    assert "ended after its training" in job.said[-1]
    assert job.membership.first_failure is None


def test_who_is_killed_before_it_is_done_fails_the_job_at_its_end():
    job = started({"a": 2}, minimum=2, maximum=2)
    job.end("w1")
    # The rest of its script is unknown.
    job.exited("w2", 137, "killed by SIGKILL")
    assert "all workers are lost" in job.ended or "at the end" in job.ended


def test_a_loss_when_some_are_done_has_the_others_go_on_without():
    job = started({"a": 3}, minimum=3, maximum=3)
    job.end("w1")
    job.exited("w2", 9, "killed")
    assert "w4" not in job.host_of
    job.be_ready("w3", 1, steps=9)
    assert job.got("w3", "form")["members"][0]["worker"] == "w3"
    job.formed("w3", 2)
    job.end("w3")
    assert job.ended == ""


@pytest.mark.parametrize("status", [0, 3])
@pytest.mark.parametrize("beside", [False, True])
def test_who_ends_in_the_training_is_replaced(status, beside):
    job = started({"a": 3}, minimum=2, maximum=3)
    job.train(["w1", "w2", "w3"], "begun")
    name, another = "w3", "w4"
    if beside:
        job.exited("w3", 137, "killed by SIGKILL")
        name, another = "w4", "w5"
        job.training(name, "begun")
    job.end(name, status)
    assert another in job.host_of
    said = [text for text in job.said if "lost" in text][-1]
    assert f"exit status {status}, in the middle of its training" in said
    assert job.got("w1", "stop")["generation"] == 1


def test_after_the_training_nobody_is_missed_or_killed():
    """A worker is killed while another one begins to save."""
    job = started({"a": 2, "b": 1}, minimum=2, maximum=3)
    job.train(["w1", "w2", "w3"], "begun")
    job.train(["w1", "w2"], "done")
    job.disconnected("w2")
    job.exited("w2", 137, "killed by SIGKILL")
    job.training("w3", "done")
    job.silent("w1", "nothing was heard of it")
    job.host_lost(job.host_of["w3"], "host was lost")
    job.wait(3600)
    assert "w4" not in job.host_of
    assert "w1" not in job.killed
    assert job.got("w1", "end") is None
    assert job.ended is None
    job.end("w1")
    assert "lost at the end" in job.ended
    assert job.membership.first_failure.status == 137


@pytest.mark.parametrize("first", ["w1", "w2"])
@pytest.mark.parametrize("how", ["bye", "error", "killed"])
def test_any_status_after_the_training_is_the_jobs(first, how):
    job = started({"a": 2}, minimum=2, maximum=2)
    job.train(["w1", "w2"], "begun", "done")
    for name in (first, "w2" if first == "w1" else "w1"):
        status = 3 if name == "w2" else 0
        if how == "error" and status:
            job.error(name, "OSError: the disk is full")
        elif how == "bye" or status == 0:
            job.bye(name, status)
        job.wait(100)
        assert name not in job.killed
        job.exited(name, status, f"exit status {status}")
    assert "lost" in job.ended
    assert job.membership.first_failure.status == 3


def test_a_script_may_train_twice():
    job = started({"a": 2}, minimum=2, maximum=2)
    job.train(["w1", "w2"], "begun", "done")
    job.training("w1", "begun")
    # The other one is still between the two.
    job.exited("w2", 1, "exit status 1")
    assert job.got("w1", "stop")["generation"] == 1
    job.be_ready("w1", 1, steps=4)
    assert job.host_of["w3"] == "a"
    job.be_ready("w3")
    assert job.names() == {"w1", "w3"}


@pytest.mark.parametrize("leaves_first", [True, False])
def test_who_ends_before_its_training_is_replaced(leaves_first):
    job = started({"a": 2}, minimum=2, maximum=2)
    if not leaves_first:
        job.training("w1", "begun")
    job.end("w2")
    if leaves_first:
        job.training("w1", "begun")
    job.be_ready("w1", 1, steps=0)
    job.be_ready("w3")
    assert job.names() == {"w1", "w3"}


@pytest.mark.parametrize("silent_first", [True, False])
def test_who_hangs_between_two_trainings_is_replaced(silent_first):
    job = started({"a": 2}, minimum=2, maximum=2)
    job.train(["w1", "w2"], "begun", "done")
    if not silent_first:
        job.training("w1", "begun")
    job.silent("w2", "nothing was heard of it")
    if silent_first:
        assert "w2" not in job.killed
        job.training("w1", "begun")
    assert "w2" in job.killed
    job.be_ready("w1", 1, steps=4)
    job.exited("w2", 137, "killed by SIGKILL")
    job.be_ready("w3")
    assert job.names() == {"w1", "w3"}


def test_a_training_that_is_left_by_an_error_is_none():
    job = started({"a": 1}, minimum=1, maximum=1)
    job.training("w1", "begun")
    job.training("w1", "left")
    job.end("w1")
    assert job.ended == ""


def test_workers_that_do_not_end_after_the_training_fail_the_job():
    job = started({"a": 1}, minimum=1, maximum=1, replacement_seconds=20)
    job.bye("w1", 0)
    job.wait(19)
    assert job.ended is None
    job.wait(2)
    assert "did not end in 20 s" in job.ended


def test_a_preempted_worker_has_time_to_end_and_is_no_failure():
    job = started({"a": 2}, minimum=1, maximum=2)
    job.leaving("w1")
    # Its script may have yet to clean up.
    assert [each["kind"] for each in job.inbox["w1"]] == ["leave"]
    job.exited("w1", 143, "killed by SIGTERM")
    assert job.membership.first_failure is None
    assert job.host_of["w3"] == "a"
    job.be_ready("w2", 1, steps=3)
    assert job.names() == {"w2"}


@pytest.mark.parametrize(
    ("hosts", "places", "spares"),
    [
        ({"a": 1, "b": 1}, 1, 1),
        ({"a": 2, "b": 1}, 2, 1),
        ({"a": 2}, 1, 0),  # in a free slot
        ({"a": 2}, 2, 0),  # in the slot of one that has left
    ],
)
def test_of_members_that_all_leave_one_gives_its_state_away(
    hosts, places, spares
):
    job = started(hosts, minimum=places, maximum=places, spares=spares)
    *first, last = [f"w{number + 1}" for number in range(places)]
    for worker in first:
        job.leaving(worker)
        assert job.got(worker, "leave")
    job.leaving(last)
    assert job.got(last, "stay")
    for worker in first:
        job.exited(worker, 0, "exit status 0")
    job.be_ready(last, 1, steps=7)
    assert job.got(last, "form") is None  # It does not train on alone.
    other = max(job.host_of)
    job.be_ready(other)
    assert job.names() == {last, other}
    form = job.got(other, "form")
    assert [each["steps"] for each in form["members"]] == [7, -1]
    for worker in (last, other):
        job.formed(worker, 2)
    job.leaving(last)
    assert job.got(last, "leave")
    assert job.names() == {other}
    assert job.ended is None
    assert job.membership.first_failure is None


def test_a_spare_that_is_asked_to_end_leaves_and_is_replaced():
    job = started({"a": 3}, minimum=2, maximum=2, spares=1)
    job.be_ready("w3")
    job.leaving("w3")
    assert job.got("w3", "leave")
    assert job.got("w1", "stop") is None
    job.exited("w3", 0, "exit status 0")
    assert job.host_of["w4"] == "a"
    assert "left out" not in "".join(job.said)
    assert job.membership.first_failure is None


def test_a_spare_is_not_kept_for_the_state_that_it_does_not_have():
    job = started({"a": 2}, minimum=1, maximum=1, spares=1)
    job.be_ready("w2")
    job.leaving("w1")
    assert job.got("w1", "stay")
    job.leaving("w2")
    assert job.got("w2", "leave")


def test_who_alone_has_the_state_leaves_if_nobody_can_take_it():
    job = started({"a": 1}, minimum=1, maximum=1)
    job.leaving("w1")
    assert job.got("w1", "leave")
    job.exited("w1", 0, "exit status 0")
    assert job.ended == "all workers are lost."


def test_who_alone_has_the_state_does_not_wait_for_ever():
    job = started({"a": 2}, minimum=1, maximum=1, spares=1)
    job.leaving("w1")
    job.be_ready("w1", 1, steps=7)
    job.table.update({"a": 1})
    job.exited("w2", 1, "exit status 1")
    job.wait(2)
    assert "there is no host to start more on" in job.ended


def test_who_comes_later_leaves_out_what_the_others_have_ended():
    job = started({"a": 3}, minimum=2, maximum=3)
    job.train(["w1", "w2", "w3"], "begun", function="pretrain")
    job.go_on_without("w3", steps=7)
    job.be_ready("w4", building=True)
    job.training("w4", "begun", function="pretrain")
    job.train(["w1", "w2"], "done", result="[1.5]")
    job.be_ready("w4")
    job.wait(1)
    assert job.got("w4", "over") is None  # The script may be at its end.
    job.training("w1", "begun", function="tune")
    assert job.got("w4", "over") == {"kind": "over", "result": "[1.5]"}
    job.training("w2", "begun", function="tune")
    job.training("w4", "done", result="[1.5]")
    job.wait(1)
    assert job.got("w1", "waiting") is None
    job.training("w4", "begun", function="tune")
    job.be_ready("w4")
    assert job.got("w1", "waiting")["workers"] == 1


def test_who_comes_when_the_last_training_is_over_only_ends():
    job = started({"a": 2}, minimum=1, maximum=2)
    job.training("w1", "begun", function="train")
    job.go_on_without("w2", steps=3)
    job.training("w1", "done", result="null")
    job.training("w3", "begun", function="train")
    job.be_ready("w3")
    assert job.inbox["w3"] == []
    job.bye("w1", 0)
    assert [each["kind"] for each in job.inbox["w3"]] == ["end"]


def test_who_was_at_the_end_with_the_others_goes_on_with_them():
    """Its report of the failed generation arrives before its peer's report."""
    job = started({"a": 3}, minimum=2, maximum=3)
    job.train(["w1", "w2", "w3"], "begun", function="pretrain")
    job.exited("w3", 137, "killed by SIGKILL")
    job.be_ready("w2", 1, steps=9)
    job.training("w1", "done", result="null")
    assert job.got("w2", "over")
    for worker in ("w1", "w2"):
        job.training(worker, "begun", function="tune")
        # The second function has another state, without commits.
        job.be_ready(worker, 1, steps=0)
    assert job.names() == {"w1", "w2"}
    assert job.got("w2", "form")["generation"] == 2


def test_who_is_in_another_function_than_the_others_fails_alone():
    job = started({"a": 2}, minimum=1, maximum=2)
    job.training("w1", "begun", function="train")
    job.training("w2", "begun", function="evaluate")
    assert job.killed == ["w2"]
    assert "'evaluate', and the others' is 'train'" in job.said[-1]


def test_a_job_that_has_saved_asks_for_another_start():
    job = started({"a": 2}, minimum=1, maximum=2)
    job.train(["w1", "w2"], "begun")
    job.bye("w2", 75)
    assert "asks for another start" in job.ended
    job.exited("w2", 75, "exit status 75")
    job.bye("w1", 75)
    job.exited("w1", 75, "exit status 75")
    assert job.membership.first_failure.status == 75
    assert "w3" not in job.host_of
