"""How supervisors are started: as a child, or by ssh on another machine."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import time
from collections.abc import Callable

from tfring.launcher import orders
from tfring.launcher.elastic.child import Child, Program
from tfring.launcher.elastic.elastic_job import ElasticJob
from tfring.launcher.hosts import Host
from tfring.launcher.reason import last_line
from tfring.rendezvous import addresses, wire

# How long a supervisor may take to connect to the launcher.
CONNECT_SECONDS = 60.0
# How much of a supervisor's stderr is kept: its last line says why a host
# cannot be reached.
_LAST_WORDS_BYTES = 1 << 14

_MODULE = "tfring.launcher.elastic.supervisor"


def _address_for(host: str, job: ElasticJob) -> str:
    """Returns the address of this machine at which a host reaches it.

    Raises:
        OSError: The host's name is unknown, or no route leads to it.
    """
    if job.interface:
        found = socket.getaddrinfo(job.interface, 9, type=socket.SOCK_DGRAM)
        return str(found[0][-1][0])
    if not Host(host, 1).is_local():
        return addresses.towards(host)
    others = [each.name for each in job.hosts if not each.is_local()]
    if not others and not job.script:
        return "127.0.0.1"
    for other in others:
        # Try the next machine if the name of this one is unknown.
        with contextlib.suppress(OSError):
            return addresses.towards(other)
    return addresses.towards(socket.gethostname())


class Agent:
    """The process of a supervisor or of its ssh. No method waits for it."""

    def __init__(
        self,
        host: str,
        job: ElasticJob,
        token: str,
        wake: Callable[[], None],
    ) -> None:
        """Starts a supervisor, which must connect before `connect_by`.

        Call `tick` until the supervisor is connected, and soon after each
        `wake`.
        """
        self.connect_by = time.monotonic() + CONNECT_SECONDS
        self._host = host
        self._job = job
        self._token = token
        self._wake = wake
        # The child's thread puts the address of this machine here, and waits
        # for the address at which the launcher listens; None cancels the start.
        self._interfaces: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._addresses: queue.SimpleQueue[wire.Address | None] = (
            queue.SimpleQueue()
        )
        self._has_name = False
        self._error = ""
        self._child = Child(self._program, _LAST_WORDS_BYTES)

    def tick(self, listen: Callable[[str], wire.Address]) -> str:
        """Lets the supervisor start once this machine's address is known.

        `listen` opens the rendezvous at an address of this machine, and returns
        the address with its port.

        Returns:
            Why the supervisor has failed; "" while it has not.
        """
        if not self._interfaces.empty():
            self._has_name = True
            try:
                self._addresses.put(listen(self._interfaces.get()))
            except OSError as error:
                self._error = str(error)
                self.kill()
        if self._error or self._child.is_over:
            why = (
                self._error or self._child.error or last_line(self._child.text)
            )
            return why or "its supervisor has ended"
        if time.monotonic() < self.connect_by:
            return ""
        if not self._has_name:
            return f"no name server answers in {CONNECT_SECONDS:g} s"
        return (
            f"its supervisor does not connect to the launcher in "
            f"{CONNECT_SECONDS:g} s; a firewall may be in between"
        )

    def kill(self) -> None:
        """Kills the process. A supervisor elsewhere then ends by itself."""
        self._addresses.put(None)
        self._child.kill()

    def _program(self) -> Program | None:
        """Returns the supervisor's program. Runs in the child's thread."""
        host = Host(self._host, 1)
        interface = _address_for(host.name, self._job)
        self._interfaces.put(interface)
        self._wake()
        address = self._addresses.get()
        if address is None:
            return None
        configuration = self._job.configuration(host.name, self._token, address)
        if host.is_local():
            configuration["interface"] = interface
        else:
            configuration["environment"] = {
                name: self._job.environment[name] for name in self._job.exported
            }
        command = host.command(_MODULE, os.environ.get("PYTHONPATH", ""))
        return Program(command, orders.encoded(configuration), reads="stderr")
