"""Hosts and ranks of workers in elastic jobs, as hosts join and leave."""

import types

import pytest
from elastic_job import Job, started

from tfring.launcher import horovodrun
from tfring.launcher.elastic import driver, elastic_job, places
from tfring.launcher.elastic.workers import Worker


def test_a_spare_takes_the_place_of_a_lost_worker_at_once():
    job = Job({"a": 3}, minimum=2, maximum=2, spares=1)
    job.be_ready("w3")
    job.be_ready("w1")
    assert job.names() == {"w1", "w3"}
    job.be_ready("w2")
    job.formed("w1", 1)
    job.formed("w3", 1)
    assert job.got("w1", "waiting") is None
    job.silent("w3", "silent")
    job.be_ready("w1", 1, steps=3)
    assert job.names() == {"w1", "w2"}
    form = job.got("w2", "form")
    assert [m["worker"] for m in form["members"]] == ["w1", "w2"]


@pytest.mark.parametrize(
    ("lost", "order"),
    [
        # w1, w2 and w3 are the ranks 0, 1 and 2; w4 is the spare.
        ("w2", ["w1", "w4", "w3"]),
        ("w3", ["w1", "w2", "w4"]),
        # The spare has no state, so it is not rank 0.
        ("w1", ["w2", "w4", "w3"]),
    ],
)
def test_the_others_keep_their_ranks_beside_a_spare(lost, order):
    job = started({"a": 4}, minimum=2, maximum=3, spares=1)
    job.be_ready("w4")
    job.exited(lost, 137, "killed")
    job.all_ready({"w1", "w2", "w3"} - {lost}, 1, steps=5)
    members = job.got("w4", "form")["members"]
    assert [member["worker"] for member in members] == order


@pytest.mark.parametrize("nodes", ["aabb", "abab"])
def test_nodes_stay_together_beside_a_spare(nodes):
    workers = [
        Worker(f"w{i}", i, node, 0.0, node, ready=True, steps=5, rank=i)
        for i, node in enumerate(nodes)
    ]
    workers[1].rank, workers[1].steps = None, -1
    names = [worker.name for worker in places.in_order(reversed(workers))]
    expected = {"aabb": "w0 w1 w2 w3", "abab": "w0 w2 w3 w1"}[nodes]
    assert " ".join(names) == expected


def test_a_lost_host_loses_its_workers_and_they_start_elsewhere():
    job = Job({"a": 2, "b": 2}, minimum=1, maximum=3)
    assert sorted(job.host_of.values()) == ["a", "a", "b"]
    lost = [w for w, host in job.host_of.items() if host == "a"]
    (left,) = set(job.host_of) - set(lost)
    job.start(["w1", "w2", "w3"])
    job.now += 0.1
    job.host_lost("a", "host a was lost")
    assert job.host_of["w4"] == "b"
    assert "w5" not in job.host_of
    job.be_ready(left, 1, steps=4)
    assert job.names() == {left}
    job.table.came_up("a")
    job.act()
    assert job.host_of["w5"] == "a"


def test_members_of_a_host_that_is_taken_away_leave_with_no_loss():
    job = started({"a": 1, "b": 1}, minimum=1)
    job.table.update({"b": 1, "c": 1})
    job.table.came_up("c")
    job.act()
    assert job.host_of["w3"] == "c"
    assert job.got("w2", "waiting")["workers"] == 0
    job.be_ready("w3")
    job.all_ready(["w1", "w2"], 1, steps=5)
    assert job.names() == {"w2", "w3"}
    assert job.got("w1", "end")["status"] == 0
    assert job.membership.first_failure is None


@pytest.mark.parametrize("maximum", [None, 4])
def test_fewer_slots_are_those_of_their_host(maximum):
    job = started({"a": 2, "b": 2}, minimum=1, maximum=maximum)
    job.table.update({"a": 1, "b": 2})
    job.act()
    assert job.got("w1", "waiting")["workers"] == 0
    job.all_ready(["w1", "w2", "w3", "w4"], 1, steps=5)
    hosts = [job.host_of[name] for name in job.names()]
    assert sorted(hosts) == ["a", "b", "b"]
    assert job.ended is None
    # It is not started again.
    assert job.got("w3", "end")["status"] == 0
    job.exited("w3", 0, "exit status 0")
    job.wait(10)
    assert "w5" not in job.host_of


@pytest.mark.parametrize("maximum", [None, 1])
def test_the_last_of_a_host_that_is_taken_away_hands_over_its_state(maximum):
    job = started({"a": 1}, minimum=1, maximum=maximum)
    job.table.update({"b": 1})
    job.table.came_up("b")
    job.act()
    job.be_ready("w2")
    assert job.got("w1", "waiting")["workers"] == 1
    job.be_ready("w1", 1, steps=5)
    assert job.names() == {"w1", "w2"}
    job.formed("w1", 2)
    job.formed("w2", 2)
    assert job.got("w1", "waiting")["workers"] == 0
    job.all_ready(["w1", "w2"], 2, steps=6)
    assert job.names() == {"w2"}


@pytest.mark.parametrize(
    ("hosts", "limits", "members"),
    [
        ({"a": 2}, {"spares": 1}, 1),
        ({"a": 3}, {"spares": 1}, 2),
        ({"a": 4}, {"maximum": 1}, 1),
        ({"a": 4, "b": 1}, {"maximum": 3}, 3),
        ({"a": 2, "b": 2}, {}, 2),
    ],
)
def test_spares_have_no_cores_of_their_own(hosts, limits, members):
    job = Job(hosts, minimum=1, **limits)
    assert job.cores_shared_by["w1"] == members


@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2)])
def test_members_share_the_cores_of_new_slots(before, after):
    job = started({"a": before}, minimum=1)
    members = [*job.host_of]
    assert {*job.cores_shared_by.values()} == {before}
    job.table.update({"a": after})
    job.act()
    for worker in {*job.host_of} - {*members}:
        job.be_ready(worker)
    job.all_ready(members, 1, steps=5)
    assert {job.cores_shared_by[worker] for worker in job.names()} == {after}


def test_a_place_that_comes_takes_a_share_of_its_node():
    job = Job({}, minimum=1, maximum=2, may_grow=True)
    for worker, place in (("w1", "x/0"), ("w2", "x/1")):
        job.table.add(place, 1, "x")
        job.table.came_up(place)
        job.act()
        job.be_ready(worker)
    assert job.cores_shared_by["w1"] == 1
    job.formed("w1", 1)
    job.all_ready(["w1"], 1, steps=5)
    assert job.cores_shared_by == {"w1": 2, "w2": 2}
    assert job.first_slots == {"w1": 0, "w2": 1}


@pytest.mark.parametrize(
    "options",
    [
        {"ranks": 20_000_000},
        {"ranks": 1024, "spares": 1},
        {"slots_per_task": 1025},
    ],
)
def test_a_machine_takes_a_bounded_number_of_workers(options):
    numbers = {
        **{"ranks": 1, "minimum": 1, "maximum": None, "spares": 0},
        **options,
    }
    with pytest.raises(ValueError, match="at most 1024 workers"):
        elastic_job.make(
            ["true"],
            hosts=[],
            script="",
            environment={},
            exported=[],
            **numbers,
        )


def test_a_job_reads_the_settings_of_its_options(monkeypatch):
    """`horovodrun --elastic-timeout 7` sets a variable for the ranks alone."""
    made = []

    def make(job, view):
        made.append(job)
        return types.SimpleNamespace(run=lambda: 0)

    monkeypatch.setattr(driver, "Driver", make)
    options = [
        *("--min-np", "1", "-np", "1", "--elastic-timeout", "7"),
        *("-x", "TFRING_ELASTIC_STOP_SECONDS=8"),
        *("-x", "TFRING_ELASTIC_SILENCE_SECONDS=9"),
        *("-x", "TFRING_ELASTIC_INTERFACE=eth9"),
    ]
    assert horovodrun.main([*options, "true"]) == 0
    [job] = made
    assert job.limits.replacement_seconds == 7
    assert job.limits.ready_seconds == 8
    assert job.silence_seconds == 9
    assert job.interface == "eth9"
