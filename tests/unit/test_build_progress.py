"""The compilation: its progress, and programs that it needs."""

import io
import itertools
import os
import subprocess

import pytest

from tfring_build import find, progress


def test_a_missing_program_is_named_with_the_remedy(monkeypatch):
    find.check_programs()
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(
        find.NotFoundError, match=r"no g\+\+ and no make\. .*apt-get install"
    ):
        find.check_programs()


@pytest.fixture
def make(tmp_path):
    makefile = tmp_path / "Makefile"
    # It echoes like tools/native.mk.
    makefile.write_text(
        "all: a.o b.o c.o; @true\n"
        "%.o:\n"
        '\t@echo "plain: ring/$*.cc"\n'
        "\t@test x$* != x$(BAD)\n"
    )

    def make(bad="", terminal=None, seconds_of_a_file=0):
        # With MAKEFLAGS this make would be a part of the one that runs the
        # tests.
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("MAKE", "MFLAGS"))
        }
        clock = itertools.count(step=seconds_of_a_file)
        progress.run_make(
            ["make", "-f", str(makefile), f"BAD={bad}"],
            environment,
            terminal,
            clock.__next__,
        )

    return make


@pytest.mark.parametrize(
    ("seconds_of_a_file", "told"),
    [
        (1, []),
        (3, ["file 2 of 3 after 6 s"]),
        (6, [f"file {n} of 3 after {6 * n} s" for n in (1, 2, 3)]),
    ],
)
def test_files_are_counted(make, capfd, seconds_of_a_file, told):
    terminal = io.StringIO()
    make(terminal=terminal, seconds_of_a_file=seconds_of_a_file)
    said = terminal.getvalue().replace("\r\033[Ktfring: ", "").splitlines()
    assert said == ["compiling 3 files, which takes some minutes", *told]
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
