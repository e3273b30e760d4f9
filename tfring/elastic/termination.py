"""SIGTERM in an elastic job: the worker goes with its next commit."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from tfring._core import runtime

_is_asked = False
# The process whose handler it is; its forked children have it, too.
_worker = 0


@contextlib.contextmanager
def goes_with_a_commit() -> Iterator[None]:
    """Within it, SIGTERM lets this worker go on until its next commit.

    Only in jobs elastic over TCP, which have another take its place, and where
    the script has no handler of its own.
    """
    is_ours = (
        runtime.may_grow()
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )
    if not is_ours:
        yield
        return
    global _worker
    _worker = os.getpid()
    signal.signal(signal.SIGTERM, _ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _ask(number: int, frame: FrameType | None) -> None:
    global _is_asked
    if os.getpid() == _worker:
        _is_asked = True
    else:  # A child that has been terminated before it was itself.
        _be_a_child()
        os.kill(os.getpid(), signal.SIGTERM)


def _be_a_child() -> None:
    """Ends by SIGTERM, as `multiprocessing` expects of its processes."""
    if signal.getsignal(signal.SIGTERM) is _ask:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


os.register_at_fork(after_in_child=_be_a_child)


def leave_if_asked() -> None:
    """Ends this process if SIGTERM has come; call it after a commit."""
    if _is_asked:
        runtime.say_goodbye()
        sys.exit(0)
