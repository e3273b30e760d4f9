"""Jobs on several hosts, which are network namespaces of this machine."""

import contextlib
import functools
import sys
from pathlib import Path

import pytest
from elastic_launches import IMPATIENT, Elastic
from jobs import TFRINGRUN

import host_network
from host_network import HEAD, HostNetwork

PROGRAM = Path(__file__).with_name("host_program.py")


@pytest.fixture
def make_network():
    """Returns a function that makes hosts with links of 1 Gbit/s."""
    if reason := host_network.missing():
        pytest.skip(reason)
    with contextlib.ExitStack() as stack:
        yield lambda hosts: stack.enter_context(
            HostNetwork(hosts, rate="1gbit")
        )


@pytest.fixture
def run_program(make_network, start):
    """Returns a function that starts host_program.py, with ranks on each host.

    It returns the hosts and the job's `Popen`.
    """

    def run_program(what, hosts=2, slots=1, options=(), env=None):
        network = make_network(hosts)
        return network, start(
            [
                *(*TFRINGRUN, "-H", network.slots(slots), *options),
                *(sys.executable, PROGRAM, what),
            ],
            env=env,
            popen=network.popen,
        )

    return run_program


@pytest.fixture
def elastic_on(start):
    """Returns a function that starts an elastic job on a host of a network."""

    def elastic_on(network, options, *arguments, host=HEAD, **env):
        return Elastic(
            functools.partial(
                start, popen=functools.partial(network.popen, host=host)
            ),
            options.split(),
            arguments,
            {**IMPATIENT, **env},
            TFRINGRUN,
        )

    return elastic_on
