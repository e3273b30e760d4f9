"""Processes that others have placed join a rendezvous by a ticket."""

import os
import signal
import sys
from pathlib import Path

import pytest

from tfring.launcher import placed
from tfring.launcher.hosts import cpus_of_slot
from tfring.launcher.launcher_process import Rendezvous
from tfring.launcher.processes import descendants

SECONDS = 100.0


def worker():
    return os.environ["TFRING_ELASTIC_WORKER"]


@pytest.fixture
def job():
    """Returns a function that runs another one on parts of one rank each.

    It returns the parts, and a function for the end and the results.
    """
    started = []

    def start(fn, ranks, *args, parts=None, environment=None, **options):
        rendezvous = Rendezvous(ranks, caller="tfring.test", **options)
        started.append(rendezvous)
        call = placed.pickled_call("tfring.test", fn, args, {})
        parts = [
            placed.start_part(
                rendezvous.ticket,
                f"place/{number}",
                call,
                environment=environment,
            )
            for number in range(ranks if parts is None else parts)
        ]

        def end():
            outcome = rendezvous.follow()
            returned = [each for part in parts for each in part.returned()]
            return placed.results(returned, outcome)

        return parts, end

    before = set(descendants())
    yield start
    for rendezvous in started:
        rendezvous.stop()
    assert set(descendants()) <= before


def test_parts_of_one_machine_share_memory(job):
    def where():
        return os.environ["TFRING_ELASTIC_HOST"], worker(), sys.path[0]

    _, end = job(where, 3)
    found = end()
    assert [name for _, name, _ in found] == ["w1", "w2", "w3"]
    assert {node for node, _, _ in found} == {placed.node()}
    # Modules are found as this process finds them.
    assert {path for _, _, path in found} == {sys.path[0] or str(Path.cwd())}


def test_parts_of_one_machine_divide_its_cores(job):
    _, end = job(lambda: os.sched_getaffinity(0), 2)
    assert end() == [cpus_of_slot(0, 2), cpus_of_slot(1, 2)]


def test_ranks_import_from_the_search_path_of_their_environment(job, tmp_path):
    (tmp_path / "only_there.py").write_text("value = 7")

    def import_it():
        return __import__("only_there").value

    path = {"PYTHONPATH": str(tmp_path)}
    _, end = job(import_it, 1, environment=path)
    assert end() == [7]


def test_a_part_that_is_killed_ends_the_job(job, tmp_path):
    def wait(path):
        (Path(path) / worker()).touch()
        signal.pause()

    parts, end = job(wait, 2, str(tmp_path))
    while not (tmp_path / "w1").exists() or not (tmp_path / "w2").exists():
        assert not parts[0].has_ended(0.02)
    parts[1].stop()
    with pytest.raises(RuntimeError, match=r"tfring\.test: rank [01] \(host "):
        end()


def test_the_end_of_the_launcher_ends_the_parts(job):
    parts, _ = job(signal.pause, 2)
    rendezvous_parts = [*parts]
    os.kill(_launcher(), signal.SIGKILL)
    assert all(part.has_ended(SECONDS) for part in rendezvous_parts)
    assert [part.returned() for part in rendezvous_parts] == [[], []]


def _launcher():
    """The process of the launcher that this test has started."""
    [found] = [
        pid
        for pid in descendants()
        if b"placed_job" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    return found


def test_too_few_places(job):
    _, end = job(worker, 3, parts=2, timeout_seconds=1.0)
    # On a busy machine the two parts may still be starting.
    with pytest.raises(
        RuntimeError, match=r"[012] of 3 ranks had a place after 1 s"
    ):
        end()


def test_a_ticket_does_not_show_its_token(job):
    rendezvous = Rendezvous(1, caller="tfring.test")
    assert rendezvous.ticket.token not in repr(rendezvous.ticket)
    rendezvous.stop()


def test_an_address_of_another_machine():
    with pytest.raises(OSError, match="assign requested address"):
        Rendezvous(1, caller="tfring.test", interface="192.0.2.1")
