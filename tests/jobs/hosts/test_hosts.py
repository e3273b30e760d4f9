"""Ranks on several hosts work together, and notice when a host is lost."""

import re
import signal
import subprocess

import pytest
from jobs import finish, read_until, wait_until


@pytest.mark.parametrize(("hosts", "slots"), [(2, 2), (4, 1)])
def test_collectives_and_fit(run_program, hosts, slots):
    _, job = run_program("collectives", hosts, slots)
    output = finish(job)
    size = hosts * slots
    said = sorted(re.findall(r"rank \d of .*", output))
    # Ranks of one host use shared memory; ranks of several hosts do not.
    assert said == [
        f"rank {rank} of {size}, local rank {rank % slots} of {slots}, "
        f"host {rank // slots} of {hosts}; shared memory: {slots > 1}; "
        "weights identical: True"
        for rank in range(size)
    ]


# A killed host ends its processes. Those of a cut host live, out of reach.
@pytest.mark.parametrize("how", ["kill", "cut"])
def test_a_lost_host(run_program, how):
    env = {"TFRING_STALL_SHUTDOWN_TIME_SECONDS": "3"}
    network, job = run_program("endless", env=env)
    read_until(job, r"\[0\] under way(?s:.*)\[1\] under way")
    getattr(network, how)("host2")
    output = finish(job, status=1)
    said = {
        "kill": r"(?m)^tfringrun: host host2 was lost\.$",
        "cut": r"(?m)^\[0\] .*has waited 3 s for rank 1",
    }
    assert re.search(said[how], output), output


def test_a_data_service_of_two_hosts(run_program):
    _, job = run_program("data_service")
    output = finish(job)
    for rank in range(2):
        assert f"rank {rank} has [0, 1, 2, 3, 4, 5]" in output, output


@pytest.mark.parametrize("options", [(), ("--elastic", "--min-np", "2")])
def test_counted_is_what_the_link_carries(run_program, options):
    _, job = run_program("sent_bytes", options=options)
    output = finish(job)
    figures = re.findall(
        r"sent (\d+) bytes, of them (\d+) in allreduces; its link sent (\d+)",
        output,
    )
    assert len(figures) == 2, output
    for sent, reduced, passed in figures:
        # Each of two ranks sends as many bytes as the tensor has.
        assert int(reduced) == 3 * (8 << 20)
        assert int(reduced) < int(sent) < 1.001 * int(reduced)
        # The link also carries headers.
        assert int(sent) < int(passed) < 1.03 * int(sent)


def test_a_signal_reaches_what_is_forked_meanwhile(make_network):
    network = make_network(1)
    program = "echo up; while :; do sleep 100 & sleep 0.01; kill $!; done"
    for _ in range(10):
        job = network.popen(
            ["sh", "-c", program], host="host1", stdout=subprocess.PIPE
        )
        assert job.stdout.readline() == b"up\n"
        network.signal("host1", signal.SIGKILL)
        job.communicate()
        wait_until(lambda: not network.processes("host1"))
