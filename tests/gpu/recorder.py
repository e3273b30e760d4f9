"""A pytest plugin that records each outcome as soon as it is known.

Each rank has one file, with a line for each start and each end of a test, so
that validate.py also sees tests that a crash has cut short. Tests that are
listed in the file `done` are skipped, because an earlier job has run them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tfring._core import native

RESULTS = "TFRING_VALIDATION_RESULTS"  # a directory
END = ""  # in the place of a test: pytest has come to its end


def _write(test: str, outcome: str, message: str = "") -> None:
    rank = native.mpi().COMM_WORLD.rank
    line = {"test": test, "outcome": outcome, "message": message}
    with (Path(os.environ[RESULTS]) / f"{rank}.jsonl").open("a") as file:
        print(json.dumps(line), file=file)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    done = Path(os.environ[RESULTS], "done").read_text().splitlines()
    items[:] = [item for item in items if item.nodeid not in done]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    _write(item.nodeid, "begun")
    return (yield)


# First, as tests/parallel/conftest.py ends the job at a failure.
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped:
        _, _, reason = report.longrepr
        _write(report.nodeid, "skipped", reason.removeprefix("Skipped: "))
    elif report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        message = crash.message if crash else str(report.longrepr)
        _write(report.nodeid, "failed", message)
    elif report.when == "call":
        said = [f"{name}: {value}" for name, value in report.user_properties]
        _write(report.nodeid, "ok", ", ".join(said))


def pytest_sessionfinish() -> None:
    _write(END, "ok")
