"""The output of a job, and its end."""

import re
import subprocess

import pytest


def finish(process, timeout, status=0):
    """Returns the remaining output; fails at the timeout or another status."""
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired as error:
        written = (error.stdout or b"").decode(errors="replace")
        pytest.fail(f"still running after {timeout} s:\n{written}")
    assert process.returncode == status, output
    return output


def read_until(process, pattern):
    """Returns a job's output up to the line with a pattern."""
    output = ""
    while not re.search(pattern, output):
        line = process.stdout.readline()
        assert line, output
        output += line
    return output
