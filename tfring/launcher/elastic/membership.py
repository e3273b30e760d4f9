"""The events of an elastic job, from its hosts and workers.

No clocks and no sockets. Events are calls, which note what has happened, and
`rules` decides what follows.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from typing import Any

from tfring.launcher.elastic.roster import ENDING_SECONDS, KILLED
from tfring.launcher.elastic.rules import Rules
from tfring.launcher.elastic.workers import State, Worker
from tfring.launcher.reason import reason

# A process may live this long after the end of its connection.
_EXIT_SECONDS = 3.0


class Membership(Rules):
    """The workers of a job, and the generation that trains.

    Events of unknown and of lost workers are ignored.
    """

    def host_lost(self, host: str, why: str) -> None:
        """Notes that a supervisor is gone, and its workers with it."""
        left_out = self.hosts.lost(host)
        for worker in list(self.workers.values()):
            if worker.host == host and worker.done:
                self._roster.release(worker, why)
            elif worker.host == host:
                self._lose(worker, why)
        self._roster.host_lost(host)
        if left_out:
            self._actions.say(f"host {host} is left out {left_out}: {why}.")

    def heard(self, name: str, message: dict[str, Any]) -> None:
        """Takes a message of a worker: a method's name, and its arguments.

        `LauncherLink.say` sends these messages.

        Raises:
            KeyError: The message has no kind.
            TypeError: The message has other arguments than its kind.
        """
        worker = self.workers.get(name)
        take = getattr(self, f"_take_{message['kind']}", None)
        if take is not None and worker is not None:
            worker.silence = ""
            take(worker, **{k: v for k, v in message.items() if k != "kind"})
        elif message["kind"] == "error" and name in self._roster.ending:
            self._roster.ending[name].error = reason(message["text"])

    # `heard` calls the method of a message's kind.

    def _take_ready(
        self,
        worker: Worker,
        generation: int,
        address: Sequence[str | int],
        steps: int,
        building: bool,
    ) -> None:
        """Notes that a worker has left its generation, and waits."""
        if generation != worker.generation:
            return
        worker.ready = True
        worker.address, worker.steps = address, steps
        worker.building = building
        worker.formed = False
        worker.due = math.inf
        self._last_ready = self._clock()
        if not self._trainings.has_ended(worker):
            self._trainings.newest_steps = max(
                self._trainings.newest_steps, steps
            )
        if worker in self.generation.members:
            # Members that have not left by themselves are told.
            self.generation.stop_soon(1.0, "a member has left it")

    def _take_formed(self, worker: Worker, generation: int) -> None:
        """Notes that a worker has all its connections."""
        if generation == worker.generation and not worker.ready:
            worker.formed = True
            self.generation.train_if_connected()

    def _take_suspect(
        self, accuser: Worker, generation: int, worker: str, why: str
    ) -> None:
        """Notes that a member cannot reach another one."""
        accused = self.workers.get(worker)
        members = self.generation.members
        if accuser not in members or generation != self.generation.number:
            return
        if accused in members and accused is not accuser:
            self.generation.accuse(accuser, accused, why)

    def _take_probed(
        self,
        worker: Worker,
        reached: Iterable[str],
        failed: str = "",
        why: str = "",
    ) -> None:
        """Notes whom a joiner has reached, and whom it could not reach."""
        worker.reached.update(reached)
        if worker.ready:
            worker.due = math.inf
        # A joiner that cannot reach a lost worker is not to blame.
        if failed in self.workers and worker not in self.generation.members:
            self._lose(worker, why)

    def _take_state(self, worker: Worker, parts: list[list[str]]) -> None:
        """Keeps the parts of a worker's state."""
        worker.state = State(worker.run, parts)
        if worker in self.generation.members:
            self._trainings.state = worker.state

    def _take_training(
        self,
        worker: Worker,
        phase: str,
        function: str = "",
        result: str = "",
    ) -> None:
        """Notes a training's phase: "begun", "done" or "left".

        A worker that ends during a training is lost. After it nobody is
        replaced or killed, and an exit status other than 0 is the job's. All
        workers must begin the same functions in the same order; later workers
        get the result.
        """
        worker.training = phase == "begun"
        worker.trained = phase == "done"
        if worker.trained:
            self._trainings.end(worker, result)
        elif worker.training:
            self._some_done = False  # those that ended had not begun
            if why := self._trainings.begin(worker, function):
                self._lose(worker, why)
            for each in list(self.generation.members):
                if each.silence and self._is_waited_for(each):
                    self._lose(each, each.silence)

    def _take_leaving(self, worker: Worker) -> None:
        """Answers a worker that was asked to end, and asks to leave.

        The last member with the state stays until another worker has it, if
        there is or can be another worker.
        """
        worker.leaving = True
        members = self.generation.going_on()
        is_last = worker in members and all(each.leaving for each in members)
        why = "it was asked to end (SIGTERM)"
        if not (is_last and self._roster.has_successor()):
            self._actions.send([worker], "leave")
            self._lose(worker, why, ENDING_SECONDS, failed=False)
        else:
            self._actions.send([worker], "stay")
            self._actions.say(
                f"{worker} stays until another has its state: {why}."
            )

    def _take_bye(self, worker: Worker, status: int) -> None:
        """Notes that a worker ends by itself."""
        if worker.trained:
            worker.done = True  # `exited` brings the status
        elif worker.training or status != 0:
            # The user is told when the process has ended.
            worker.announced = status
            why = f"exit status {status}"
            self._lose(worker, why, ENDING_SECONDS, tell=False)
            # All members have saved, and end with this status.
            if status == os.EX_TEMPFAIL and self.outcome is None:
                self.outcome = "the job asks for another start."
        elif self._is_waited_for(worker):
            why = "its script has ended while others train"
            self._lose(worker, why, ENDING_SECONDS)
        elif worker in self.generation.members:
            worker.done = True
            self._some_done = True

    def _take_error(self, worker: Worker, text: str) -> None:
        """Notes that an exception ends a worker."""
        worker.error = reason(text)
        if not worker.trained:
            self._lose(worker, worker.error, ENDING_SECONDS)

    def silent(self, name: str, why: str, grace_seconds: float = 0.0) -> None:
        """Notes that a worker is silent.

        With a grace, the worker may end by itself, and its supervisor says how.
        A silent worker between two functions is lost when another member begins
        the next one.
        """
        worker = self.workers.get(name)
        if worker is None:
            return
        if worker.is_over and not self._is_waited_for(worker):
            worker.silence = why
        else:
            self._lose(worker, why, grace_seconds, tell=not grace_seconds)

    def disconnected(self, name: str) -> None:
        """Notes that a worker's connection has ended."""
        self.silent(name, "its connection has ended", _EXIT_SECONDS)

    def exited(self, name: str, status: int, how: str) -> None:
        """Notes that a worker's process is gone; `how` is in words."""
        worker = self.workers.get(name)
        if worker is not None:
            if worker.is_over and status == 0:
                worker.done = True
                del self.workers[name]
            elif worker.done and status in KILLED:
                self._roster.release(worker, how)
            else:
                self._lose(worker, how)
        self._roster.exited(name, status, how)
