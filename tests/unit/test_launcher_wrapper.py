"""Messages about a job, made from its ranks' reports."""

import os
import re
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
    assert said == f"tfringrun: rank 1 (host a) failed first: {how}"


@pytest.mark.parametrize("pmi_fd", [None, 8, 9])
def test_the_shell_leaves_mpichs_descriptor_alone(pmi_fd):
    """The rank's report also arrives if the rank redirects its stderr."""
    program = (
        "import os, sys; from tfring._core import reports;"
        "os.dup2(os.open('/dev/null', os.O_WRONLY), 2);"
        "reports.tell('failed 1 a');"
        "fd = os.environ.get('PMI_FD'); fd and os.write(int(fd), b'to mpirun');"
        "print(*sys.argv[1:]); sys.exit(3)"
    )
    reader, writer = os.pipe()
    environment = {k: v for k, v in os.environ.items() if k != "PMI_FD"}
    if pmi_fd is not None:
        environment["PMI_FD"] = str(pmi_fd)
    ended = subprocess.run(
        [*wrapper.SHELL, sys.executable, "-c", program, "a b", "$c"],
        env=environment,
        capture_output=True,
        # In place of Hydra, which has it open.
        preexec_fn=lambda: pmi_fd and os.dup2(writer, pmi_fd),
        close_fds=False,
    )
    os.close(writer)
    host = os.uname().nodename.encode()
    assert ended.stdout == b"a b $c\n"
    assert ended.stderr == b"\x1efailed 1 a\x1f\n\x1eexit 3 %b\x1f\n" % host
    assert ended.returncode == 3
    assert os.read(reader, 100) == (b"to mpirun" if pmi_fd else b"")
    os.close(reader)


@pytest.mark.parametrize(
    ("program", "status", "said"),
    [
        (["sh", "-c", "echo mine >&2; kill -9 $$"], 137, rb"mine\n"),
        (["no-such-program"], 127, rb".*no-such-program: not found\n"),
    ],
)
def test_the_shell_does_not_say_how_the_rank_ended(program, status, said):
    ended = subprocess.run([*wrapper.SHELL, *program], capture_output=True)
    assert ended.returncode == status
    assert re.fullmatch(said + rb"\x1eexit %d \S+\x1f\n" % status, ended.stderr)
