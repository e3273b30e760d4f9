"""`tfringrun --elastic --min-np ...`, with workers that train nothing."""

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import sys
import time
from pathlib import Path

import pytest
from elastic_launches import ENDLESS, IMPATIENT
from jobs import JOB_SECONDS, TFRINGRUN, listening, running, sockets_of


def test_a_job_without_faults(elastic):
    job = elastic("--min-np 2 --max-np 3", "--steps=20")
    job.check_end()
    assert sorted(
        re.findall(r"\[(\d)\] generation 1: rank \1 of 3", job.output)
    )
    assert "lost" not in job.output


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("kill", "killed by SIGKILL"),
        ("fork", "killed by SIGKILL"),
        ("raise", "ValueError: boom"),
        ("exit", "exit status 3"),
        ("quit", "exit status 0"),
        pytest.param(
            *("stop", "nothing was heard of it for 2 s"),
            marks=pytest.mark.thorough,
        ),
        ("term", "it was asked to end"),
    ],
)
def test_a_lost_worker_is_replaced(elastic, what, said):
    job = elastic(
        "--min-np 1 --max-np 3",
        *(*ENDLESS, f"--fault=w2:{what}:10"),
        **(IMPATIENT if what == "stop" else {}),
    )
    in_three = r"[\s\S]*\] generation \d: rank \d of 3"
    job.read_until(f"worker w2 .* is lost(?:{in_three}){{3}}")
    job.let_end()
    job.check_end()
    assert re.search(
        rf"worker w2 \(rank \d, .*\) is lost: .*{said}", job.output
    )
    sizes = re.findall(r"tfringrun: generation \d: (\d)", job.output)
    assert sizes[0] == "3"
    assert sizes[-1] == "3"
    # The remaining workers did not wait for its replacement.
    assert "] builds while the others train" in job.output
    # Each generation begins where the one before has ended.
    steps = [int(s) for s in re.findall(r"from step (-?\d+)", job.output)]
    assert max(steps) >= 10


@pytest.mark.thorough
def test_a_worker_that_is_stopped_before_it_joins_is_replaced(elastic):
    job = elastic(
        "--min-np 2 --max-np 2",
        *("--steps=20", "--fault=w1:early:0"),
        **IMPATIENT,
    )
    job.check_end()
    assert "worker w1 (host localhost) is lost: it is stopped." in job.output


def test_a_spare_is_there_at_once(elastic):
    # Any of the three may be the spare: one of these two is a member.
    job = elastic(
        "--min-np 2 --max-np 2 --spares 1",
        *("--steps=200", "--size=2"),
        *("--fault=w1:kill:50", "--fault=w2:kill:100"),
    )
    job.check_end()
    # The job needs two workers, so the second generation waits for a new one.
    assert "generation 2: 2 workers" in job.output


def test_a_job_in_which_all_fail_says_who_failed_first(elastic):
    faults = [f"--fault=w{i}:raise:5" for i in range(1, 9)]
    job = elastic("--min-np 2 --max-np 2", *faults)
    job.check_end(1)
    last = job.output.splitlines()[-2:]
    assert re.fullmatch(
        r"tfringrun: rank \d \(host localhost\) failed first: ValueError: boom",
        last[1],
    ), job.output
    assert "[0] ValueError: boom" in job.output


def test_a_command_that_fails_at_once_fails_the_job(run):
    output = run(
        [
            *TFRINGRUN,
            *("--elastic", "--max-np", "2", sys.executable, "-c"),
            "raise SystemExit(7)",
        ],
        status=7,
    )
    assert "host localhost is left out" in output
    assert re.search(
        r"worker w\d+ \(host localhost\) failed first: exit status 7", output
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_job(elastic, number):
    job = elastic("--min-np 2 --max-np 2", "--steps=100000")
    job.read_until("generation 1: rank", 2)
    job.process.send_signal(number)
    job.check_end(128 + number)


@pytest.mark.parametrize("are_stopped", [False, True])
def test_a_killed_launcher_leaves_nothing(elastic, are_stopped):
    job = elastic(
        "--min-np 2 --max-np 3",
        *("--steps=100000", "--fault=w3:fork:5"),
    )
    job.read_until("generation 2: rank", 2)
    if are_stopped:
        for pid in job.workers():
            os.kill(pid, signal.SIGSTOP)
    job.process.kill()
    job.wait_until_nothing_is_left()


@pytest.mark.parametrize("which", [0, 1])
def test_a_killed_supervisor_leaves_nothing(elastic, which):
    job = elastic("--min-np 1 --max-np 2", "--steps=100000")
    job.read_until("generation 1: rank", 2)
    pair = job.pids("launcher.elastic.supervisor")
    assert len(pair) == 2
    os.kill(pair[which], signal.SIGKILL)
    # The status is SIGTERM if the remaining process could still forward it.
    assert job.finish() in (1, 143), job.output
    assert "all workers are lost" in job.output
    job.wait_until_nothing_is_left()


def test_a_lost_supervisor_is_replaced_and_so_are_its_workers(elastic):
    # Two hosts, as far as the launcher can tell.
    job = elastic("-H localhost:2,127.0.0.1:2 --min-np 1 --max-np 4", *ENDLESS)
    job.read_until("generation 1: rank", 4)
    first = job.pids("launcher.elastic.supervisor")[0]
    os.kill(first, signal.SIGKILL)
    job.read_until(r"generation \d: 2 workers")
    job.read_until(r"generation \d: 4 workers", 2)
    job.let_end()
    job.check_end()
    assert "localhost was lost" in job.output or (
        "127.0.0.1 was lost" in job.output
    )
    assert re.findall(r"generation \d: (\d) workers", job.output)[-1] == "4"


def test_the_job_ends_when_nobody_reads_its_output(elastic):
    job = elastic("--min-np 2 --max-np 2", "--steps=100000", "--chat")
    job.read_until("generation 1: rank", 2)
    job.process.stdout.close()
    assert job.process.wait(JOB_SECONDS) == 128 + signal.SIGPIPE
    job.wait_until_nothing_is_left()


def ports(pids):
    """Returns the addresses that these processes listen on."""
    own = sockets_of(pids)
    found = listening(Path("/proc/self"))
    return {(host, port) for host, port, inode in found if inode in own}


def test_strangers_do_no_harm(elastic):
    job = elastic("--min-np 2 --max-np 2", *ENDLESS)
    job.read_until("generation 1: rank", 2)
    listening = ports(running(job.marker))
    # The rendezvous and two workers, on the loopback interface alone.
    assert len(listening) == 3
    assert {host for host, _ in listening} == {"127.0.0.1"}
    chance = random.Random(0)
    silent = []
    for _ in range(5):
        for _, port in sorted(listening):
            for text in (
                b"",
                b"GET / HTTP/1.1\r\n\r\n",
                chance.randbytes(5000),
            ):
                sock = socket.create_connection(("127.0.0.1", port), 60)
                silent.append(sock)
                with contextlib.suppress(OSError):
                    sock.sendall(text)
    job.let_end()
    assert job.finish() == 0, job.output
    assert "lost" not in job.output
    assert "generation 2" not in job.output
    for sock in silent:
        sock.close()


def test_the_token_is_on_no_command_line_and_workers_share_it(elastic):
    job = elastic("--min-np 2 --max-np 2", "--steps=100000")
    job.read_until("generation 1: rank", 2)
    tokens = set()
    for pid in job.workers():
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        tokens |= set(re.findall(rb"TFRING_ELASTIC_TOKEN=(\w+)", environment))
    (token,) = tokens
    for pid in running(job.marker):
        assert token not in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_hosts_that_a_script_finds_come_and_go(elastic, tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost:1\n")
    script = tmp_path / "discover"
    script.write_text(f"#!/bin/sh\ncat {hosts}\n")
    script.chmod(0o755)
    job = elastic(
        f"--min-np 1 --max-np 3 --host-discovery-script {script}", *ENDLESS
    )
    job.read_until(r"generation 1: 1 workers on 1 hosts")
    hosts.write_text("localhost:3\n")
    job.read_until(r"generation \d: 3 workers on 1 hosts")
    # A script that fails changes nothing.
    hosts.write_text("localhost:x\n")
    job.read_until(r"The hosts stay as they are")
    job.let_end()
    job.check_end()


# `tfringrun` where no name server answers for node7.
_WITHOUT_NAMES = """
import socket, sys, threading
from tfring.launcher import cli

lookup = socket.getaddrinfo

def answer(name, *arguments, **options):
    if name == "node7":
        threading.Event().wait()
    return lookup(name, *arguments, **options)

socket.getaddrinfo = answer
sys.exit(cli.main())
"""


def test_what_fails_beside_the_training_ends_nothing(elastic, tmp_path):
    """A silent name server, no TMPDIR, and a script that prints without end."""
    hosts, script = tmp_path / "hosts", tmp_path / "discover"
    hosts.write_text("localhost:2\n")
    script.write_text(f"#!/bin/sh\ncat {hosts} || exec yes\n")
    script.chmod(0o755)
    (tmp_path / "tmp").mkdir()
    job = elastic(
        f"--min-np 1 --max-np 2 --host-discovery-script {script}",
        *ENDLESS,
        launcher=(sys.executable, "-c", _WITHOUT_NAMES),
        TMPDIR=str(tmp_path / "tmp"),
        # The name of this machine may have no address.
        TFRING_ELASTIC_INTERFACE="127.0.0.1",
    )
    job.read_until("generation 1: rank", 2)
    shutil.rmtree(tmp_path / "tmp")
    hosts.write_text("node7:1\nlocalhost:2\n")
    job.read_until("hosts: node7:1, localhost:2")
    os.kill(job.workers()[0], signal.SIGKILL)
    job.read_until(r"generation \d: 2 workers", 2)
    hosts.unlink()
    job.read_until("it printed more than 1 MiB. The hosts stay")
    job.let_end()
    job.check_end()


@pytest.mark.thorough
def test_output_that_nobody_reads_harms_no_worker(elastic):
    job = elastic(
        "--min-np 2 --max-np 2",
        *("--steps=100", "--size=2", "--talk=10000000"),
        **IMPATIENT,
    )
    job.read_until("generation 1: rank", 1)
    time.sleep(6)  # Longer than a silence, and than TCP's patience.
    assert job.finish() == 0, job.output[-2000:]
    assert "lost" not in job.output
    assert "generation 2" not in job.output
    assert job.output.count("x") >= 2 * 100 * (10_000_000 // 101)
