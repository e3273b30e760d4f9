"""Names, scripts and programs beside a training, which stall or fail."""

import socket
import subprocess
import tempfile
import threading
import types

import pytest
from waiting import wait_until

from tfring.launcher.elastic import agents, discovery
from tfring.launcher.elastic.child import Child, Program
from tfring.launcher.elastic.discovery import LONGEST_BYTES, Discovery
from tfring.launcher.hosts import Host

# Longer is a hang.
LIMIT_SECONDS = 60


@pytest.fixture
def make_script(tmp_path):
    """Returns a function that writes a shell script, and gives its path."""

    def make_script(text):
        path = tmp_path / "hosts.sh"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    return make_script


@pytest.fixture
def stalled(monkeypatch):
    """Returns a function that makes another one wait until the test is over."""
    over = threading.Event()

    def stalled(owner, name):
        original, calls = getattr(owner, name), []

        def wait(*arguments, **options):
            calls.append(arguments)
            over.wait(LIMIT_SECONDS)
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, wait)
        return calls, over

    yield stalled
    over.set()


def poll_until_known(found, now=0.0):
    """Polls until the script has ended; returns the hosts, or the error."""
    return wait_until(lambda: found.poll(now) or found.error)


def job_of(*hosts, interface="", script=""):
    return types.SimpleNamespace(
        hosts=[Host(name, 1) for name in hosts],
        interface=interface,
        script=script,
        environment={},
        exported=[],
        configuration=lambda host, token, address: {"address": address},
    )


def test_a_script_whose_start_stalls_is_not_waited_for(make_script, stalled):
    found = Discovery(make_script("echo a:2"))
    calls, over = stalled(subprocess, "Popen")
    assert found.poll(0.0) is None
    wait_until(lambda: calls)
    assert found.poll(59.0) is None
    assert found.error == ""
    assert found.poll(60.0) is None
    assert found.error == "it did not end in 60 s"
    # After the error the script is not started again.
    assert found.poll(1000.0) is None
    assert len(calls) == 1
    over.set()
    wait_until(lambda: found.poll(1000.0) is None and found._child is None)
    found.error = ""
    found.poll(1001.0)
    assert poll_until_known(found, 1002.0) == {"a": 2}


@pytest.mark.parametrize(
    ("owner", "name"), [(subprocess, "Popen"), (threading.Thread, "start")]
)
def test_a_script_that_cannot_be_started_is_an_error(
    make_script, monkeypatch, owner, name
):
    def fail(*arguments, **options):
        raise RuntimeError("there is no process left")

    found = Discovery(make_script("echo a:2"))
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail)
        assert poll_until_known(found) == "there is no process left"
    found.error = ""
    assert poll_until_known(found, 1.0) == {"a": 2}


def test_a_missing_folder_for_temporary_files_changes_nothing(
    make_script, monkeypatch, tmp_path
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    assert poll_until_known(Discovery(make_script("echo a:2"))) == {"a": 2}


def test_a_script_that_prints_without_end_is_ended(make_script):
    found = Discovery(make_script("exec yes a:2"))
    assert poll_until_known(found) == "it printed more than 1 MiB"
    child = found._child
    wait_until(lambda: found.poll(0.0) is None and found._child is None)
    assert child.status == -9
    assert len(child.text) == LONGEST_BYTES


def test_a_script_has_ended_although_another_process_has_its_output(
    make_script,
):
    script = make_script("sleep 1000 &\necho a:2")
    assert poll_until_known(Discovery(script)) == {"a": 2}


def test_a_program_gets_its_configuration_although_it_says_much(tmp_path):
    path = tmp_path / "read"
    words = "head -c 200000 /dev/zero >&2; head -c 200000 >$0; echo why >&2"
    child = Child(
        lambda: Program(
            ["sh", "-c", words, str(path)], b"x" * 200000, reads="stderr"
        ),
        most_bytes=100,
    )
    wait_until(lambda: child.is_over)
    assert path.read_bytes() == b"x" * 200000
    assert child.text_bytes == 200004
    assert child.text.endswith(b"why\n")
    assert len(child.text) == 100


def test_a_program_that_is_killed_before_its_start_does_not_run(stalled):
    calls, over = stalled(subprocess, "Popen")
    child = Child(lambda: Program(["sleep", "1000"]), most_bytes=1)
    wait_until(lambda: calls)
    child.kill()
    assert not child.is_over
    over.set()
    wait_until(lambda: child.is_over)
    assert child.status == -9


def make_agent(host, job, wake=lambda: None):
    return agents.Agent(host, job, "token", wake)


def test_a_name_that_nobody_answers_for_is_not_waited_for(stalled):
    calls, _ = stalled(socket, "getaddrinfo")
    agent = make_agent("node7", job_of("localhost", "node7"))
    wait_until(lambda: calls)
    assert agent.tick(lambda address: ("", 0)) == ""
    agent.connect_by = 0.0
    why = agent.tick(lambda address: ("", 0))
    assert why == "no name server answers in 60 s"
    agent.kill()


def test_a_supervisor_that_cannot_be_started_says_why(monkeypatch):
    def unknown(name, *arguments, **options):
        raise socket.gaierror(socket.EAI_NONAME, f"{name} is not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    agent = make_agent("node7", job_of("node7"))
    why = wait_until(lambda: agent.tick(lambda address: ("", 0)))
    assert "node7 is not known" in why


def test_a_supervisor_is_told_where_the_launcher_listens(monkeypatch):
    monkeypatch.setattr(
        agents.Host, "command", lambda *_: ["sh", "-c", "cat >&2"]
    )
    known = threading.Event()
    agent = make_agent("localhost", job_of("localhost"), wake=known.set)
    asked = []

    def listen(address):
        asked.append(address)
        return address, 7

    # The launcher need not look before it is woken.
    assert known.wait(60)
    assert agent.tick(listen) == ""
    wait_until(lambda: b"\n" in agent._child.text)
    assert asked == ["127.0.0.1"]
    assert agent._child.text == (
        b'{"address": ["127.0.0.1", 7], "interface": "127.0.0.1"}\n'
    )
    agent.kill()


def test_no_address_to_listen_at_is_an_error_of_the_host():
    def listen(address):
        raise OSError("no descriptor is left")

    agent = make_agent("localhost", job_of("localhost"))
    why = wait_until(lambda: agent.tick(listen))
    assert why == "no descriptor is left"


def test_this_machine_starts_although_another_has_no_name(monkeypatch):
    lookup = socket.getaddrinfo

    def of_names(name, *arguments, **options):
        if name.startswith("dead"):
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return lookup("127.0.0.1", *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", of_names)
    job = job_of("localhost", "dead1", "dead2")
    assert agents._address_for("localhost", job) == "127.0.0.1"
    # The user's own address may be a name, too.
    job = job_of("localhost", interface="head.cluster")
    assert agents._address_for("localhost", job) == "127.0.0.1"


def test_lines_of_a_script():
    assert discovery.parse("a:2\n\n b \n") == {"a": 2, "b": 1}
    for text in ("a:2\na:3", "a:0", "a b"):
        with pytest.raises(ValueError, match="a"):
            discovery.parse(text)
    with pytest.raises(ValueError, match="got 'a:1,b:2'"):
        discovery.parse("a:1,b:2")
