"""Processes that cron, systemd or a shell start with less than usual."""

import os
import shlex
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

from tfring.launcher import surroundings

PROGRAM = """
import os, sys
from pathlib import Path
from tfring.launcher import surroundings
surroundings.complete()
Path(sys.argv[1]).write_text(f"{os.pipe()[0] > 2} {os.environ['HOME']}")
print("shown", file=sys.stderr)
"""


@pytest.mark.parametrize(
    "closed", ["<&-", ">&-", "2>&-", "<&- >&-", "<&- >&- 2>&-"]
)
def test_closed_streams_and_no_home(closed, tmp_path):
    answer = tmp_path / "answer"
    line = shlex.join([sys.executable, "-c", PROGRAM, str(answer)])
    environment = {k: v for k, v in os.environ.items() if k != "HOME"}
    ended = subprocess.run(
        ["sh", "-c", f"exec {line} {closed}"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.read_text() == f"True {Path('~').expanduser()}"
    assert ended.stdout == ""
    assert ended.stderr == ("" if "2>" in closed else "shown\n")


def test_a_user_without_a_name(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 2**31 - 7)
    monkeypatch.delenv("HOME")
    surroundings.complete()
    assert os.environ["HOME"] == "/"


def test_a_removed_working_directory(tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(ValueError, match="working directory was removed"):
        surroundings.complete()


def test_no_proc(tmp_path, monkeypatch):
    monkeypatch.setattr(surroundings, "_OWN_PROCESS", tmp_path / "none")
    with pytest.raises(ValueError, match="/proc is not mounted"):
        surroundings.complete()


def test_full_folders(monkeypatch, tmp_path):
    free_bytes = {"/dev/shm": 4096, str(tmp_path): 1 << 30}

    def disk_usage(path):
        return types.SimpleNamespace(free=free_bytes[str(path)])

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert surroundings.full_folders() == ["/dev/shm"]
    free_bytes[str(tmp_path)] = 0
    assert surroundings.full_folders() == ["/dev/shm", str(tmp_path)]
    monkeypatch.setenv("TMPDIR", "/no/such/folder")
    free_bytes["/no/such/folder"] = 1 << 30
    assert surroundings.full_folders() == ["/dev/shm"]
