"""`tfring.run` starts a function on ranks of several hosts."""

import signal
import sys
from pathlib import Path

import pytest
from jobs import finish, read_until

PROGRAM = f"""
import sys
import tfring

sys.path.insert(0, {str(Path(__file__).parent)!r})

def work(what):
    import host_program

    tfring.init()
    getattr(host_program, what)(tfring.rank(), tfring.size())
    return tfring.rank(), tfring.cross_rank(), tfring.local_rank()

print("results", tfring.run(work, (sys.argv[1],), hosts=sys.argv[2], np=None))
"""


@pytest.fixture
def run_function(make_network, start, write_script):
    """Returns a function that runs host_program's functions on two hosts."""

    def run_function(what, slots=1):
        network = make_network(2)
        script = [sys.executable, write_script(PROGRAM)]
        return network, start(
            [*script, what, network.slots(slots)], popen=network.popen
        )

    return run_function


def test_collectives_and_fit(run_function):
    _, job = run_function("collectives", slots=2)
    output = finish(job)
    assert (
        "rank 0 of 4, local rank 0 of 2, host 0 of 2; shared memory: True; "
        "weights identical: True"
    ) in output
    assert "results [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1)]" in output


@pytest.mark.parametrize("how", ["kill", "cut"])
def test_a_lost_host(run_function, how):
    network, job = run_function("endless")
    read_until(job, "under way")
    getattr(network, how)("host2")
    output = finish(job, status=1)
    assert (
        "RuntimeError: tfring.run: rank 1 (host host2) failed first" in output
    )


def test_an_interrupt_ends_the_ranks_of_all_hosts(run_function):
    network, job = run_function("endless")
    read_until(job, "under way")
    job.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in finish(job, status=-signal.SIGINT)
    assert not any(map(network.processes, network.hosts))
