"""Runs parts of the tests one by one, and ends with a table of them.

`tools/test_parts.py [NAME=VALUE ...] PART ...` makes each PART, a target of the
Makefile, with these variables. All parts run, also after one has failed. Their
tests' times are in build/reports, as JUnit's XML, written by pytest and
googletest.
"""

import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

REPORTS = Path("build/reports")
SLOWEST = 20


class Test(NamedTuple):
    """One test of a report, which may have been skipped."""

    seconds: float
    name: str
    ran: bool


class Part(NamedTuple):
    """The result of a part."""

    name: str
    seconds: float
    passed: bool
    tests: list[Test]


def read_tests(part: str) -> list[Test]:
    """Returns the tests of all reports of `part`, but of broken ones."""
    tests = []
    for path in sorted(REPORTS.glob(f"{part}/**/*.xml")):
        try:
            cases = list(ElementTree.parse(path).iter("testcase"))
        except ElementTree.ParseError as error:
            print(f"{path} cannot be read: {error}")
            continue
        tests += [
            Test(
                float(case.get("time", 0)),
                f"{part}: {case.get('classname')}.{case.get('name')}",
                case.find("skipped") is None,
            )
            for case in cases
        ]
    return tests


def run(
    name: str,
    variables: Sequence[str],
    clock: Callable[[], float] = time.monotonic,
) -> Part:
    """Makes the part `name`; its output goes to ours."""
    print(f"\n==== {name}", flush=True)
    shutil.rmtree(REPORTS / name, ignore_errors=True)
    begin = clock()
    code = subprocess.call(["make", "--no-print-directory", *variables, name])
    return Part(name, clock() - begin, code == 0, read_tests(name))


def table(parts: Sequence[Part]) -> str:
    """Returns the slowest tests, and under them a line for each part."""
    tests = [test for part in parts for test in part.tests]
    slowest = sorted(tests, reverse=True)[:SLOWEST]
    lines = [f"The {len(slowest)} slowest tests", ""]
    lines += [f"{test.seconds:7.1f} s  {test.name}" for test in slowest]
    lines += [
        "",
        f"{'part':14}{'tests':>7}{'skipped':>9}{'seconds':>9}  result",
    ]
    for part in parts:
        ran = sum(test.ran for test in part.tests)
        lines.append(
            f"{part.name:14}{ran:7}{len(part.tests) - ran:9}"
            f"{part.seconds:9.0f}  {'passed' if part.passed else 'FAILED'}"
        )
    seconds = sum(part.seconds for part in parts)
    lines.append(f"{'all':14}{'':16}{seconds:9.0f}")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Runs the parts, and returns 1 if one has failed."""
    variables = [word for word in arguments if "=" in word]
    parts = [run(name, variables) for name in arguments if "=" not in name]
    print(f"\n{table(parts)}", flush=True)
    return 0 if all(part.passed for part in parts) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
