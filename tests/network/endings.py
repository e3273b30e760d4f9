"""What a job says, and how it ends."""

import re
import subprocess

import pytest


def finish(process, timeout):
    """The rest of a job's output; fails the test if it goes on for longer."""
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired as error:
        written = (error.stdout or b"").decode(errors="replace")
        pytest.fail(f"still running after {timeout} s:\n{written}")
    return output


def read_until(process, pattern):
    """A job's output up to the line with a pattern."""
    output = ""
    while not re.search(pattern, output):
        line = process.stdout.readline()
        assert line, output
        output += line
    return output
