"""The rules of a job whose ranks do not change: it ends at its first loss."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tfring.launcher.elastic import places
from tfring.launcher.elastic.host_table import HostTable
from tfring.launcher.elastic.membership import Membership
from tfring.launcher.elastic.workers import Limits, Worker


class FixedMembership(Membership):
    """Rules for `Limits.minimum` workers, none of which is replaced.

    All workers are started at once, as soon as the hosts have slots for all,
    and in the order of their ranks: worker w1 is rank 0. So a worker that never
    calls `tfring.init` has a rank, too. The job ends well when all workers have
    ended with status 0, and it ends at the first loss.
    """

    def __init__(
        self, limits: Limits, hosts: HostTable, clock: Callable[[], float]
    ) -> None:
        super().__init__(limits, hosts, clock)
        self._began = clock()
        # All workers in the order of their ranks; empty until they are started.
        self._all: list[Worker] = []

    # Trainings and states matter to joiners alone, and a fixed job has none.

    def _take_training(self, worker: Worker, *_: Any, **__: Any) -> None:
        pass

    def _take_state(self, worker: Worker, *_: Any, **__: Any) -> None:
        pass

    def exited(self, name: str, status: int, how: str) -> None:
        """Notes that a worker's process is gone; `how` is in words."""
        worker = self.workers.get(name)
        if worker is not None and status == 0:
            worker.done = True
            del self.workers[name]
        super().exited(name, status, how)

    def _lose(
        self, worker: Worker, why: str, *args: Any, **kwargs: Any
    ) -> None:
        super()._lose(worker, why, *args, **kwargs)
        if self.outcome is None:
            where = f"rank {worker.rank} (host {worker.host})"
            self.outcome = f"{where} is lost: {worker.error or why}"

    def _keep_times(self) -> None:
        if self.generation.keep_times():
            self.outcome = "the ranks cannot connect to one another."

    def _follow_rules(self) -> None:
        if not self._all:
            self._start_all()
        elif not self.workers:
            self.outcome = ""
        elif all(worker.ready for worker in self._all):
            self._lose_unreachable()
            if self.outcome is None:
                self.generation.form(places.in_order(self._all))
        else:
            self._fail_if_one_is_missing()

    def _start_all(self) -> None:
        wanted, longest = self.limits.minimum, self.limits.replacement_seconds
        hosts = self.hosts.slots_by_node()
        if len(hosts) >= wanted:
            self._all = [self._roster.start(host) for host in hosts[:wanted]]
            for rank, worker in enumerate(self._all):
                worker.rank = rank
                # A script may take any time before it calls `tfring.init`.
                worker.due = math.inf
        elif self._clock() >= self._began + longest:
            self.outcome = (
                f"{len(hosts)} of {wanted} ranks had a place after "
                f"{longest:g} s."
            )

    def _fail_if_one_is_missing(self) -> None:
        """Ends the job if ranks wait in `tfring.init` in vain."""
        waiting = [each for each in self.workers.values() if each.ready]
        if not waiting:
            return
        first = min(each.rank or 0 for each in waiting)
        longest = self.limits.init_seconds
        for worker in self._all:
            if worker.done:
                self.outcome = (
                    f"rank {worker.rank} has ended, and rank {first} waits for "
                    "it in tfring.init."
                )
            elif not worker.ready and self._clock() >= (
                self._last_ready + longest
            ):
                self.outcome = (
                    f"rank {worker.rank} has not come to tfring.init for "
                    f"{longest:g} s, and rank {first} waits for it "
                    "(TFRING_INIT_TIMEOUT_SECONDS)."
                )
