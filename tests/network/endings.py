"""How a job ends."""

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
