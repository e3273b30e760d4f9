"""`tfringrun --rendezvous` on several hosts, each with a task of its own."""

import secrets
import sys
from pathlib import Path

import pytest
from endings import finish, read_until

WORKER = Path(__file__).parents[1] / "jobs" / "elastic_worker.py"


@pytest.fixture
def tasks(make_network, launch):
    """Returns a function that starts the same line on some hosts."""
    network = make_network(3)
    token = secrets.token_hex(32)

    def tasks(hosts, *arguments):
        return network, [
            launch(
                network,
                *("--elastic", "--min-np", "1", "--rendezvous", "host1:29500"),
                *(sys.executable, WORKER, *arguments),
                host=host,
                env={"TFRING_ELASTIC_TOKEN": token},
            )
            for host in hosts
        ]

    return tasks


def test_hosts_find_each_other_and_one_is_cut_off(tasks):
    line = ("--steps=300", "--size=2")
    # The task of the launcher starts last.
    network, started = tasks(["host3", "host2", "host1"], *line)
    third, second, first = started
    output = read_until(first, r"generation \d: 3 workers on 3 hosts")
    network.cut("host3")
    output += read_until(first, r"host host3\) is lost")
    output += finish(first, timeout=60)
    assert second.wait(20) == 0
    # The task of the cut host has ended by itself, and prints the reason.
    assert "the launcher is gone" in finish(third, timeout=20, status=1)
    assert not any(map(network.processes, network.hosts))
