"""Signals to this process, and the processes below it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TypeVar

_Key = TypeVar("_Key")

# Signals by which batch systems warn a job. The ranks get them.
FORWARDED = (signal.SIGUSR1, signal.SIGUSR2)
# The other three ask a job to end. The ranks get them, and have a grace.
HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *FORWARDED)

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Makes this process adopt its descendants when their parents end."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent(number: int = signal.SIGTERM) -> None:
    """Makes this process get a signal when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


@contextlib.contextmanager
def signals_to(handler: Callable[[int], None]) -> Iterator[None]:
    """Within the context, passes signals to this process to a handler."""
    previous = {number: signal.getsignal(number) for number in HANDLED}
    for number, before in previous.items():
        if before is not signal.SIG_IGN:  # nohup has ignored it
            signal.signal(number, lambda number, _: handler(number))
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


def open_wake_pipe() -> int:
    """Returns a descriptor that is readable once a signal has come.

    This holds for signals that this process handles and for the end of a child.
    Call it once in a process: the descriptor stays in use.
    """
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    return reader


def pieces(pipes: Mapping[_Key, IO[bytes]]) -> Iterator[tuple[_Key, bytes]]:
    """Yields the key of a pipe with each piece of its data; b"" is its end."""
    with selectors.PollSelector() as selector:
        for key, pipe in pipes.items():
            selector.register(pipe, selectors.EVENT_READ, key)
        while selector.get_map():
            for ready, _ in selector.select():
                data = os.read(ready.fd, 1 << 16)
                if not data:
                    selector.unregister(ready.fileobj)
                yield ready.data, data


def ended_child() -> int:
    """Returns the PID of an ended child that was not waited for, or 0."""
    try:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return 0
    return 0 if ended is None else ended.si_pid


def kill_descendants(grace_seconds: float) -> None:
    """Ends all processes below this one: SIGTERM, then SIGKILL."""
    deadline = time.monotonic() + grace_seconds
    if grace_seconds > 0:
        _signal_all(descendants(), signal.SIGTERM)
    while pids := descendants():
        if time.monotonic() >= deadline:
            _signal_all(pids, signal.SIGKILL)
        time.sleep(0.02)
        if time.monotonic() > deadline + 5.0:  # stuck in the kernel
            return


def descendants() -> list[int]:
    """Returns the living processes that this one or its children started."""
    parents = {}
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            state, parent, *_ = stat_fields(directory.name)
            if state != "Z":
                parents[int(directory.name)] = int(parent)
    found = {os.getpid()}
    while more := {
        pid
        for pid, parent in parents.items()
        if parent in found and pid not in found
    }:
        found |= more
    return sorted(found - {os.getpid()})


def stat_fields(process: int | str) -> list[str]:
    """Returns the fields of /proc/PID/stat from the state on.

    Raises:
        OSError: There is no such process.
    """
    stat = Path(f"/proc/{process}/stat").read_text()
    # The name of the program, in parentheses, may contain anything.
    return stat.rpartition(")")[2].split()


def kill_group(leader: int) -> None:
    """Kills what is left of a process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _signal_all(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):  # It has ended by itself.
            os.kill(pid, number)
