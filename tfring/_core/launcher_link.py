"""A worker's connection to the launcher of its elastic job.

The launcher decides who belongs to which generation of the job. A thread of
this process listens to it, whatever the script does. The thread aborts the
collectives of a generation that is over, and ends this process with the
launcher.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from tfring._core import native
from tfring._core.job import Topology
from tfring.rendezvous import wire

_PULSE_SECONDS = 0.5
# A wait that is so long can be interrupted, by signals, at least so often.
_LOOK_SECONDS = 1.0
_CONNECT_SECONDS = 30.0
# Of a state that are compared. More would be too long for a message.
_MOST_PARTS = 10_000
# A rendezvous that has heard of a failure ends the generation sooner.
_STOP_SECONDS = 120.0


@dataclasses.dataclass(frozen=True)
class Member:
    """A worker of a generation."""

    worker: str
    address: wire.Address
    node: str
    steps: int


@dataclasses.dataclass(frozen=True)
class Form:
    """Who belongs to a generation, by rank; `rank` is this worker's."""

    generation: int
    rank: int
    members: tuple[Member, ...]

    @classmethod
    def of(cls, message: dict[str, Any], worker: str) -> Form:
        """Reads the message, which is one and the same for all members."""
        members = tuple(
            Member(**{**each, "address": tuple(each["address"])})
            for each in message["members"]
        )
        rank = [member.worker for member in members].index(worker)
        return cls(message["generation"], rank, members)


@dataclasses.dataclass(frozen=True)
class Over:
    """The members have ended this worker's function.

    Attributes:
        result: Its result as JSON; None if JSON cannot hold it.
    """

    result: str | None


class LauncherLink:
    """Talks to the rendezvous, for as long as this process is in the job.

    Attributes:
        worker: This worker's name.
        token: The job's.
        interface: The address at which it listens to the others.
        node: The host that it is on, as the launcher calls it.
    """

    def __init__(self) -> None:
        """Connects to the rendezvous that the environment names.

        Raises:
            RuntimeError: A variable is missing.
            OSError: The rendezvous cannot be reached.
        """
        self.worker = _needed("TFRING_ELASTIC_WORKER")
        self.token = _needed("TFRING_ELASTIC_TOKEN")
        self.interface = _needed("TFRING_ELASTIC_INTERFACE")
        host, _, port = _needed("TFRING_ELASTIC_RENDEZVOUS").rpartition(":")
        self.node = _needed("TFRING_ELASTIC_HOST")
        self._state = threading.Condition()
        self._form: Form | None = None
        self._stopped: dict[int, str] = {}
        self._has_waiting = False
        self._place: Topology | None = None
        self._over: Over | None = None
        self._is_leaving = False
        self._probe: Callable[[str, wire.Address], str] | None = None
        hello = {"role": "worker", "worker": self.worker}
        rendezvous = (host, int(port))
        self._socket = wire.connect(
            rendezvous, self.token, hello, _CONNECT_SECONDS
        )
        self._channel = wire.Channel(self._socket)
        self._start_pulse(rendezvous)
        threading.Thread(
            target=self._listen, name="tfring rendezvous", daemon=True
        ).start()

    def _start_pulse(self, rendezvous: wire.Address) -> None:
        hello = {"role": "pulse", "worker": self.worker}
        pulse = wire.connect(rendezvous, self.token, hello, _CONNECT_SECONDS)
        error = native.capi().tfring_pulse_start(pulse.detach(), _PULSE_SECONDS)
        if error is not None:
            raise RuntimeError(f"tfring.init: {error.decode()}.")

    def ready(
        self,
        generation: int,
        address: wire.Address,
        steps: int,
        *,
        building: bool = False,
    ) -> None:
        """Says that this worker has left a generation, and waits for the next.

        Args:
            generation: The one that it has left, 0 if it was in none.
            address: Where it listens to the others.
            steps: How many commits are in its state; -1: it has none.
            building: It has no model yet. If a generation trains already, the
                launcher tells it its place to come, and it builds first.
        """
        self._say(
            {
                "kind": "ready",
                "generation": generation,
                "address": address,
                "steps": steps,
                "building": building,
            }
        )

    def wait_for_form(self, after: int) -> Form | Over:
        """Returns who belongs to the next generation, once that is decided.

        Or that the members have ended this worker's function. The launcher has
        the time limits, and ends this process then.
        """
        with self._state:
            while True:
                if self._over is not None:
                    over, self._over = self._over, None
                    return over
                if self._form is not None and self._form.generation > after:
                    self._has_waiting = False
                    return self._form
                self._state.wait(_LOOK_SECONDS)

    def wait_for_place(self, after: int) -> Form | Topology:
        """The same; or, if this worker is to build first, its place to come."""
        with self._state:
            while self._form is None or self._form.generation <= after:
                if self._place is not None:
                    return self._place
                self._state.wait(_LOOK_SECONDS)
            self._has_waiting = False
            return self._form

    def probe_by(self, probe: Callable[[str, wire.Address], str]) -> None:
        """Has the rendezvous find out to whom this worker can connect.

        Args:
            probe: Tries that with a worker at an address, and returns why it
                cannot be; "" if it can.
        """
        self._probe = probe

    def formed(self, generation: int) -> None:
        """Says that this worker is connected with all others."""
        self._say({"kind": "formed", "generation": generation})

    def suspect(self, generation: int, worker: str, why: str) -> None:
        """Says that a member cannot be reached."""
        self._say(
            {
                "kind": "suspect",
                "generation": generation,
                "worker": worker,
                "why": why,
            }
        )

    def why_stopped(self, generation: int) -> str | None:
        """Why a generation is over; None while it is not."""
        with self._state:
            return self._stopped.get(generation)

    def wait_until_stopped(self, generation: int) -> str:
        """Returns why a generation is over, once it is.

        Raises:
            TimeoutError: The rendezvous says nothing of the kind.
        """
        with self._state:
            if not self._state.wait_for(
                lambda: generation in self._stopped, _STOP_SECONDS
            ):
                raise TimeoutError(
                    f"tfring: generation {generation} of the job has failed "
                    f"here, and the rendezvous has not ended it in "
                    f"{_STOP_SECONDS:g} s."
                )
            return self._stopped[generation]

    def has_waiting(self) -> bool:
        """Tells if workers wait to join, or members are to leave."""
        with self._state:
            return self._has_waiting

    def training(self, phase: str, **more: Any) -> None:
        """Says where this worker is in its training.

        Args:
            phase: "begun"; "done", if all ranks have come to its end; "left",
                if it ends for another reason.
            **more: With "begun" the `function`; with "done" its `result`.
        """
        self._say({"kind": "training", "phase": phase, **more})

    def state(self, parts: list[tuple[str, str]]) -> None:
        """Says which state this worker has; one with another cannot join.

        Args:
            parts: What all workers must have, in order, each with its name.
        """
        self._say({"kind": "state", "parts": parts[:_MOST_PARTS]})

    def error(self, text: str) -> None:
        """Says why this worker ends, the last that it says."""
        self._say({"kind": "error", "text": text})

    def bye(self, status: int, *, preempted: bool = False) -> None:
        """Says that this worker ends of its own will."""
        self._is_leaving = True
        self._say({"kind": "bye", "status": status, "preempted": preempted})

    def disown(self) -> None:
        """Leaves the connection to the parent, in a forked child."""
        self._socket.close()

    def _say(self, message: dict[str, Any]) -> None:
        # Its end ends this process: in `_listen`.
        with contextlib.suppress(wire.ChannelClosedError):
            self._channel.send(message)

    def _listen(self) -> None:
        try:
            while True:
                message = self._channel.receive(math.inf)
                if message is not None:
                    self._take(message)
        except wire.ChannelClosedError as error:
            if not self._is_leaving:
                _end(1, f"this worker ends, as the launcher is gone: {error}")

    def _take(self, message: dict[str, Any]) -> None:
        kind = message.get("kind")
        if kind == "stop":
            generation, why = message["generation"], message["why"]
            native.capi().tfring_abort(generation, why.encode())
        elif kind == "probe":
            threading.Thread(
                target=self._probe_all, args=[message["workers"]], daemon=True
            ).start()
        elif kind == "end":
            self._is_leaving = True
            _end(message["status"], f"this worker ends: {message['why']}")
        with self._state:
            if kind == "form":
                self._form = Form.of(message, self.worker)
            elif kind == "stop":
                self._stopped.setdefault(generation, why)
            elif kind == "build":
                self._place = Topology.of_nodes(
                    message["rank"], message["nodes"]
                )
            elif kind == "over":
                self._over = Over(message["result"])
            elif kind == "waiting":
                self._has_waiting = True
            self._state.notify_all()

    def _probe_all(self, workers: list[list[Any]]) -> None:
        reached: list[str] = []
        answer: dict[str, Any] = {"kind": "probed", "reached": reached}
        assert self._probe is not None
        for worker, host, port in workers:
            if why := self._probe(worker, (host, port)):
                answer |= {"failed": worker, "why": why}
                break
            reached.append(worker)
        self._say(answer)


def _needed(name: str) -> str:
    # With these a program that it starts would take itself for the worker.
    is_own = name in ("TFRING_ELASTIC_RENDEZVOUS", "TFRING_ELASTIC_TOKEN")
    value = (native.elastic_variable if is_own else os.environ.get)(name)
    if not value:
        raise RuntimeError(
            f"tfring.init: {name} is not set. Start elastic jobs with "
            "`tfringrun --elastic`, which sets it."
        )
    return value


def _end(status: int, text: str) -> NoReturn:
    """Ends this process from a thread of it, whatever the others do."""
    with contextlib.suppress(OSError, ValueError):
        print(f"tfring: {text}", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)
