"""A placed process that is itself a rank: `Joined`.

The engine keeps the process, and calls one function after another in it, as in
an actor of Ray. So the process is its own supervisor, and takes the order to
start a worker for itself.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, NoReturn

from tfring.launcher.elastic.launcher_channels import reach
from tfring.launcher.launcher_process import Ticket
from tfring.launcher.placed import node, search_path
from tfring.rendezvous import wire

# Variables that a rank gets unless its process has them.
_DEFAULTS = {"TF_CPP_MIN_LOG_LEVEL": "1"}


class Joined:
    """This process as a worker of a job.

    Attributes:
        worker: The launcher's name for it.
    """

    def __init__(
        self, ticket: Ticket, place: str, environment: Mapping[str, str]
    ) -> None:
        """Joins the job, before anything of tfring is used in this process.

        Waits until the launcher has a place for this worker. In a job whose
        ranks do not change, that is when all processes have come.

        Raises:
            OSError: The launcher cannot be reached, or has ended the job.
        """
        hello: dict[str, Any] = {
            "role": "supervisor",
            "host": place,
            "slots": 1,
            "node": node(),
        }
        sock = reach(ticket.address, ticket.token, hello)
        self._channel = wire.Channel(sock)
        self._is_leaving = False
        start = self._wait_for_start()
        self.worker: str = start["worker"]
        address, port = sock.getpeername()[:2]
        os.environ.update(
            {
                **{k: v for k, v in _DEFAULTS.items() if k not in os.environ},
                **environment,
                **start["environment"],
                "TFRING_ELASTIC_TOKEN": ticket.token,
                "TFRING_ELASTIC_RENDEZVOUS": f"{address}:{port}",
                "TFRING_ELASTIC_INTERFACE": sock.getsockname()[0],
                "TFRING_ELASTIC_HOST": hello["node"],
                "TFRING_ELASTIC_WORKER": self.worker,
            }
        )
        sys.path[:0] = search_path(environment)
        threading.Thread(
            target=self._obey, name="tfring supervisor", daemon=True
        ).start()

    def _wait_for_start(self) -> dict[str, Any]:
        while True:
            message = self._channel.receive(math.inf)
            if message is not None and message["kind"] == "start":
                return message
            if message is not None and message["kind"] in ("end", "refused"):
                raise ConnectionError(
                    message.get("why", "the launcher has ended the job")
                )

    def _obey(self) -> None:
        try:
            while True:
                message = self._channel.receive(math.inf) or {}
                match message.get("kind"):
                    # After a failure the function is about to return its error.
                    case "signal" | "kill" if self._is_leaving:
                        pass
                    case "signal":
                        os.kill(os.getpid(), message["number"])
                    case "kill":
                        threading.Thread(
                            target=_die_in,
                            args=[message["grace_seconds"]],
                            daemon=True,
                        ).start()
                    case "end":
                        # The launcher waits until this connection has ended.
                        self._channel.shutdown()
                        if not self._is_leaving:
                            _die_in(message["grace_seconds"])
                        return
        except OSError:
            if not self._is_leaving:
                _die_in(0.0)

    def fail(self, error: Exception) -> None:
        """Tells the launcher why this rank fails, which ends the job."""
        from tfring._core import tcp_job

        self._is_leaving = True
        text = f"{type(error).__name__}: {error}"
        tcp_job.fail(text)
        self._report(1, text)
        # No other worker can start in this process.
        self._channel.shutdown()

    def leave(self) -> None:
        """Leaves the job at its end; the process goes on without it."""
        self._is_leaving = True
        if "tfring._core.runtime" in sys.modules:
            from tfring._core import runtime, tcp_job

            runtime.shutdown()
            tcp_job.leave(0)
        self._report(0, "exit status 0")

    def _report(self, status: int, how: str) -> None:
        with contextlib.suppress(OSError):
            self._channel.send(
                {
                    "kind": "exited",
                    "worker": self.worker,
                    "status": status,
                    "how": how,
                }
            )


def _die_in(seconds: float) -> NoReturn:
    time.sleep(seconds)
    sys.stdout.flush()
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError
