"""SIGTERM in an elastic job: the worker ends at its next commit.

A worker that waits for a place commits nothing, and ends at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from tfring._core import runtime, tcp_job
from tfring._core.errors import HostsUpdatedInterrupt

_is_asked = False
# The signals that each thread had blocked before it forked.
_blocked = threading.local()


@contextlib.contextmanager
def goes_with_a_commit() -> Iterator[None]:
    """A context in which SIGTERM ends this worker at its next commit.

    This applies in elastic jobs, which replace the worker, unless the script
    has a handler of its own. Forked children end at SIGTERM, as
    `multiprocessing` expects.
    """
    is_ours = (
        runtime.may_grow()
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )
    if not is_ours:
        yield
        return
    signal.signal(signal.SIGTERM, _ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _ask(number: int, frame: FrameType | None) -> None:
    global _is_asked
    _is_asked = True
    tcp_job.stop_waiting()


def is_asked() -> bool:
    """Tells whether SIGTERM has arrived."""
    return _is_asked


def leave_if_asked() -> None:
    """Ends this process if SIGTERM has arrived; call it after a commit.

    Raises:
        HostsUpdatedInterrupt: Another worker must take over its state first.
    """
    if not _is_asked:
        return
    if not runtime.may_leave():
        raise HostsUpdatedInterrupt
    sys.exit(0)


def _hold_back() -> None:
    """Blocks SIGTERM during a fork, in which Python would lose it."""
    _blocked.before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])


def _let_go() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _blocked.before)


def _be_a_child() -> None:
    if signal.getsignal(signal.SIGTERM) is _ask:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _let_go()


os.register_at_fork(
    before=_hold_back, after_in_parent=_let_go, after_in_child=_be_a_child
)
