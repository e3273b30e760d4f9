"""An actor of Ray that is a rank; functions run in its process."""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable, Mapping
from typing import Any

from tfring.launcher import private_files
from tfring.launcher.launcher_process import Ticket
from tfring.launcher.placed import Returned
from tfring.launcher.placed_here import Joined


class Worker:
    """One rank. A function that raises ends the job of all ranks."""

    def __init__(self, ticket: Ticket, environment: Mapping[str, str]) -> None:
        import ray

        # The id differs after a restart, because the actor joins as a new
        # place.
        process = ray.get_runtime_context().get_worker_id()[:8]
        place = f"{socket.gethostname()}/{process}"
        self._joined = Joined(ticket, place, environment)
        self._executable: Any = None

    def number(self) -> int:
        """Returns the launcher's number for it, which is the rank and 1."""
        return int(self._joined.worker[1:])

    def run(self, call: Callable[[], Any]) -> Any:
        """Calls a function."""
        try:
            return call()
        except Exception as error:
            self._joined.fail(error)
            raise

    def make(self, call: Callable[[], Any]) -> None:
        """Makes the object that `execute` passes to functions."""
        self._executable = self.run(call)

    def execute(self, fn: Callable[[Any], Any]) -> Any:
        """Calls a function with the object of `make`."""
        return self.run(functools.partial(fn, self._executable))

    def run_to_end(self, call: Callable[[], Any]) -> Returned:
        """Calls a function, and leaves the job."""
        result = private_files.dumps(self.run(call))
        self._joined.leave()
        return Returned(self._joined.worker, False, result)

    def leave(self) -> None:
        """Leaves the job."""
        self._joined.leave()
