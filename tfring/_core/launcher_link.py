"""A worker's connection to the launcher of its elastic job.

The launcher decides the members of each generation of the job. A thread of this
process listens to it, whatever the script does. The thread aborts the
collectives of a generation that is over, and ends this process with the
launcher.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import queue
import socket
import sys
import threading
from typing import Any, NoReturn

from tfring._core import native
from tfring._core.job import Topology
from tfring._core.mesh import Form, Member, Mesh
from tfring.rendezvous import wire

_PULSE_SECONDS = 0.5
_CONNECT_SECONDS = 30.0


@dataclasses.dataclass(frozen=True)
class Over:
    """The members have ended this worker's function."""

    result: str  # as JSON: what a member has told with "done"


class LauncherLink:
    """Talks to the rendezvous while this process is in the job."""

    def __init__(self) -> None:
        """Connects to the rendezvous that the environment names.

        Raises:
            RuntimeError: A variable is missing.
            OSError: The rendezvous cannot be reached.
        """
        self.worker = _needed("TFRING_ELASTIC_WORKER")
        token = _needed("TFRING_ELASTIC_TOKEN")
        interface = _needed("TFRING_ELASTIC_INTERFACE")
        host, _, port = _needed("TFRING_ELASTIC_RENDEZVOUS").rpartition(":")
        # The node of this worker, as the launcher calls it.
        self.node = _needed("TFRING_ELASTIC_HOST")
        # True once the members are to leave at a commit, for a new generation.
        self.has_waiting = False
        # True once this worker has said that it ends.
        self.is_leaving = False
        # An answer for each `ready`, or None from `stop_waiting`.
        self._answers: queue.SimpleQueue[Form | Topology | Over | None] = (
            queue.SimpleQueue()
        )
        self._is_waiting = False
        # An answer for each `leaving`.
        self._may_leave: queue.SimpleQueue[bool] = queue.SimpleQueue()
        # Why each generation that is over has ended.
        self._stopped: dict[int, str] = {}
        self._stops = threading.Condition()

        def connect(role: str) -> socket.socket:
            hello = {"role": role, "worker": self.worker}
            return wire.connect(
                (host, int(port)), token, hello, _CONNECT_SECONDS
            )

        self._socket = connect("worker")
        self._channel = wire.Channel(self._socket)
        self.mesh = Mesh(interface, self.worker, token, self.why_stopped)
        error = native.capi().tfring_pulse_start(
            connect("pulse").detach(), _PULSE_SECONDS
        )
        if error is not None:
            raise RuntimeError(f"tfring.init: {error.decode()}.")
        threading.Thread(
            target=self._listen, name="tfring rendezvous", daemon=True
        ).start()

    def ready(
        self, generation: int, steps: int, *, building: bool = False
    ) -> Form | Topology | Over:
        """Says that this worker has left a generation, and waits for the next.

        The launcher keeps the time limits, and ends this process if it is late.

        Args:
            generation: The generation that this worker has left; 0 for none.
            steps: The number of commits in its state; -1 without a state.
            building: This worker has no model yet. If a generation trains
                already, the worker builds first, and is told its future place.

        Raises:
            SystemExit: This worker was asked to end (`stop_waiting`), and may.
        """
        self._is_waiting = True
        self.say(
            "ready",
            generation=generation,
            address=self.mesh.address,
            steps=steps,
            building=building,
        )
        try:
            while (answer := self._answers.get()) is None:
                if self.may_leave():
                    sys.exit(0)
            return answer
        finally:
            self._is_waiting = False

    def stop_waiting(self) -> None:
        """Has `ready`, if it waits, ask whether this worker may leave.

        A signal handler may call it.
        """
        if self._is_waiting:
            self._answers.put(None)

    def may_leave(self) -> bool:
        """Asks the launcher whether this worker, which was asked to end, may.

        If it returns False, the worker leaves its generation for one in which
        another gets its state, and asks again at the next commit.
        """
        self.say("leaving")
        self.is_leaving = self._may_leave.get()
        return self.is_leaving

    def why_stopped(self, generation: int) -> str | None:
        """Returns why a generation is over; None while it is not."""
        return self._stopped.get(generation)

    def wait_until_stopped(self, generation: int) -> None:
        """Waits until the rendezvous ends a generation; it keeps a limit."""
        with self._stops:
            self._stops.wait_for(lambda: generation in self._stopped)

    def say(self, kind: str, **more: Any) -> None:
        """Tells the rendezvous of an event; see `Membership.heard`."""
        self.is_leaving |= kind in ("bye", "error")
        # `_listen` notices the end of the connection, and ends this process.
        with contextlib.suppress(wire.ChannelClosedError):
            self._channel.send({"kind": kind, **more})

    def disown(self) -> None:
        """Leaves the connection to the parent, in a forked child."""
        self._socket.close()

    def _listen(self) -> None:
        try:
            while True:
                message = self._channel.receive(math.inf)
                if message is not None:
                    self._take(message)
        except wire.ChannelClosedError as error:
            if not self.is_leaving:
                _end(1, f"this worker ends, as the launcher is gone: {error}")

    def _take(self, message: dict[str, Any]) -> None:
        match message:
            case {"kind": "form", "generation": generation, "members": members}:
                self.has_waiting = False
                self._answers.put(self._form(generation, members))
            case {"kind": "build", "rank": rank, "nodes": nodes}:
                self._answers.put(Topology.of_nodes(rank, nodes))
            case {"kind": "over", "result": result}:
                self._answers.put(Over(result))
            case {"kind": "leave" | "stay" as answer}:
                self._may_leave.put(answer == "leave")
            case {"kind": "waiting"}:
                self.has_waiting = True
            case {"kind": "stop", "generation": generation, "why": why}:
                why_bytes = why.encode(errors="replace")
                native.capi().tfring_abort(generation, why_bytes)
                with self._stops:
                    self._stopped.setdefault(generation, why)
                    self._stops.notify_all()
            case {"kind": "probe", "workers": workers}:
                threading.Thread(
                    target=self._probe_all, args=[workers], daemon=True
                ).start()
            case {"kind": "end", "status": status, "why": why}:
                _end(status, f"this worker ends: {why}")

    def _form(self, generation: int, members: list[dict[str, Any]]) -> Form:
        """Finds this worker in a message, which is the same for all members."""
        rank = [each["worker"] for each in members].index(self.worker)
        return Form(
            generation,
            rank,
            tuple(
                Member(each["worker"], tuple(each["address"]), each["node"])
                for each in members
            ),
        )

    def _probe_all(self, workers: list[list[Any]]) -> None:
        reached: list[str] = []
        failed = why = ""
        for worker, host, port in workers:
            if why := self.mesh.probe(worker, (host, port)):
                failed = worker
                break
            reached.append(worker)
        self.say("probed", reached=reached, failed=failed, why=why)


def _needed(name: str) -> str:
    # Keep these from programs that this process starts: such a program would
    # take itself for the worker.
    is_own = name in ("TFRING_ELASTIC_RENDEZVOUS", "TFRING_ELASTIC_TOKEN")
    value = (native.elastic_variable if is_own else os.environ.get)(name)
    if not value:
        raise RuntimeError(
            f"tfring.init: {name} is not set. Start elastic jobs with "
            "`tfringrun --elastic`, which sets it."
        )
    return value


def _end(status: int, text: str) -> NoReturn:
    """Ends this process from any thread, whatever other threads do."""
    with contextlib.suppress(OSError, ValueError):
        print(f"tfring: {text}", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)
