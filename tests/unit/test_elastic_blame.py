"""The rules of elastic jobs: which worker or host is to blame."""

import re

from elastic_job import Job, started

from tfring.launcher.elastic.host_table import MOST_STRIKES


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
        job.membership.generation.ever_formed = False
        job.exited(worker, 1, "exit status 1")
    assert "there is no host to start more on" in job.ended


def test_progress_clears_a_host():
    job = started({"a": 2}, minimum=1, maximum=2)
    lost = "w2"
    for number in range(3, 3 + 2 * MOST_STRIKES):
        job.go_on_without(lost, steps=number)
        lost = f"w{number}"
        job.be_ready(lost)
        generation = job.membership.generation.number
        job.form_again(["w1"], generation, steps=number)
        job.formed(lost, generation + 1)
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

    job.go_on_without("w2", steps=3)  # It has trained for long.
    fail_until_left_out("w3")
    assert "host a is left out for 20 s" in job.said[-1]
    before = len(job.host_of)
    job.wait(19)
    assert len(job.host_of) == before
    job.wait(2)
    # One worker may start again; the next failure costs twice as long.
    job.exited(f"w{before + 1}", 1, "exit status 1")
    assert "host a is left out for 40 s" in job.said[-1]
    job.wait(39)
    assert len(job.host_of) == before + 1
    job.wait(2)
    assert len(job.host_of) == before + 2
    assert job.names() == {"w1"}


def test_a_host_whose_other_workers_train_on_is_tried_again():
    job = started({"a": 3}, minimum=2, maximum=3)
    job.go_on_without("w3", steps=3)
    for worker in ("w4", "w5"):
        job.now += 0.1
        job.exited(worker, 137, "killed by SIGKILL")
    assert "host a is left out until a generation has trained" in job.said[-1]
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


def fail_each(job, seconds, until, members):
    """Has each worker but the members fail some seconds after its start."""
    failed, due = 0, {}
    while job.now < until:
        job.wait(0.5)
        for worker in set(job.membership.workers) - set(members):
            if job.now >= due.setdefault(worker, job.now + seconds):
                failed += 1
                job.exited(worker, 3, "exit status 3")
    assert job.names() == {*members}
    return failed


def holds(job):
    """Returns for how long hosts were left out, each time."""
    return [
        int(match[1])
        for text in job.said
        if (match := re.search(r"is left out for (\d+) s", text))
    ]


def test_workers_that_fail_without_end_are_started_ever_less_often():
    job = started({"a": 3}, minimum=1, maximum=3)
    job.wait(60)
    job.go_on_without("w3", steps=5)
    failed = fail_each(job, 4, until=3600, members=["w1", "w2"])
    assert holds(job) == [20, 40, 80, 160, 320, *[600] * 5]
    # Three workers fail before the first pause, and one after each pause.
    assert failed == 3 + 9


def test_a_worker_that_trains_clears_its_host_of_earlier_failures():
    job = started({"a": 2}, minimum=1, maximum=2)
    job.wait(60)
    job.go_on_without("w2", steps=5)
    fail_each(job, 4, until=120, members=["w1"])
    assert holds(job) == [20, 40]
    job.wait(20)
    joiner = list(job.host_of)[-1]
    job.be_ready(joiner)
    generation = job.membership.generation.number
    job.form_again(["w1"], generation, steps=9)
    job.formed(joiner, generation + 1)
    job.wait(31)
    job.go_on_without(joiner, steps=10)
    fail_each(job, 4, until=job.now + 20, members=["w1"])
    assert holds(job) == [20, 40, 20]


def test_members_train_on_although_their_host_is_left_out():
    job = started({"a": 3}, minimum=1, first=3)
    job.go_on_without("w3", steps=5)
    for worker in ("w4", "w5"):
        job.exited(worker, 3, "exit status 3")
    assert "host a is left out" in job.said[-1]
    job.wait(20)
    for worker in ("w1", "w2"):
        assert job.got(worker, "waiting") is None
    job.form_again(["w1", "w2"], 2, steps=6)
    assert job.names() == {"w1", "w2"}
    assert job.got("w2", "end") is None
    assert "w6" not in job.host_of


def test_another_host_is_filled_although_members_host_is_left_out():
    job = started({"a": 2, "b": 1}, minimum=1, maximum=3)
    assert job.host_of["w2"] == "a"
    job.go_on_without("w2", steps=5)
    for worker in ("w4", "w5"):
        job.exited(worker, 3, "exit status 3")
    assert "host a is left out" in job.said[-1]
    job.table.update({"a": 2, "b": 2})
    job.act()
    assert job.host_of["w6"] == "b"


def test_a_host_that_never_trained_is_tried_again_once_the_others_have():
    job = Job({"a": 1, "b": 1}, minimum=1, maximum=2)
    assert job.host_of["w2"] == "b"
    for worker in ("w2", "w3", "w4"):
        job.exited(worker, 3, "exit status 3")
    job.start(["w1"])
    job.wait(29)
    assert "w5" not in job.host_of
    job.wait(2)
    assert job.host_of["w5"] == "b"


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
    job.all_ready(["w1", "w2", "w3"], 1, steps=5)
    assert job.killed == ["w2"]
    assert job.names() == {"w1", "w3"}


def test_of_two_that_cannot_connect_one_is_lost_the_second_time():
    job = started({"a": 2}, minimum=1, maximum=2)
    for generation in (1, 2):
        assert job.killed == []
        job.suspect("w2", generation, "w1", "timed out")
        job.wait(2.5)
        job.all_ready(["w1", "w2"], generation, steps=5)
    assert job.killed == ["w2"]


def test_a_new_worker_is_blamed_before_one_that_has_trained():
    job = started({"a": 3}, minimum=1, maximum=3)
    job.go_on_without("w3", steps=5)
    job.be_ready("w4")
    job.all_ready(["w1", "w2"], 2, steps=7)
    assert job.names() == {"w1", "w2", "w4"}
    job.suspect("w4", 3, "w1", "timed out")
    job.suspect("w2", 3, "w1", "timed out")
    job.wait(2.5)
    job.all_ready(["w1", "w2", "w4"], 3, steps=7)
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
    job.go_on_without("w3", steps=5)
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
