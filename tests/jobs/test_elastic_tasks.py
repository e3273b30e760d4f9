"""`tfringrun --rendezvous`: each machine has a task, and they find each other.

The machines are this one, by several names.
"""

import contextlib
import os
import re
import signal
import socket

import pytest
from elastic_launches import ENDLESS
from jobs import TFRINGRUN, running

TOKEN = "0123456789abcdef" * 4


@pytest.fixture
def task(elastic):
    """Returns a function that starts the task of a machine, all at one port."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]

    def task(host, options, *arguments, **env):
        env.setdefault("TFRING_ELASTIC_TOKEN", TOKEN)
        return elastic(
            f"--rendezvous 127.0.0.1:{port} {options}",
            *arguments,
            TFRING_ELASTIC_HOST=host,
            **env,
        )

    return task


def pair(task, options, *arguments):
    """A launcher, and a task that has joined it."""
    head = task("head", options, *arguments)
    # The first task that can listen there is the launcher.
    head.read_until("generation 1: rank")
    other = task("node2", options, *arguments)
    head.read_until("host node2 has come")
    return head, other


def test_tasks_with_the_same_line_are_one_job(task):
    line = ("-np 4 --slots-per-host 2", "--steps=20", "--size=4")
    tasks = [task(name, *line) for name in ("node1", "node2")]
    for each in tasks:
        each.check_end()
    # The first task is the launcher.
    head, other = sorted(tasks, key=lambda each: "joins" in each.output)
    assert "generation 1: 4 workers on 2 hosts" in head.output
    assert "lost" not in head.output
    assert re.fullmatch(
        r"tfringrun: host node\d joins the job at 127.0.0.1:\d+, which shows "
        r"its output.\n",
        other.output,
    )


def test_a_task_that_is_killed_is_a_lost_host_and_may_come_again(task):
    line = ("--min-np 1 --slots-per-host 2", *ENDLESS)
    head, other = pair(task, *line)
    head.read_until(r"generation \d: 4 workers on 2 hosts")
    for pid in running(other.marker):
        # Some end by themselves once the first is killed.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    head.read_until("host node2 was lost")
    head.read_until(r"generation \d: 2 workers on 1 hosts")
    again = task("node2", *line)
    head.read_until("host node2 has come", 2)
    head.read_until(r"generation \d: 4 workers on 2 hosts", 2)
    head.let_end()
    assert head.finish() == 0, head.output
    assert again.finish() == 0, again.output
    for each in (head, other, again):
        each.wait_until_nothing_is_left()


def test_a_task_that_is_asked_to_end_takes_its_workers_along(task):
    head, other = pair(task, "--min-np 1", *ENDLESS)
    head.read_until(r"generation \d: 2 workers on 2 hosts")
    other.process.send_signal(signal.SIGTERM)
    # With status 0 Kubernetes would count the pod as done.
    other.check_end(128 + signal.SIGTERM)
    head.let_end()
    head.check_end()


def test_tasks_end_with_the_status_of_the_job(task):
    faults = [f"--fault=w{i}:exit:5" for i in range(1, 20)]
    # If the host of one task is excluded, the remaining task may wait for more.
    line = ("-np 2 --min-np 2", *faults)
    limit = {"TFRING_ELASTIC_TIMEOUT_SECONDS": "20"}
    head = task("head", *line, **limit)
    other = task("node2", *line, **limit)
    head.check_end(3)
    other.check_end(3)


def test_tasks_end_with_the_launcher(task):
    head, other = pair(task, "--min-np 1", *ENDLESS)
    head.read_until(r"generation \d: 2 workers on 2 hosts")
    head.process.kill()
    other.check_end(1)
    assert "tfringrun: the launcher is gone." in other.output
    head.wait_until_nothing_is_left()


def test_a_task_with_another_token_is_refused(task):
    head = task("head", "--min-np 1", *ENDLESS)
    head.read_until("generation 1: rank")
    other = task("node2", "--min-np 1", TFRING_ELASTIC_TOKEN=TOKEN[::-1])
    assert other.finish() == 1
    assert "with another TFRING_ELASTIC_TOKEN" in other.output
    head.let_end()
    assert head.finish() == 0, head.output
    assert "node2" not in head.output


def test_two_tasks_of_the_same_name(task):
    head, other = pair(task, "--min-np 1", *ENDLESS)
    third = task("node2", "--min-np 1")
    assert third.finish() == 1
    assert "has a supervisor of host node2 already" in third.output
    head.let_end()
    assert head.finish() == 0, head.output
    assert "lost" not in head.output
    assert other.finish() == 0, other.output


def test_a_launcher_that_does_not_come(run):
    output = run(
        [
            *(*TFRINGRUN, "--elastic", "--rendezvous", "no-such-host:29500"),
            *("--min-np", "1", "true"),
        ],
        env={
            "TFRING_ELASTIC_TOKEN": TOKEN,
            "TFRING_ELASTIC_TIMEOUT_SECONDS": "1",
        },
        status=1,
    )
    assert "no-such-host:29500 cannot be reached" in output
