"""The table at the end of the two suites: tools/test_parts.py."""

import subprocess

import pytest

import test_parts

_REPORT = """
<testsuites><testsuite>
  <testcase classname="engine" name="quick" time="0.5"/>
  <testcase classname="engine" name="slow" time="12.25"/>
  <testcase classname="engine" name="absent" time="0"><skipped/></testcase>
</testsuite></testsuites>
"""


@pytest.fixture(autouse=True)
def _make(monkeypatch, tmp_path):
    """A `make` that reports three tests of `good`, and fails for `bad`."""
    monkeypatch.setattr(test_parts, "REPORTS", tmp_path)

    def call(command):
        part = command[-1]
        assert command[:-1] == ["make", "--no-print-directory", "EXTENT=gate"]
        if part == "good":
            (tmp_path / part).mkdir()
            (tmp_path / part / "whole.xml").write_text(_REPORT)
            (tmp_path / part / "broken.xml").write_text(_REPORT[:-20])
        return 2 if part == "bad" else 0

    monkeypatch.setattr(subprocess, "call", call)


def test_a_part_that_fails_does_not_keep_the_next_from_running(capsys):
    assert test_parts.main(["EXTENT=gate", "bad", "good"]) == 1
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["bad", "0", "0", "0", "FAILED"] in rows
    assert ["good", "2", "1", "0", "passed"] in rows


def test_the_slowest_tests_come_first(capsys):
    assert test_parts.main(["EXTENT=gate", "good"]) == 0
    out = capsys.readouterr().out
    assert "broken.xml cannot be read" in out
    assert "12.2 s  good: engine.slow" in out
    assert out.index("engine.slow") < out.index("engine.quick")


def test_reports_of_an_earlier_run_are_not_read(capsys):
    test_parts.main(["EXTENT=gate", "good"])
    capsys.readouterr()
    test_parts.main(["EXTENT=gate", "bad", "good"])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["good", "2", "1", "0", "passed"] in rows


def test_seconds_are_those_of_the_part():
    clock = iter([100.0, 160.5])
    part = test_parts.run("good", ["EXTENT=gate"], lambda: next(clock))
    assert part.seconds == 60.5
