"""Messages about a job, made from its ranks' reports."""

import os
import re
import signal
import subprocess
import sys

import pytest

from tfring.launcher import wrapper
from tfring.launcher.wrapper import RankStates, Report

EXIT_3, KILLED = Report(1, "exit", 3, "a"), Report(1, "exit", 137, "a")
FAILED_0 = Report(0, "failed", 1, "b")


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ([EXIT_3, FAILED_0], (1, 3)),
        ([KILLED, FAILED_0], (1, 137)),
        ([FAILED_0, EXIT_3], (0, 1)),
        # The remaining ranks fail while it exits, before its process has ended.
        ([Report(1, "leaving", 3, "a"), FAILED_0, EXIT_3], (1, 3)),
        # It has caught its SystemExit.
        (
            [Report(1, "leaving", 3, "a"), Report(1, "exit", 0, "a"), FAILED_0],
            (0, 1),
        ),
        ([Report(rank, "exit", 0, "a") for rank in range(3)], None),
    ],
)
def test_who_failed_first(reports, expected):
    states = RankStates()
    for report in reports:
        states.take(report)
    failure = states.first_failure
    assert (failure and (failure.rank, failure.status)) == expected


@pytest.mark.parametrize(
    ("status", "exception", "last_line", "how"),
    [
        (3, "", "words", "exit status 3; its last line: words"),
        (137, "", "", "killed by SIGKILL."),
        (1, "ValueError: boom", "words", "ValueError: boom"),
        (3, "ValueError: boom", "", "exit status 3."),
        (137, "ValueError: boom", "", "killed by SIGKILL."),
    ],
)
def test_description(status, exception, last_line, how):
    said = wrapper.describe("rank 1", "a", status, exception, last_line)
    assert said == f"rank 1 (host a) failed first: {how}"


def test_a_rank_that_asks_for_another_start_has_not_failed():
    said = wrapper.describe("rank 1", "a", 75, "", "words")
    assert said == (
        "rank 1 (host a) has saved and asks for another start: exit status 75."
    )


# SIGUSR1 is passed on as it is, SIGALRM as SIGTERM.
WRAPPER = wrapper.command_line({10: 10, 14: 15})


@pytest.fixture
def start():
    """Returns a function that starts a Python program in the wrapper.

    It waits for the program's first line, `ready`.
    """
    started = []

    def start(program):
        process = subprocess.Popen(
            [*WRAPPER, sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        assert process.stderr.readline().startswith("\x1estarted 0 ")
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_the_rank_keeps_descriptors_and_reports():
    """The rank's report also arrives if the rank redirects its stderr."""
    program = (
        "import os, sys; from tfring._core import reports;"
        "os.dup2(os.open('/dev/null', os.O_WRONLY), 2);"
        "reports.tell('failed', 1);"
        "os.write(int(os.environ['PMI_FD']), b'to mpirun');"
        "print(*sys.argv[1:], repr(sys.stdin.read())); sys.exit(3)"
    )
    reader, pmi_fd = os.pipe()
    ended = subprocess.run(
        [*WRAPPER, sys.executable, "-c", program, "a b", "$c"],
        env={**os.environ, "PMI_FD": str(pmi_fd)},
        capture_output=True,
        input=b"not for the rank",
        pass_fds=[pmi_fd],
    )
    os.close(pmi_fd)
    host = os.uname().nodename.encode()
    assert ended.stdout == b"a b $c ''\n"
    reports = (
        b"started 0 %b" % host,
        b"failed 1 %b" % host,
        b"exit 3 %b" % host,
    )
    assert sorted(ended.stderr.splitlines()) == sorted(
        b"\x1e%b\x1f" % report for report in reports
    )
    assert ended.returncode == 3
    assert os.read(reader, 100) == b"to mpirun"
    os.close(reader)


@pytest.mark.parametrize(
    ("program", "status", "said"),
    [
        (["sh", "-c", "echo mine >&2; kill -9 $$"], 137, b"mine\n"),
        (
            ["no-such-program"],
            127,
            b"tfringrun: no-such-program: No such file or directory\n",
        ),
    ],
)
def test_the_wrapper_does_not_say_how_the_rank_ended(program, status, said):
    ended = subprocess.run([*WRAPPER, *program], capture_output=True)
    assert ended.returncode == status
    text = re.sub(rb"\x1estarted 0 \S+\x1f\n", b"", ended.stderr)
    assert re.fullmatch(said + rb"\x1eexit %d \S+\x1f\n" % status, text)


def test_the_rank_has_the_environment_as_it_is():
    """Shells drop names that they cannot have, such as those of functions."""
    environment = {
        b"BASH_FUNC_module%%": b"() {  eval $(modulecmd bash $*)\n}",
        b"a.b": b"1",
        b"with space": b"\xff",
        b"TFRING_EMPTY": b"",
        b"LC_ALL": b"C",  # Without it Python sets LC_CTYPE.
    }
    ended = subprocess.run(
        [*WRAPPER, "env", "-0"], env=environment, capture_output=True
    )
    pairs = [each.partition(b"=") for each in ended.stdout.split(b"\0")[:-1]]
    seen = {name: value for name, _, value in pairs}
    assert seen.pop(b"TFRING_REPORTS")
    assert seen == environment


SAVES = """
import signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: print("USR1", flush=True))
signal.signal(signal.SIGTERM, lambda *_: (print("TERM"), sys.exit(3)))
print("ready", flush=True)
while True:
    time.sleep(1000)
"""


def test_a_rank_that_ends_after_a_signal_does_not_end_the_others(start):
    """An MPI launcher would end the job with the first process that ends."""
    process = start(SAVES)
    process.send_signal(signal.SIGUSR1)
    assert process.stdout.readline() == "USR1\n"
    process.send_signal(signal.SIGALRM)
    assert process.stdout.readline() == "TERM\n"
    assert process.stderr.readline().startswith("\x1eexit 3 ")
    assert process.poll() is None
    process.terminate()
    assert process.wait() == 3


STUBBORN = """
import signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "1000"])
print("ready", flush=True)
time.sleep(1000)
"""


def test_sigterm_ends_the_ranks_group(start):
    process = start(STUBBORN)
    process.terminate()
    # It returns once the child's copies of the pipes are closed, too.
    errors = process.communicate()[1]
    assert process.returncode == 137
    assert re.fullmatch(r"\x1eexit 137 \S+\x1f\n", errors)


def test_a_rank_does_not_outlive_a_killed_wrapper(start):
    process = start(SAVES)
    process.kill()
    assert process.stdout.read() == ""


def test_what_a_rank_has_used_is_counted():
    """The wrapper's usage includes the rank's, here its memory."""
    program = "b'.' * (200 << 20)"
    wrapper = subprocess.Popen([*WRAPPER, sys.executable, "-c", program])
    _, status, used = os.wait4(wrapper.pid, 0)
    wrapper.returncode = os.waitstatus_to_exitcode(status)
    assert wrapper.returncode == 0
    assert used.ru_maxrss > 200 << 10  # in KiB
