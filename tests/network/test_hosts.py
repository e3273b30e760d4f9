"""Ranks on several hosts work together, and notice when a host is lost."""

import re

import pytest
from endings import finish


@pytest.mark.parametrize(("hosts", "slots"), [(2, 2), (4, 1)])
def test_collectives_and_fit(make_network, start, hosts, slots):
    job = start(make_network(hosts), slots, "collectives.py")
    output = finish(job, timeout=100)
    size = hosts * slots
    said = sorted(re.findall(r"rank \d of .*", output))
    # Within a host by shared memory, between hosts without.
    assert said == [
        f"rank {rank} of {size}, local rank {rank % slots} of {slots}, "
        f"host {rank // slots} of {hosts}; shared memory: {slots > 1}; "
        "weights identical: True"
        for rank in range(size)
    ]


# Its processes end with it, or they live on, but their host is out of reach.
@pytest.mark.parametrize("how", ["kill", "cut"])
def test_a_lost_host(make_network, start, how):
    network = make_network(2)
    job = start(
        network,
        1,
        "endless.py",
        env={"TFRING_STALL_SHUTDOWN_TIME_SECONDS": "3"},
    )
    output = ""
    while not ("[0] under way" in output and "[1] under way" in output):
        line = job.stdout.readline()
        assert line, output
        output += line
    getattr(network, how)("host2")
    output = finish(job, timeout=60, status=1)
    said = {
        "kill": r"(?m)^tfringrun: host host2 was lost\.$",
        "cut": r"(?m)^\[0\] .*has waited 3 s for rank 1",
    }
    assert re.search(said[how], output), output


def test_a_data_service_of_two_hosts(make_network, start):
    job = start(make_network(2), 1, "data_service.py")
    output = finish(job, timeout=100)
    for rank in range(2):
        assert f"rank {rank} has [0, 1, 2, 3, 4, 5]" in output, output
