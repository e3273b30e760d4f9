"""Hosts as network namespaces, and statistics of their faults."""

import collections
import statistics
import sys
from pathlib import Path

import pytest

import host_network
from host_network import HostNetwork

# tests/jobs has the module `jobs`.
sys.path.append(str(Path(__file__).parents[1] / "jobs"))

# The seconds from a fault to the next step of a survivor, by kind of fault.
# Also the seconds from a later worker's built model to its first step.
_SECONDS = collections.defaultdict(list)


@pytest.fixture(scope="session")
def seconds_by_fault():
    """The seconds from a fault to the next step of a survivor, by kind."""
    return _SECONDS


@pytest.fixture
def network():
    """Four hosts with links of 1 Gbit/s."""
    if reason := host_network.missing():
        pytest.skip(reason)
    with HostNetwork(4, rate="1gbit") as network:
        yield network


def pytest_terminal_summary(terminalreporter):
    if not _SECONDS:
        return
    terminalreporter.section("seconds from a fault to the next step")
    for kind, seconds in sorted(_SECONDS.items()):
        terminalreporter.write_line(
            f"{kind:16} {len(seconds):4} times, median "
            f"{statistics.median(seconds):5.2f}, most {max(seconds):5.2f}"
        )
    count = sum(len(s) for kind, s in _SECONDS.items() if kind[0] != "(")
    terminalreporter.write_line(f"{count} faults in all")
