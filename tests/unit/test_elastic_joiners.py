"""The rules of elastic jobs: who joins must have the members' state."""

import pytest
from elastic_job import Job

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
    job.all_ready(["w1", "w2"], 1, steps=1)
    for worker in ("w1", "w2", "w3"):
        job.formed(worker, 2)
    # The worker that described the state is lost, but the members have the
    # state.
    job.exited("w1", 9, "")
    job.training("w4", "begun")
    job.state("w4", STATE)
    job.be_ready("w4")
    assert job.killed == ["w1", "w4"]
