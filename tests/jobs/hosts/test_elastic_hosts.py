"""Elastic jobs on several hosts; the workers train nothing."""

import secrets
import signal
import time

import pytest
from elastic_launches import PATIENT
from jobs import read_until


def test_workers_of_a_host_have_neighbouring_ranks(make_network, elastic_on):
    network = make_network(2)
    job = elastic_on(network, f"-H {network.slots(2)} --min-np 4", "--steps=20")
    job.check_end()
    assert "generation 1: 4 workers on 2 hosts" in job.output


@pytest.mark.parametrize("how", ["kill", "cut"])
def test_a_lost_host(make_network, elastic_on, how):
    network = make_network(2)
    job = elastic_on(
        network, f"-H {network.slots(1)} --min-np 1", "--steps=400"
    )
    job.read_until(r"\[1\] generation 1")
    getattr(network, how)("host2")
    # The workers of the cut host end by themselves.
    job.check_end()
    assert "tfringrun: host host2 was lost." in job.output
    assert "generation 2: 1 workers on 1 hosts" in job.output


def test_what_a_busy_link_loses_for_a_while_ends_nothing(run_program):
    # The pulses of a busy machine may be late, too.
    options = ("--elastic", "--min-np", "2")
    network, job = run_program("endless", options=options, env=PATIENT)
    output = read_until(job, r"\[1\] under way")
    # The launcher still hears from both hosts. TCP sends again after 0.2, 0.6,
    # 1.4 and 3 s, and the last attempt arrives.
    network.separate("host1", "host2")
    time.sleep(2)
    network.reunite("host1", "host2")
    # These are more lines than were on their way.
    for _ in range(100):
        output += read_until(job, r"\[0\] under way")
    assert "generation 1: 2 workers" in output
    assert "generation 2" not in output


def test_a_host_that_cannot_be_reached_is_left_out(make_network, elastic_on):
    job = elastic_on(
        make_network(1), "-H host1:1,host9:1 --min-np 1", "--steps=20"
    )
    job.check_end()
    assert "host9 cannot be reached" in job.output
    assert "host host9 is left out" in job.output


def test_a_killed_launcher_leaves_nothing_on_any_host(make_network, elastic_on):
    network = make_network(2)
    job = elastic_on(
        network, f"-H {network.slots(2)} --min-np 4", "--steps=100000"
    )
    job.read_until(r"\[3\] generation 1")
    assert len(job.workers()) == 4
    job.process.kill()
    job.check_end(-signal.SIGKILL)


def test_hosts_find_each_other_and_one_is_cut_off(make_network, elastic_on):
    """`tfringrun --rendezvous` on each host; the launcher's starts last."""
    network = make_network(3)
    token = secrets.token_hex(32)
    third, second, first = (
        elastic_on(
            network,
            "--min-np 1 --rendezvous host1:29500",
            *("--steps=300", "--size=2"),
            host=host,
            TFRING_ELASTIC_TOKEN=token,
        )
        for host in ("host3", "host2", "host1")
    )
    first.read_until(r"generation \d: 3 workers on 3 hosts")
    network.cut("host3")
    first.read_until(r"host host3\) is lost")
    first.check_end()
    second.check_end()
    # The task of the cut host ends by itself, and prints the reason.
    third.check_end(1)
    assert "the launcher is gone" in third.output
    assert not any(map(network.processes, network.hosts))
