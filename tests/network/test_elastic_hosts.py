"""Elastic jobs on several hosts; the workers train nothing."""

import signal
import sys
import time
from pathlib import Path

import pytest
from endings import finish, read_until

WORKER = Path(__file__).parents[1] / "jobs" / "elastic_worker.py"
ENDLESS = Path(__file__).parent / "programs" / "endless.py"


@pytest.fixture
def elastic(make_network, launch):
    """Returns a function that makes hosts and starts a job on the head."""

    def elastic(hosts, slots, options, *arguments):
        network = make_network(hosts)
        return network, launch(
            network,
            *("--elastic", "-H", network.slots(slots), *options.split()),
            *(sys.executable, WORKER, *arguments),
        )

    return elastic


def workers():
    """The workers of all hosts: they are this machine's processes."""
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = line.read_bytes().split(b"\0")
            if words[1:2] == [str(WORKER).encode()]:
                found.append(int(line.parent.name))
        except OSError:
            continue
    return found


def test_workers_of_a_host_have_neighbouring_ranks(elastic):
    _, job = elastic(2, 2, "--min-np 4", "--steps=20")
    output = finish(job, timeout=60)
    assert "generation 1: 4 workers on 2 hosts" in output


@pytest.mark.parametrize("how", ["kill", "cut"])
def test_a_lost_host(elastic, how):
    network, job = elastic(2, 1, "--min-np 1", "--steps=400")
    output = read_until(job, r"\[1\] generation 1")
    getattr(network, how)("host2")
    output += finish(job, timeout=60)
    assert "tfringrun: host host2 was lost." in output
    assert "generation 2: 1 workers on 1 hosts" in output
    # The workers of the cut host have ended by themselves.
    assert not workers()


def test_what_a_busy_link_loses_for_a_while_ends_nothing(make_network, launch):
    network = make_network(2)
    job = launch(
        network,
        *("--elastic", "-H", network.slots(1), "--min-np", "2"),
        *(sys.executable, ENDLESS),
        # The pulses of a busy machine may be late, too.
        env={
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "TFRING_ELASTIC_SILENCE_SECONDS": "60",
        },
    )
    output = read_until(job, r"\[1\] under way")
    # The launcher hears of both; and TCP sends again after 0.2, 0.6, 1.4 and
    # 3 s, of which the last arrives.
    network.separate("host1", "host2")
    time.sleep(2)
    network.reunite("host1", "host2")
    # More than were on their way to here.
    for _ in range(100):
        output += read_until(job, r"\[0\] under way")
    assert "generation 1: 2 workers" in output
    assert "generation 2" not in output


def test_a_host_that_cannot_be_reached_is_left_out(make_network, launch):
    job = launch(
        make_network(1),
        *("--elastic", "-H", "host1:1,host9:1", "--min-np", "1"),
        *(sys.executable, WORKER, "--steps=20"),
    )
    output = finish(job, timeout=90)
    assert "host9 cannot be reached" in output
    assert "host host9 is left out" in output


def test_a_killed_launcher_leaves_nothing_on_any_host(elastic):
    _, job = elastic(2, 2, "--min-np 4", "--steps=100000")
    read_until(job, r"\[3\] generation 1")
    assert len(workers()) == 4
    job.kill()
    finish(job, timeout=60, status=-signal.SIGKILL)
    end = time.monotonic() + 60
    while workers():
        assert time.monotonic() < end
        time.sleep(0.1)
