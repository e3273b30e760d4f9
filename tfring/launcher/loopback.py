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
import threading
from pathlib import Path

_INTERFACE = b"lo"
_ANY_ADDRESS = ("0.0.0.0", "::")
# Calls as young as these have the same numbers on all machines; Python does not
# have the second, and the first not everywhere.
_PIDFD_OPEN = 434
_PIDFD_GETFD = 438

# The launcher opens its sockets in its first moments, unless the machine is
# busy. The pauses between looks, in seconds.
_PAUSES = (0.002,) * 500 + (0.02,) * 1450


class LoopbackBinder:
    """Binds a launcher's sockets to the loopback interface as they come.

    A thread of its own looks for them, for some seconds. Between a socket's
    first moment and its binding pass a few milliseconds.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._bound: set[str] = set()
        self._stop = threading.Event()
        # Why it cannot be done: an older kernel, or a container's rules.
        self.error: OSError | None = None
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        process = -1
        try:
            process = _call(_PIDFD_OPEN, self._pid, 0)
            for pause in _PAUSES:
                self._bind_new(process)
                if self._stop.wait(pause):
                    return
        except ProcessLookupError:  # It has ended.
            return
        except OSError as error:
            self.error = error
        finally:
            if process >= 0:
                os.close(process)

    def _bind_new(self, process: int) -> None:
        for path in _sockets(self._pid):
            try:
                name = str(path.readlink())
                if name in self._bound:
                    continue
                copy = _call(_PIDFD_GETFD, process, int(path.name), 0)
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
