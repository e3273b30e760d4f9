"""Shows how far a compilation is, also where pip hides its output."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

# Between two lines on the terminal.
_SECONDS = 5.0
# tools/native.mk echoes this before it compiles a file; make -n prints it.
_FILE = re.compile(r'(?:echo ")?plain: \S+\.cc"?$')


def run_make(
    command: Sequence[str],
    environment: Mapping[str, str],
    terminal: TextIO | None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Runs make, and says on `terminal`, if there is one, how far it is.

    make's output goes to stdout, where `pip install -v` shows it.

    Raises:
        CalledProcessError: make has failed.
    """
    total = _count_files(command, environment)
    begin = told = clock()
    if terminal is not None and total:
        _say(terminal, f"compiling {total} files, which takes some minutes")
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True
    ) as make:
        assert make.stdout is not None
        started = 0
        for line in make.stdout:
            print(line, end="", flush=True)
            if not _FILE.match(line):
                continue
            started += 1
            now = clock()
            if terminal is not None and now - told > _SECONDS:
                told = now
                _say(
                    terminal,
                    f"file {started} of {total} after {now - begin:.0f} s",
                )
    if make.returncode != 0:
        raise subprocess.CalledProcessError(make.returncode, command)


def hidden_terminal() -> TextIO | None:
    """The terminal of a user to whom pip shows nothing of this build.

    pip takes stdout and stderr, and shows them if the build fails.
    """
    pip = "PIP_BUILD_TRACKER", "_PYPROJECT_HOOKS_BUILD_BACKEND"
    if sys.stdout.isatty() or not any(name in os.environ for name in pip):
        return None
    try:
        return open("/dev/tty", "w")  # noqa: PTH123
    except OSError:  # There is none.
        return None


def _count_files(command: Sequence[str], environment: Mapping[str, str]) -> int:
    planned = subprocess.run(
        [*command, "--dry-run"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    return sum(_FILE.match(line) is not None for line in planned.splitlines())


def _say(terminal: TextIO, text: str) -> None:
    # Over pip's own line, which is not finished.
    print(f"\r\033[Ktfring: {text}", file=terminal, flush=True)
