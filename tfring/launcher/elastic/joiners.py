"""The workers of an elastic job that are to become members."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tfring.launcher.elastic import places
from tfring.launcher.elastic.generation import (
    FORMING_SECONDS,
    Generation,
    Phase,
)
from tfring.launcher.elastic.host_table import HostTable
from tfring.launcher.elastic.roster import Roster
from tfring.launcher.elastic.trainings import Trainings
from tfring.launcher.elastic.workers import Actions, Limits, Worker


class Joiners:
    """Makes new workers build, probe connections, and wait for a place."""

    def __init__(
        self,
        roster: Roster,
        generation: Generation,
        trainings: Trainings,
        hosts: HostTable,
        limits: Limits,
        actions: Actions,
    ) -> None:
        self._roster = roster
        self._generation = generation
        self._trainings = trainings
        self._hosts = hosts
        self._limits = limits
        self._actions = actions

    def connected(self) -> list[Worker]:
        """Returns the waiting workers that can connect to the members."""
        joiners: list[Worker] = []
        for worker in self._waiting():
            # A joiner's state cannot be compared before the members describe
            # theirs.
            is_early = (
                worker.state
                and not self._trainings.state
                and self._generation.phase is not Phase.STOPPED
            )
            if not is_early and not self._not_reached(worker, joiners):
                joiners.append(worker)
        return joiners

    def misfits(self) -> Iterator[tuple[Worker, str]]:
        """Yields joiners with another state than the members, and why."""
        for worker in self._waiting():
            own, others = worker.state, self._trainings.state
            if own and others and (why := own.difference_from(others)):
                yield worker, why

    def probe(self) -> None:
        """Makes waiting workers connect to all members and earlier joiners."""
        before: list[Worker] = []
        for worker in self._waiting():
            others = self._not_reached(worker, before)
            before.append(worker)
            if others and worker.due == math.inf:
                self._roster.expect(
                    worker,
                    "say if it can connect to the others",
                    FORMING_SECONDS,
                )
                workers = [[each.name, *each.address] for each in others]
                self._actions.send([worker], "probe", workers=workers)

    def let_off(self) -> None:
        """Makes workers skip a function that the members have ended.

        A joiner skips a function when a member begins the next one. Until then
        the script may be at its end.
        """
        members = self._generation.members
        begun = max((each.run for each in members), default=0)
        for worker in self._roster.living.values():
            if not worker.ready or not self._trainings.has_ended(worker):
                continue
            if worker in members or worker.run < begun:
                self._expect_build(worker)
                result = self._trainings.results.get(worker.run, "")
                self._actions.send([worker], "over", result=result)

    def let_build(self) -> None:
        """Makes joiners build before they join, so that no member waits."""
        building = [
            worker
            for worker in self._roster.living.values()
            if worker.ready and worker.building
        ]
        generation = self._generation
        alone = not generation.ever_formed and generation.phase is Phase.STOPPED
        if not building or alone:
            return
        for worker in building:
            self._expect_build(worker)
        workers = (*generation.members, *self._roster.living.values())
        for worker, rank, nodes in places.to_come(
            building,
            [each for each in workers if each.host in self._hosts],
            places.count(self._limits, self._hosts),
        ):
            self._actions.send([worker], "build", rank=rank, nodes=nodes)

    def _expect_build(self, worker: Worker) -> None:
        worker.ready = False
        if worker.generation == 0:
            self._roster.expect(worker, "build what it trains")

    def _waiting(self) -> list[Worker]:
        """Returns the workers that are ready to join."""
        members = set(self._generation.members)
        return [
            worker
            for worker in self._roster.living.values()
            if worker.ready
            and worker not in members
            and worker.host in self._hosts
            and not self._trainings.has_ended(worker)
        ]

    def _not_reached(
        self, worker: Worker, joiners: Sequence[Worker]
    ) -> list[Worker]:
        """Returns the members and joiners that `worker` has not reached."""
        if not self._generation.ever_formed:
            return []  # no training would stop for this worker
        return [
            each
            for each in (*self._generation.going_on(), *joiners)
            if each.name not in worker.reached
        ]
