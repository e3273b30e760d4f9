"""The rules of elastic jobs, by events one after another."""

import pytest
from elastic_job import Job, started

from tfring.launcher.elastic import places
from tfring.launcher.elastic.host_table import MOST_STRIKES
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
    assert [(m["worker"], m["steps"]) for m in form["members"]] == [
        ("w3", 8),
        ("w2", 7),
    ]
    job.formed("w2", 2)
    job.formed("w3", 2)
    job.be_ready("w4")
    assert job.got("w2", "waiting")["workers"] == 1
    job.be_ready("w2", 2, steps=9)
    job.be_ready("w3", 2, steps=9)
    assert [m["worker"] for m in job.got("w4", "form")["members"]] == [
        "w3",
        "w2",
        "w4",
    ]


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
    job.be_ready("w2", 1, steps=5)
    job.be_ready("w3", 1, steps=5)
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
    job.exited("w2", 9, "")
    job.form_again(["w1"], 1, steps=100)
    job.be_ready("w3")
    job.be_ready("w1", 2, steps=110)
    assert job.names() == {"w1", "w3"}
    job.exited("w1", 9, "")  # Before the other has got its state.
    job.be_ready("w3", 3, steps=-1)
    assert job.ended == (
        "all workers that had the state of the training are lost."
    )


def test_workers_that_fail_before_they_train_leave_their_host_out():
    job = Job({"a": 1, "b": 1}, minimum=1, maximum=2)
    assert job.host_of["w1"] == "a"
    job.exited("w1", 1, "exit status 1")
    job.exited("w3", 1, "exit status 1")
    assert "left out" not in "".join(job.said)
    job.exited("w4", 1, "exit status 1")
    assert "host a is left out" in job.said[-1]
    assert "w5" not in job.host_of
    job.be_ready("w2")
    assert job.names() == {"w2"}
    for number, worker in enumerate(["w2", "w5", "w6"]):
        assert job.ended is None, number
        job.membership._ever_formed = False
        job.exited(worker, 1, "exit status 1")
    assert "there is no host to start more on" in job.ended


def test_progress_clears_a_host():
    job = started({"a": 2}, minimum=1, maximum=2)
    lost = "w2"
    for number in range(3, 3 + 2 * MOST_STRIKES):
        job.exited(lost, 9, "")
        generation = job.membership.generation
        job.form_again(["w1"], generation, steps=number)
        lost = f"w{number}"
        job.be_ready(lost)
        job.be_ready("w1", generation + 1, steps=number)
        job.formed("w1", generation + 2)
        job.formed(lost, generation + 2)
        job.wait(31)
    assert job.ended is None
    assert job.names() == {"w1", lost}


def test_a_host_that_has_trained_is_tried_again():
    job = started({"a": 2}, minimum=1, maximum=2)
    job.wait(31)  # The host is proven.

    def fail_until_left_out(worker):
        while "is left out" not in job.said[-1]:
            number = len(job.host_of)
            job.now += 0.1
            job.exited(worker, 1, "exit status 1")
            worker = f"w{number + 1}"

    job.exited("w2", 137, "killed by SIGKILL")  # It has trained for long.
    job.form_again(["w1"], 1, steps=3)
    fail_until_left_out("w3")
    assert "host a is left out for 20 s" in job.said[-1]
    before = len(job.host_of)
    job.wait(19)
    assert len(job.host_of) == before
    job.wait(2)
    # Once; the next failure costs twice as long.
    job.exited(f"w{before + 1}", 1, "exit status 1")
    assert "host a is left out for 40 s" in job.said[-1]
    job.wait(39)
    assert len(job.host_of) == before + 1
    job.wait(2)
    assert len(job.host_of) == before + 2
    assert job.names() == {"w1"}


def test_a_host_whose_other_workers_train_on_is_tried_again():
    job = started({"a": 3}, minimum=2, maximum=3)
    job.exited("w3", 137, "killed by SIGKILL")
    job.form_again(["w1", "w2"], 1, steps=3)
    for worker in ("w4", "w5"):
        job.now += 0.1
        job.exited(worker, 137, "killed by SIGKILL")
    assert "host a is left out from now on" in job.said[-1]
    job.wait(19)
    assert "w6" not in job.host_of
    job.wait(12)  # They have trained for 30 s.
    assert job.host_of["w6"] == "a"


def test_a_job_waits_for_a_host_that_cools_down():
    job = started(
        {"a": 1, "b": 1}, minimum=2, maximum=2, replacement_seconds=600
    )
    job.wait(31)
    job.exited("w2", 137, "killed by SIGKILL")
    for worker in ("w3", "w4", "w5"):
        job.now += 0.1
        job.exited(worker, 1, "exit status 1")
    assert "host b is left out for 20 s" in job.said[-1]
    job.wait(19)
    assert job.ended is None
    job.wait(2)
    assert job.host_of["w6"] == "b"


def test_workers_that_fail_together_count_once():
    job = Job({"a": 3, "b": 1}, minimum=1, maximum=4)
    workers = ["w1", "w2", "w3"]
    assert {job.host_of[worker] for worker in workers} == {"a"}
    for time in range(MOST_STRIKES):
        assert "left out" not in "".join(job.said), time
        before = set(job.host_of)
        for worker in workers:
            job.now += 0.1
            job.exited(worker, 1, "exit status 1")
        workers = sorted(set(job.host_of) - before)
        job.now += 20
    assert job.said[-1].startswith("worker")
    assert "host a is left out" in "".join(job.said)


def test_workers_that_have_trained_for_long_count_for_nothing():
    job = started({"a": 4}, minimum=1, maximum=4)
    job.wait(31)
    for worker in ("w2", "w3", "w4"):
        job.now += 0.1
        job.exited(worker, 9, "")
    assert "left out" not in "".join(job.said)
    assert "w7" in job.host_of


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


def test_who_cannot_connect_to_most_others_is_lost():
    job = started({"a": 3}, minimum=2, maximum=3)
    # The first accusation is one of a good worker.
    job.suspect("w2", 1, "w1", "timed out")
    assert job.got("w3", "stop") is None
    job.wait(1)
    job.suspect("w3", 1, "w2", "timed out")
    job.suspect("w1", 1, "w2", "timed out")
    job.wait(1.5)
    assert "w2, host a) cannot reach" not in job.got("w3", "stop")["why"]
    for worker in ("w1", "w2", "w3"):
        job.be_ready(worker, 1, steps=5)
    assert job.killed == ["w2"]
    assert job.names() == {"w1", "w3"}


def test_of_two_that_cannot_connect_one_is_lost_the_second_time():
    job = started({"a": 2}, minimum=1, maximum=2)
    for generation in (1, 2):
        assert job.killed == []
        job.suspect("w2", generation, "w1", "timed out")
        job.wait(2.5)
        job.be_ready("w1", generation, steps=5)
        job.be_ready("w2", generation, steps=5)
    assert job.killed == ["w2"]


def test_a_new_worker_is_blamed_before_one_that_has_trained():
    job = started({"a": 3}, minimum=1, maximum=3)
    job.exited("w3", 9, "")
    job.form_again(["w1", "w2"], 1, steps=5)
    job.be_ready("w4")
    for worker in ("w1", "w2"):
        job.be_ready(worker, 2, steps=7)
    assert job.names() == {"w1", "w2", "w4"}
    job.suspect("w4", 3, "w1", "timed out")
    job.suspect("w2", 3, "w1", "timed out")
    job.wait(2.5)
    for worker in ("w1", "w2", "w4"):
        job.be_ready(worker, 3, steps=7)
    assert job.killed == ["w3", "w4"]
    assert job.names() == {"w1", "w2"}


def test_the_last_one_that_has_the_state_is_never_given_up():
    job = started({"a": 3}, minimum=1, maximum=3)
    for generation in (1, 2):
        assert job.killed == []
        for worker in ("w2", "w3"):
            job.suspect(worker, generation, "w1", "timed out")
        job.wait(2.5)
        job.be_ready("w1", generation, steps=7)
        job.be_ready("w2", generation)
        job.be_ready("w3", generation)
    assert job.killed == ["w3", "w2"]
    assert job.names() == {"w1"}


def test_a_joiner_that_cannot_connect_fails_while_the_others_train_on():
    job = started({"a": 3}, minimum=2, maximum=3)
    job.exited("w3", 9, "")
    job.form_again(["w1", "w2"], 1, steps=5)
    for worker in ("w1", "w2"):
        job.inbox[worker].clear()
    job.cut.add(frozenset(("w2", "w4")))
    job.be_ready("w4")
    assert "w4 (host a) is lost: it cannot reach w2" in job.said[-1]
    assert "w4" in job.killed
    job.exited("w4", 1, "exit status 1")
    job.be_ready("w5")
    assert job.got("w1", "waiting")["workers"] == 1
    assert job.got("w2", "stop") is None


def test_joiners_prove_that_they_reach_each_other():
    job = Job({"a": 4}, minimum=1, maximum=4, first=2)
    job.start(["w1", "w2"])
    job.cut.add(frozenset(("w3", "w4")))
    job.be_ready("w3")
    job.be_ready("w4")
    assert job.killed == ["w4"]
    assert job.got("w1", "waiting")["workers"] == 1


def test_a_joiner_that_has_reached_one_who_is_lost_is_not_blamed():
    job = Job({"a": 3}, minimum=1, maximum=3, first=2)
    job.start(["w1", "w2"])
    job.answers_probes = False
    job.be_ready("w3")
    probe = job.got("w3", "probe")
    assert [name for name, _, _ in probe["workers"]] == ["w1", "w2"]
    assert job.got("w1", "waiting") is None
    job.exited("w2", 9, "")
    job.be_ready("w1", 1, steps=5)
    # The generation is formed without the joiner, because it is unknown whether
    # the joiner reaches the workers.
    assert job.names() == {"w1"}
    job.formed("w1", 2)
    job.probed("w3", ["w1"], "w2", "it cannot reach w2")
    assert job.killed == ["w2"]
    assert job.got("w1", "waiting")["workers"] == 1


def test_a_joiner_that_does_not_say_whom_it_reaches_is_lost():
    job = Job({"a": 2}, minimum=1, maximum=2, first=1)
    job.start(["w1"])
    job.answers_probes = False
    job.be_ready("w2")
    job.wait(59)
    assert job.killed == []
    job.wait(1)
    assert job.killed == ["w2"]


STATE = [("attribute 'epoch'", ""), ("float32 (4, 5)", "kernel")]


def job_with_a_joiner(state, of_the_members=STATE):
    """Its first two workers train; the third one has told of its state."""
    job = Job({"a": 3}, minimum=1, maximum=3, first=2)
    job.start(["w1", "w2"])
    job.train(["w1", "w2"], "begun")
    if of_the_members is not None:
        job.state("w1", of_the_members)
    job.training("w3", "begun")
    if state is not None:
        job.state("w3", state)
    job.be_ready("w3")
    return job


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ([STATE[0], ("float32 (4, 6)", "kernel")], "(4, 6) kernel where the"),
        ([STATE[0]], "has nothing where the members' has float32 (4, 5)"),
        ([*STATE, ("int64 ()", "x")], "int64 () x where the members' has not"),
    ],
)
def test_a_joiner_with_another_state_fails_by_itself(state, why):
    job = job_with_a_joiner(state)
    assert "w3 (host a) is lost: its state has " in job.said[-1]
    assert why in job.said[-1]
    assert job.killed == ["w3"]
    assert job.got("w1", "waiting") is None


@pytest.mark.parametrize(
    "state",
    [
        None,  # A class of the user's own.
        # Keras numbers layers by process.
        [("attribute 'epoch'", ""), ("float32 (4, 5)", "kernel_1")],
    ],
)
def test_a_joiner_with_the_members_state_is_let_in(state):
    job = job_with_a_joiner(state)
    assert job.killed == []
    assert job.got("w1", "waiting")["workers"] == 1


def test_a_joiner_waits_until_the_members_tell_of_their_state():
    job = job_with_a_joiner(STATE, of_the_members=None)
    assert job.got("w1", "waiting") is None
    job.state("w1", STATE)
    assert job.got("w1", "waiting")["workers"] == 1


def test_a_state_of_which_steps_make_more_is_told_again():
    more = [*STATE, ("float32 (4, 5)", "momentum")]
    job = job_with_a_joiner(None)
    job.state("w1", more)
    job.be_ready("w1", 1, steps=1)
    job.be_ready("w2", 1, steps=1)
    for worker in ("w1", "w2", "w3"):
        job.formed(worker, 2)
    # The one that told of it is lost, and its state is the members'.
    job.exited("w1", 9, "")
    job.training("w4", "begun")
    job.state("w4", STATE)
    job.be_ready("w4")
    assert job.killed == ["w1", "w4"]


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
    job.bye("w2", 0)
    job.exited("w2", 0, "exit status 0")
    assert job.ended == ""
    assert "ended after its training" in job.said[-1]
    assert job.membership.first_failure is None


def test_who_is_killed_before_it_is_done_fails_the_job_at_its_end():
    job = started({"a": 2}, minimum=2, maximum=2)
    job.bye("w1", 0)
    job.exited("w1", 0, "exit status 0")
    # The rest of its script is unknown.
    job.exited("w2", 137, "killed by SIGKILL")
    assert "all workers are lost" in job.ended or "at the end" in job.ended


def test_a_loss_when_some_are_done_has_the_others_go_on_without():
    job = started({"a": 3}, minimum=3, maximum=3)
    job.bye("w1", 0)
    job.exited("w1", 0, "")
    job.exited("w2", 9, "killed")
    assert "w4" not in job.host_of
    job.be_ready("w3", 1, steps=9)
    assert job.got("w3", "form")["members"][0]["worker"] == "w3"
    job.formed("w3", 2)
    job.bye("w3", 0)
    job.exited("w3", 0, "")
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
    job.bye(name, status)
    job.exited(name, status, f"exit status {status}")
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
    job.bye("w1", 0)
    job.exited("w1", 0, "exit status 0")
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
    job.bye("w2", 0)
    job.exited("w2", 0, "exit status 0")
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
    job.bye("w1", 0)
    job.exited("w1", 0, "exit status 0")
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
    job.exited("w2", 137, "killed by SIGKILL")
    job.form_again(["w1"], 1, steps=3)
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
    for lost in ("w1", "w3"):
        job.exited(lost, 137, "killed by SIGKILL")
    job.form_again(["w2", "w4"], 1, steps=3)
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
    for left in ("w2", "w4"):
        job.be_ready(left, 2, steps=4)
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
    # It has its time, and waits for a place as long as that takes.
    job.wait(590)
    assert spare not in job.killed
    job.be_ready(spare)
    job.wait(1000)
    assert spare not in job.killed
    lost, left = sorted(job.names())
    job.exited(lost, 137, "killed")
    job.be_ready(left, 1, 4)
    assert job.names() == {left, spare}


def test_who_comes_later_leaves_out_what_the_others_have_ended():
    job = started({"a": 3}, minimum=2, maximum=3)
    job.train(["w1", "w2", "w3"], "begun", function="pretrain")
    job.exited("w3", 137, "killed by SIGKILL")
    job.form_again(["w1", "w2"], 1, steps=7)
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
    job.exited("w2", 137, "killed by SIGKILL")
    job.form_again(["w1"], 1, steps=3)
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
    calls = []
    function = getattr(module, name)
    monkeypatch.setattr(
        module,
        name,
        lambda *args, **kw: calls.append(0) or function(*args, **kw),
    )
    return calls


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
    assert len(choices) == 1
    assert len(keys) <= 10 * size
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
    assert len(choices) <= 2
