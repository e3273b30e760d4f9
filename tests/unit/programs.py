"""Python programs, each in a process of its own."""

import subprocess
import sys


def run_python(*arguments, **options):
    """Runs Python to its end, and returns the status and the texts."""
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        **options,
    )
