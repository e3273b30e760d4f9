"""Jobs on several hosts, which are network namespaces of this machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import host_network
from host_network import HostNetwork

TFRINGRUN = [sys.executable, "-m", "tfring.run"]
PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture(scope="session")
def _possible():
    if reason := host_network.missing():
        pytest.skip(reason)


@pytest.fixture
def make_network(_possible):
    """Returns a function that makes hosts with links of 1 Gbit/s."""
    networks = []

    def make_network(hosts):
        network = HostNetwork(hosts, rate="1gbit")
        networks.append(network)
        return network.__enter__()

    yield make_network
    for network in networks:
        network.close()


@pytest.fixture
def launch(make_network):
    """Returns a function that starts `tfringrun` on a network's host.

    It returns the `Popen`. Its stdout includes stderr.
    """
    started = []

    def launch(network, *words, env=None, **options):
        process = network.popen(
            [*TFRINGRUN, *words],
            env={
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                **(env or {}),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            **options,
        )
        started.append(process)
        return process

    yield launch
    for process in started:
        if process.poll() is None:
            process.kill()  # The launcher hears of it, and the hosts end, too.
            process.communicate()


@pytest.fixture
def start(launch):
    """Returns a function that starts a program's ranks, some on each host."""

    def start(network, slots, program, env=None, options=()):
        return launch(
            network,
            *("-H", network.slots(slots)),
            *options,
            *(sys.executable, PROGRAMS / program),
            env={
                "TF_CPP_MIN_LOG_LEVEL": "2",
                # The tests have more ranks than cores.
                "TF_NUM_INTRAOP_THREADS": "1",
                **(env or {}),
            },
        )

    return start
