"""Keeps an MPI launcher that starts ranks of one machine to that machine.

Open MPI's and MPICH's launchers listen for daemons of other hosts, on all
interfaces, also where there are none. Neither has a setting against it: Open
MPI 5.0 ends with "No network interfaces were found" when told to use the
loopback interface (`prte_if_include`), and without its component `oob/tcp`;
MPICH's listens as well when there is but this host. So this process takes a
descriptor of the launcher's sockets that listen, and binds them to the loopback
interface: Linux then refuses what comes by any other.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

_INTERFACE = b"lo"
_ANY_ADDRESS = ("0.0.0.0", "::")
# Calls as young as these have the same numbers on all machines; Python does not
# have the second, and the first not everywhere.
_PIDFD_OPEN = 434
_PIDFD_GETFD = 438

# The launcher opens its sockets in its first moments, unless the machine is
# busy.
_FIRST_SECONDS, _FIRST_PAUSE_SECONDS = 1.0, 0.002
_ALL_SECONDS, _PAUSE_SECONDS = 30.0, 0.02


class LoopbackBinder:
    """Binds a launcher's sockets to the loopback interface as they come.

    Between a socket's first moment and its binding pass a few milliseconds.

    There is no thread for it: the kernel tells a launcher of its parent's death
    once for each thread, and Open MPI's leaves its ranks at the second time.
    """

    def __init__(
        self, pid: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pid = pid
        self._clock = clock
        self._begin = self._due = clock()
        self._process = -1
        self._bound: set[str] = set()
        # Why it cannot be done: an older kernel, or a container's rules.
        self.error: OSError | None = None
        try:
            self._process = _call(_PIDFD_OPEN, pid, 0)
        except OSError as error:
            self.error = error

    def close(self) -> None:
        """Looks no more."""
        if self._process >= 0:
            os.close(self._process)
            self._process = -1

    def look(self) -> float | None:
        """Binds what has come, if a look is due.

        Returns:
            The seconds until the next look is due; None if none is.
        """
        now = self._clock()
        elapsed = now - self._begin
        if self._process < 0 or elapsed > _ALL_SECONDS:
            return None
        if now < self._due:
            return self._due - now
        try:
            self._bind_new()
        except OSError as error:
            if error.errno != errno.ESRCH:  # It has not just ended.
                self.error = error
            self.close()
            return None
        early = elapsed < _FIRST_SECONDS
        pause = _FIRST_PAUSE_SECONDS if early else _PAUSE_SECONDS
        self._due = now + pause
        return pause

    def _bind_new(self) -> None:
        for path in _sockets(self._pid):
            try:
                name = str(path.readlink())
                if name in self._bound:
                    continue
                copy = _call(_PIDFD_GETFD, self._process, int(path.name), 0)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EBADF):  # It is closed.
                    continue
                raise
            with socket.socket(fileno=copy) as listener:
                if _listens_to_all(listener):
                    listener.setsockopt(
                        socket.SOL_SOCKET, socket.SO_BINDTODEVICE, _INTERFACE
                    )
                    self._bound.add(name)


def _sockets(pid: int) -> list[Path]:
    try:
        paths = list(Path(f"/proc/{pid}/fd").iterdir())
    except FileNotFoundError:  # It has ended.
        return []
    return [path for path in paths if path.is_socket()]


def _call(number: int, *arguments: int) -> int:
    """Calls the kernel; gives a descriptor."""
    libc = ctypes.CDLL(None, use_errno=True)
    result = int(libc.syscall(number, *arguments))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


def _listens_to_all(found: socket.socket) -> bool:
    return (
        found.family in (socket.AF_INET, socket.AF_INET6)
        and bool(found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
        and found.getsockname()[0] in _ANY_ADDRESS
    )
