"""Processes of an elastic job's workers, from their starts to their ends."""

from __future__ import annotations

import collections
import itertools
import signal
from collections.abc import Callable, Iterable

from tfring.launcher.elastic import places
from tfring.launcher.elastic.host_table import HostTable
from tfring.launcher.elastic.workers import Actions, Limits, Worker

# Exit statuses (128 + signal) of a worker that somebody else killed.
KILLED = (128 + signal.SIGKILL, 128 + signal.SIGTERM)
# How long a worker that is not needed, or was asked to end, may take to end.
ENDING_SECONDS = 10.0


class Roster:
    """All workers of a job.

    Attributes:
        living: Workers that are not lost, by name.
        ending: Workers that were told to end, by name; their processes may
            still run.
    """

    def __init__(
        self,
        limits: Limits,
        hosts: HostTable,
        actions: Actions,
        clock: Callable[[], float],
    ) -> None:
        self._limits = limits
        self._hosts = hosts
        self._actions = actions
        self._clock = clock
        self.living: dict[str, Worker] = {}
        self.ending: dict[str, Worker] = {}
        # The cores that each host's supervisor was last told for its workers.
        self._cores: dict[str, dict[str, int]] = {}
        self._numbers = itertools.count(1)

    def start(self, host: str) -> Worker:
        """Starts a worker on a host."""
        number = next(self._numbers)
        node = self._hosts.node(host)
        worker = Worker(f"w{number}", number, host, self._clock(), node)
        self.living[worker.name] = worker
        self.expect(worker, "join the job")
        _, slots = self._hosts.slots_of_node(host)
        environment = {"TFRING_ELASTIC_SLOTS": str(slots)}
        if not self._limits.replaces:
            environment["TFRING_ELASTIC_FIXED"] = "1"
        cores = self._cores_of(host)
        self._cores.setdefault(host, cores)
        self._actions.order(worker, "start", environment=environment, **cores)
        return worker

    def share_cores(self, hosts: Iterable[str]) -> None:
        """Gives workers other cores if the slots of their node have changed."""
        for host in hosts:
            cores = self._cores_of(host)
            if self._cores.get(host, cores) != cores:
                self._cores[host] = cores
                self._actions.tell(host, "share_cores", **cores)

    def _cores_of(self, host: str) -> dict[str, int]:
        """Returns the first of a host's slots, and how many share the cores.

        Slots are counted on the node, which may have several hosts. Only
        workers that train share the cores; spares wait.
        """
        first, slots = self._hosts.slots_of_node(host)
        members = min(slots, places.count(self._limits, self._hosts))
        return {"first_slot": first, "cores_shared_by": max(1, members)}

    def expect(
        self, worker: Worker, what: str, seconds: float | None = None
    ) -> None:
        """Sets the time limit for what a worker was told to do."""
        seconds = seconds or self._limits.replacement_seconds
        worker.due = self._clock() + seconds
        worker.overdue = f"it did not {what} in {seconds:g} s"

    def dismiss(
        self, worker: Worker, why: str, status: int | None, grace_seconds: float
    ) -> None:
        """Tells a worker to end, and lets it be killed at the end of its grace.

        `status` is the exit status that the worker is told to end with; None if
        it is about to end by itself.
        """
        del self.living[worker.name]
        self.ending[worker.name] = worker
        worker.why = why
        if status is not None:
            self._actions.send([worker], "end", status=status, why=why)
        self._actions.order(worker, "kill", grace_seconds=grace_seconds)

    def end(self, worker: Worker, why: str) -> None:
        """Ends a worker that is not needed. The user is not told."""
        worker.told = True
        self.dismiss(worker, why, 0, ENDING_SECONDS)

    def release(self, worker: Worker, why: str) -> None:
        """Forgets a worker that was killed after it had done all its work."""
        del self.living[worker.name]
        self._actions.say(f"{worker} ended after its training: {why}.")

    def tell_of_loss(self, worker: Worker) -> None:
        """Tells the user, once, that a worker is lost."""
        if not worker.told:
            worker.told = True
            why = (worker.error or worker.why).rstrip(".")
            self._actions.say(f"{worker} is lost: {why}.")

    def host_lost(self, host: str) -> None:
        """Notes that the ending workers of a host are gone."""
        self._cores.pop(host, None)
        for worker in list(self.ending.values()):
            if worker.host == host:
                self.tell_of_loss(worker)
                del self.ending[worker.name]

    def exited(self, name: str, status: int, how: str) -> None:
        """Notes that an ending worker's process is gone."""
        worker = self.ending.pop(name, None)
        if worker is None:
            return
        if worker.announced is not None and status in KILLED:
            # The worker was killed because its end took too long.
            status = worker.announced
            how = f"exit status {status}"
        # SIGKILL follows an exception if the worker's end takes too long.
        worker.status = 1 if worker.error and status > 128 else status
        if not worker.told:
            worker.why = how
            if worker.training and status < 128:
                worker.why += ", in the middle of its training"
            self.tell_of_loss(worker)

    def occupied(self) -> collections.Counter[str]:
        """Returns the number of workers on each host, including ending ones."""
        return collections.Counter(
            worker.host
            for worker in (*self.living.values(), *self.ending.values())
        )

    def to_come(self) -> int:
        """Returns how many more workers have a slot, now or soon."""
        done = [each for each in self.living.values() if each.done]
        return self._hosts.capacity(self.occupied()) + sum(
            each.host in self._hosts for each in (*done, *self.ending.values())
        )

    def has_successor(self) -> bool:
        """Returns True if a worker goes on with the job, or can be started."""
        return self.to_come() > 0 or not all(
            worker.done or worker.leaving for worker in self.living.values()
        )
