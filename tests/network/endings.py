"""The output of a job, and its end."""

import re
import subprocess

import pytest


def finish(process, timeout):
    """Returns the remaining output; fails the test at the timeout."""
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired as error:
        written = (error.stdout or b"").decode(errors="replace")
        pytest.fail(f"still running after {timeout} s:\n{written}")
    return output


def read_until(process, pattern):
    """Returns a job's output up to the line with a pattern."""
    output = ""
    while not re.search(pattern, output):
        line = process.stdout.readline()
        assert line, output
        output += line
    return output
