"""The compilation says how far it is."""

import io
import os
import re
import subprocess

import pytest

from tfring_build import progress


@pytest.fixture
def make(tmp_path):
    makefile = tmp_path / "Makefile"
    # It echoes like tools/native.mk.
    makefile.write_text(
        "all: a.o b.o c.o; @true\n"
        "%.o:\n"
        '\t@echo "plain: ring/$*.cc"\n'
        "\t@sleep 0.1; test x$* != x$(BAD)\n"
    )

    def make(bad="", terminal=None):
        # Not as a part of the make that runs these tests.
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("MAKE", "MFLAGS"))
        }
        progress.run_make(
            ["make", "-f", str(makefile), f"BAD={bad}"], environment, terminal
        )

    return make


def test_files_are_counted(make, monkeypatch, capfd):
    monkeypatch.setattr(progress, "_SECONDS", 0.05)
    terminal = io.StringIO()
    make(terminal=terminal)
    said = terminal.getvalue().replace("\r\033[K", "").splitlines()
    assert said[0] == "tfring: compiling 3 files, which takes some minutes"
    # And perhaps of the first, where make takes its time to start.
    assert [re.sub(r"\d+ s$", "", line) for line in said[-2:]] == [
        "tfring: file 2 of 3 after ",
        "tfring: file 3 of 3 after ",
    ]
    assert capfd.readouterr().out.splitlines() == [
        f"plain: ring/{name}.cc" for name in "abc"
    ]


def test_a_failure_is_one(make):
    with pytest.raises(subprocess.CalledProcessError):
        make(bad="b")


def test_only_pip_hides_a_build(monkeypatch):
    for name in ("PIP_BUILD_TRACKER", "_PYPROJECT_HOOKS_BUILD_BACKEND"):
        monkeypatch.delenv(name, raising=False)
    assert progress.hidden_terminal() is None
