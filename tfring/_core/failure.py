"""Ends the whole job at an exception that nobody catches."""

from __future__ import annotations

import array
import builtins
import fcntl
import os
import stat
import sys
import termios
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from tfring._core import native

# The exit status of Python after a KeyboardInterrupt.
INTERRUPTED = 130
# The longest that a failing rank waits for the launcher to read its output.
_READ_SECONDS = 5.0
# A rank that fails because another has left gives that rank this long to end
# the job with its own status.
_OTHERS_SECONDS = 5.0
_LOOK_SECONDS = 0.001

_exit_status = 0


def end_job_with_this_process(
    is_another_gone: Callable[[], bool], end_job: Callable[[int, str], None]
) -> None:
    """Makes an uncaught exception in this process end the job.

    `is_another_gone` tells whether another rank's end has caused the exception.
    `end_job` takes the exit status, and the exception in words.
    """
    show = sys.excepthook

    def abort_job(kind: Any, value: Any, traceback: Any) -> None:
        if native.is_disowned():
            show(kind, value, traceback)
            return
        interrupted = issubclass(kind, KeyboardInterrupt)
        try:
            show(kind, value, traceback)
            sys.stdout.flush()
            sys.stderr.flush()
            wait_until_read(1, 2)
            if is_another_gone() and not interrupted:
                time.sleep(_OTHERS_SECONDS)
        finally:
            status = INTERRUPTED if interrupted else 1
            end_job(status, f"{kind.__name__}: {value}")

    sys.excepthook = abort_job
    _note_exits()


def exit_status() -> int:
    """Returns the status of the `sys.exit` that ends this process, or 0.

    The status of a bare `raise SystemExit(3)` is unknown here: Python does not
    report it before the process ends.
    """
    return _exit_status


class _Exit(SystemExit):
    """An exception of `sys.exit` that notices whether it ends the process."""

    def __del__(self) -> None:
        global _exit_status
        if sys._getframe().f_back is not None:  # it was caught
            _exit_status = 0


def _note_exits() -> None:
    leave = sys.exit

    def note_and_leave(status: Any = None, /) -> NoReturn:
        global _exit_status
        if threading.current_thread() is not threading.main_thread():
            leave(status)
        if isinstance(status, int):
            _exit_status = status & 0xFF
        else:  # Python prints other values, and exits with 1
            _exit_status = int(status is not None)
        raise _Exit(status)

    sys.exit = note_and_leave
    # The interpreter's `exit` and `quit` raise SystemExit themselves.
    for name in ("exit", "quit"):
        if hasattr(builtins, name):
            setattr(builtins, name, note_and_leave)


def wait_until_read(*descriptors: int) -> None:
    """Waits some seconds until the launcher has read the pipes.

    A rank's messages reach the launcher by pipes, and an abort by another path.
    If both wait, the launcher reads the abort first, and other messages precede
    the failed rank's messages.
    """
    deadline = time.monotonic() + _READ_SECONDS
    while any(map(_unread_bytes, descriptors)):
        if time.monotonic() > deadline:
            return
        time.sleep(_LOOK_SECONDS)


def _unread_bytes(descriptor: int) -> int:
    count = array.array("i", [0])
    try:
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return 0
        fcntl.ioctl(descriptor, termios.FIONREAD, count)
    except OSError:  # the pipe is closed
        return 0
    return count[0]
