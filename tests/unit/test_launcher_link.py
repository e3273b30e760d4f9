"""Messages between a worker and the rendezvous."""

import os
import subprocess
import sys
import threading
import types

import pytest

from tfring._core import launcher_link, native
from tfring.rendezvous import wire
from tfring.rendezvous.handshake import make_token


class Rendezvous:
    """The rendezvous, in this process."""

    def __init__(self):
        self.token = make_token()
        self.listener = wire.Listener("127.0.0.1", self.token)
        self.hellos = []

    def environment(self):
        host, port = self.listener.address
        return {
            "TFRING_ELASTIC_RENDEZVOUS": f"{host}:{port}",
            "TFRING_ELASTIC_TOKEN": self.token,
            "TFRING_ELASTIC_WORKER": "w7",
            "TFRING_ELASTIC_INTERFACE": "127.0.0.1",
            "TFRING_ELASTIC_HOST": "host1",
        }

    def accept(self):
        """Takes the worker's two connections."""
        sock, hello = self.listener.accept(60)
        self.hellos.append(hello)
        self.channel = wire.Channel(sock)
        self.pulse, hello = self.listener.accept(60)
        self.hellos.append(hello)


@pytest.fixture
def aborted(monkeypatch):
    """The generations that were aborted, with the reasons."""
    aborted = []
    library = types.SimpleNamespace(
        tfring_abort=lambda *arguments: aborted.append(arguments),
        tfring_pulse_start=lambda descriptor, seconds: os.close(descriptor),
    )
    monkeypatch.setattr(native, "capi", lambda: library)
    return aborted


@pytest.fixture
def rendezvous(monkeypatch):
    rendezvous = Rendezvous()
    monkeypatch.setattr(native, "_elastic_variables", {})
    for name, value in rendezvous.environment().items():
        monkeypatch.setenv(name, value)
    return rendezvous


@pytest.fixture
def member(rendezvous, aborted):
    accepting = threading.Thread(target=rendezvous.accept)
    accepting.start()
    member = launcher_link.LauncherLink()
    accepting.join(60)
    yield member
    # Without it the end of the link would end this process.
    member.is_leaving = True
    rendezvous.channel.close()


def form_message(generation, names=("w7", "w8")):
    workers = [
        {"worker": name, "address": ["host", 9], "node": "n", "steps": 4}
        for name in names
    ]
    return {
        "kind": "form",
        "generation": generation,
        "members": workers,
    }


def test_it_says_who_it_is(rendezvous, member):
    worker, pulse = rendezvous.hellos
    assert worker == {"role": "worker", "worker": "w7"}
    assert pulse == {"role": "pulse", "worker": "w7"}
    # A program that it starts would take itself for the worker.
    assert native.is_tcp_job()
    assert native.is_elastic()
    assert "TFRING_ELASTIC_RENDEZVOUS" not in os.environ
    assert "TFRING_ELASTIC_TOKEN" not in os.environ


def test_a_generation_forms(rendezvous, member):
    rendezvous.channel.send({"kind": "unknown"})
    rendezvous.channel.send(form_message(4, ["w8", "w7"]))
    form = member.ready(3, 5)
    assert rendezvous.channel.receive(60) == {
        "kind": "ready",
        "generation": 3,
        "address": list(member.mesh.address),
        "steps": 5,
        "building": False,
    }
    assert (form.generation, form.rank) == (4, 1)
    assert form.members[0] == launcher_link.Member("w8", ("host", 9), "n")


def test_it_says_whom_it_reaches(rendezvous, member):
    workers = [["w1", "a", 1], ["w2", "b", 2], ["w3", "c", 3]]
    member.mesh.probe = lambda worker, address: "w2" in worker and str(address)
    rendezvous.channel.send({"kind": "probe", "workers": workers})
    assert rendezvous.channel.receive(60) == {
        "kind": "probed",
        "reached": ["w1"],
        "failed": "w2",
        "why": "('b', 2)",
    }


def test_who_joins_later_builds_and_knows_its_place(rendezvous, member):
    rendezvous.channel.send(
        {"kind": "build", "rank": 1, "nodes": ["a", "b", "b"]}
    )
    place = member.ready(0, -1, building=True)
    assert rendezvous.channel.receive(60)["building"] is True
    assert (place.rank, place.size, place.local_size) == (1, 3, 2)
    rendezvous.channel.send({"kind": "over", "result": "[1]"})
    assert member.ready(0, -1) == launcher_link.Over("[1]")
    rendezvous.channel.send(form_message(4))
    assert member.ready(0, -1).generation == 4


def test_a_stop_aborts_the_generation(rendezvous, member, aborted):
    assert member.why_stopped(4) is None
    rendezvous.channel.send(
        {"kind": "stop", "generation": 4, "why": "w8 is lost"}
    )
    member.wait_until_stopped(4)
    assert aborted == [(4, b"w8 is lost")]
    assert member.why_stopped(4) == "w8 is lost"
    assert member.why_stopped(5) is None


def test_those_who_wait_are_heard_of_once(rendezvous, member):
    assert not member.has_waiting
    rendezvous.channel.send({"kind": "waiting", "workers": 2})
    rendezvous.channel.send(form_message(5))
    member.ready(4, 0)
    assert not member.has_waiting
    rendezvous.channel.send({"kind": "waiting", "workers": 1})
    rendezvous.channel.send({"kind": "stop", "generation": 5, "why": ""})
    member.wait_until_stopped(5)
    assert member.has_waiting


@pytest.mark.parametrize("answer", ["leave", "stay"])
def test_the_launcher_says_if_it_may_leave(rendezvous, member, answer):
    rendezvous.channel.send({"kind": answer})
    assert member.may_leave() == (answer == "leave")
    assert rendezvous.channel.receive(60) == {"kind": "leaving"}
    assert member.is_leaving == (answer == "leave")


@pytest.mark.parametrize("answer", ["leave", "stay"])
def test_a_worker_that_waits_asks_if_it_may_leave(rendezvous, member, answer):
    member.stop_waiting()  # Without effect: it does not wait.
    results = []

    def wait():
        try:
            results.append(member.ready(3, 5))
        except SystemExit as end:
            results.append(end)

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert rendezvous.channel.receive(60)["kind"] == "ready"
    member.stop_waiting()
    assert rendezvous.channel.receive(60) == {"kind": "leaving"}
    rendezvous.channel.send({"kind": answer})
    if answer == "stay":
        rendezvous.channel.send(form_message(4))
    waiting.join(60)
    [result] = results
    if answer == "leave":
        assert result.code == 0
    else:
        assert result.generation == 4
    assert member.is_leaving == (answer == "leave")


@pytest.mark.parametrize(
    ("message", "is_last"),
    [
        ({"kind": "formed", "generation": 4}, False),
        ({"kind": "bye", "status": 0}, True),
        ({"kind": "error", "text": "ValueError: x"}, True),
    ],
)
def test_what_else_it_says(rendezvous, member, message, is_last):
    member.say(**message)
    assert rendezvous.channel.receive(60) == message
    assert member.is_leaving == is_last


@pytest.mark.parametrize("name", list(Rendezvous().environment()))
def test_a_variable_that_is_missing(rendezvous, monkeypatch, name):
    monkeypatch.delenv(name)
    with pytest.raises(RuntimeError, match=f"{name} is not set"):
        launcher_link.LauncherLink()


_WORKER = """
import os, signal, time, types
from tfring._core import launcher_link, native

native.capi = lambda: types.SimpleNamespace(
    tfring_pulse_start=lambda descriptor, seconds: os.close(descriptor))
link = launcher_link.LauncherLink()
"""


def start_worker(rendezvous, script):
    """Starts a worker, which runs a script once it is connected."""
    process = subprocess.Popen(
        [sys.executable, "-c", _WORKER + script],
        stderr=subprocess.PIPE,
        text=True,
    )
    rendezvous.accept()
    return process


@pytest.mark.parametrize(
    ("end", "status", "words"),
    [
        (
            lambda channel: channel.close(),
            1,
            "tfring: this worker ends, as the launcher is gone",
        ),
        (
            lambda channel: channel.send(
                {"kind": "end", "status": 3, "why": "no more places"}
            ),
            3,
            "tfring: this worker ends: no more places",
        ),
    ],
)
def test_the_launcher_ends_a_worker_that_waits(rendezvous, end, status, words):
    process = start_worker(rendezvous, "time.sleep(1000)")
    end(rendezvous.channel)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == status
    assert words in errors


def test_a_signal_wakes_a_worker_that_waits(rendezvous):
    process = start_worker(
        rendezvous,
        "signal.signal(signal.SIGTERM, lambda *_: link.stop_waiting())\n"
        "link.ready(0, -1)",
    )
    assert rendezvous.channel.receive(60)["kind"] == "ready"
    process.terminate()
    assert rendezvous.channel.receive(60) == {"kind": "leaving"}
    rendezvous.channel.send({"kind": "leave"})
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors


def test_a_fixed_job_has_no_mpi_and_is_not_elastic(monkeypatch):
    monkeypatch.setattr(native, "_elastic_variables", {})
    monkeypatch.setenv("TFRING_ELASTIC_RENDEZVOUS", "127.0.0.1:1")
    monkeypatch.setenv("TFRING_ELASTIC_FIXED", "1")
    for _ in range(2):  # The variables are gone after the first.
        assert native.is_tcp_job()
        assert not native.is_elastic()
    assert "TFRING_ELASTIC_FIXED" not in os.environ
