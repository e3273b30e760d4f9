"""Runs of launchers that are scripts of a shell."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tfring.launcher.launcher_process import Rendezvous

# In a process of its own: a run kills what its process has started.
PROGRAM = """
import itertools, os, sys, time
from tfring.launcher import surroundings
from tfring.launcher.mpi_launchers import Family, MpiLauncher
from tfring.launcher.output import View
from tfring.launcher.running_job import RunningJob
from tfring.launcher.stages import Stages

# Each look at it takes a second.
clock = itertools.count().__next__


def meanwhile():
    while "MEANWHILE" in os.environ and not os.path.exists(
        os.environ["MEANWHILE"]
    ):
        time.sleep(0.01)


surroundings.full_folders = lambda: ["/dev/shm", "/tmp"]
job = RunningJob(
    MpiLauncher("mpirun", Family.HYDRA, "5.0.2"),
    ["/bin/sh", "-c", sys.argv[1]],
    {**os.environ, "TFRINGRUN": str(os.getpid())},
    2,
    view=View(verbose="VERBOSE" in os.environ),
    stages=Stages(age_seconds=0.0, clock=clock),
    grace_seconds=30.0,
    meanwhile=meanwhile,
)
status = job.run()
print(job.failure(), file=sys.stderr)
sys.exit(status)
"""


def run(script, before="", **environment):
    ended = subprocess.run(
        [sys.executable, "-c", before + PROGRAM, script],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return ended.returncode, ended.stdout, ended.stderr.splitlines()


@pytest.mark.parametrize(
    ("script", "status", "said"),
    [
        (
            "kill -BUS $$",
            135,
            "killed by SIGBUS for want of space in /dev/shm and /tmp",
        ),
        ("kill -SEGV $$", 139, "killed by SIGSEGV"),
        ("exit 230", 230, "exit status 230"),
    ],
)
def test_a_launcher_that_fails_without_a_word(script, status, said):
    line = f"/bin/sh has failed: {said}."
    assert run(script) == (status, "", [line])


def test_a_launcher_that_says_why():
    words = "no such node"
    assert run(f"echo {words} >&2; exit 3") == (3, "", [words, ""])


def test_signals_go_by_those_that_the_launcher_passes_on():
    """Hydra takes SIGALRM for SIGUSR2, and SIGINT for SIGTERM."""

    def say(word):
        marked = "".join(rf"\036{rank}\037{word}\n" for rank in (0, 1))
        return f'printf "{marked}"'

    started = say(r"\036started 0 a\037")
    ended = say(r"\036exit 85 a\037")
    status, output, errors = run(
        f"""
        trap '{say("USR2")}; kill -TERM $TFRINGRUN' ALRM
        trap '{say("TERM")}; {ended} >&2' INT
        trap 'exit 1' TERM
        {started} >&2
        kill -USR2 $TFRINGRUN
        while true; do sleep 0.01; done
        """
    )
    assert status == 85
    assert output == "[0] USR2\n[1] USR2\n[0] TERM\n[1] TERM\n"
    assert errors == [
        "tfringrun: SIGTERM: the ranks have 30 s to end; a second signal ends "
        "them at once.",
        "",
    ]


def test_the_launchers_end_is_noticed_at_once():
    """No time passes in the wait for events: only an event ends it."""
    timeless = """
import selectors
select = selectors.DefaultSelector.select
selectors.DefaultSelector.select = lambda self, timeout: select(self, None)
"""
    # The launcher ends after its pipes.
    script = "exec >&- 2>&-; sleep 0.1; exit 3"
    status, _, [line] = run(script, before=timeless)
    assert (status, line) == (
        3,
        "/bin/sh has failed: exit status 3.",
    )


def test_the_launcher_starts_before_what_can_wait(tmp_path):
    started = str(tmp_path / "started")
    assert run(f"touch {started}", MEANWHILE=started)[0] == 0


def test_where_the_seconds_went():
    words = ("started", "joining", "joined", "leaving", "exit")
    reports = [
        rf"\036{rank}\037\036{word} 0 a\037\n"
        for word in words
        for rank in (0, 1)
    ]
    _, _, errors = run(f"printf '{''.join(reports)}' >&2", VERBOSE="1")
    assert errors == [
        "tfringrun:     1.00 s until tfringrun was loaded",
        "tfringrun:     1.00 s until the job was prepared",
        "tfringrun:     2.00 s until the last rank was started",
        "tfringrun:     2.00 s until the last rank was in tfring.init",
        "tfringrun:     2.00 s until the last rank had joined the job",
        "tfringrun:     2.00 s until the last rank's script had ended",
        "tfringrun:     2.00 s until the last rank had ended",
        "tfringrun:     1.00 s until the programs that started the ranks had "
        "ended",
        "tfringrun:    13.00 s in all",
        "",
    ]


def test_a_launcher_that_cannot_be_started_leaves_no_descriptors(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    before = len([*Path("/proc/self/fd").iterdir()])
    with pytest.raises(FileNotFoundError) as raised:
        Rendezvous(1, caller="tfring.test")
    assert len([*Path("/proc/self/fd").iterdir()]) == before
    assert raised.value.filename == "/nowhere/python"
