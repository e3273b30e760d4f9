"""The rules of an elastic job: who is lost, who trains next, when it ends.

The rules read what `membership` has noted of the workers, and a clock that the
caller passes. `take_actions` applies them, and returns the actions.
`generation` has the members and their phase, and `roster` the processes of all
workers.
"""

from __future__ import annotations

from collections.abc import Callable

from tfring.launcher.elastic import accusations, places
from tfring.launcher.elastic.generation import (
    FORMING_SECONDS,
    Generation,
    Phase,
)
from tfring.launcher.elastic.host_table import HostTable
from tfring.launcher.elastic.joiners import Joiners
from tfring.launcher.elastic.roster import Roster
from tfring.launcher.elastic.trainings import Trainings
from tfring.launcher.elastic.workers import Actions, Limits, Say, Send, Worker

# Members of a generation that has lasted for this time have trained: they clear
# their hosts of earlier failures.
PROGRESS_SECONDS = 30.0
# The first generation starts without the workers that are still missing this
# long after the last one has joined.
_GATHER_SECONDS = 30.0


class Rules:
    """Decides from the state of all workers what is to be done.

    Attributes:
        generation: The newest generation.
        first_failure: The first worker that failed in the newest generation
            with a failure.
        outcome: Why the job has failed; "" if it has succeeded; None while it
            runs.
    """

    def __init__(
        self, limits: Limits, hosts: HostTable, clock: Callable[[], float]
    ) -> None:
        self.limits = limits
        self.hosts = hosts
        self._clock = clock
        self._actions = Actions()
        self._roster = Roster(limits, hosts, self._actions, clock)
        self.generation = Generation(self._actions, clock)
        self._trainings = Trainings()
        self._joiners = Joiners(
            self._roster,
            self.generation,
            self._trainings,
            hosts,
            limits,
            self._actions,
        )
        self._last_ready = clock()
        # The next members, as the present members were told.
        self._told: list[Worker] = []
        # A member has ended by itself, outside of a training.
        self._some_done = False
        self._over_since: float | None = None
        # A member that was lost when the job was finishing.
        self._lost_at_end: Worker | None = None
        self.first_failure: Worker | None = None
        self._failed_in = -1
        self.outcome: str | None = None

    @property
    def workers(self) -> dict[str, Worker]:
        """The workers that are not lost, by name."""
        return self._roster.living

    def take_actions(self) -> list[Send | Say]:
        """Applies the rules; returns the new actions, in order.

        Call it a few times a second, because rules have time limits. Each call
        visits all workers, so take all waiting events first.
        """
        if self.outcome is None:
            self._keep_times()
            self._follow_rules()
        return self._actions.take()

    def _keep_times(self) -> None:
        limits, now = self.limits, self._clock()
        self.hosts.tick()
        if self.generation.keep_times() and not self._lose_late_newcomers():
            self.generation.late += 1
        phase, lasted = self.generation.phase, now - self.generation.since
        if phase is Phase.STOPPED and lasted >= limits.ready_seconds:
            for worker in self.generation.waited_for():
                self._lose(
                    worker,
                    "it did not leave its generation in "
                    f"{limits.ready_seconds:g} s",
                )
        elif phase is Phase.TRAINING and lasted >= PROGRESS_SECONDS:
            self.generation.unconnected.clear()
            self.hosts.generation_trained()
            for worker in self.generation.members:
                if not worker.proven:
                    worker.proven = True
                    self.hosts.worker_trained(worker.host)
        for worker in list(self.workers.values()):
            if now >= worker.due:
                self._lose(worker, worker.overdue)

    def _lose_late_newcomers(self) -> bool:
        """Loses new members that hang, if other members have been connected.

        Returns True if there are such newcomers.
        """
        members = self.generation.going_on()
        late = [m for m in members if not (m.formed or m.connected)]
        if not late or not any(member.connected for member in members):
            return False
        for worker in late:
            self._lose(worker, f"it was not connected in {FORMING_SECONDS:g} s")
        return True

    def _lose(
        self,
        worker: Worker,
        why: str,
        grace_seconds: float = 0.0,
        *,
        failed: bool = True,
        tell: bool = True,
    ) -> None:
        """Goes on without a worker, which is killed at the end of its grace.

        `why` is for the user and for the other workers. Without a grace the
        worker is told to end with status 1, and is killed at once. A loss that
        `failed` counts against the job and the host. With `tell` the user is
        told now, and otherwise when the process has ended.
        """
        self._roster.dismiss(
            worker, why, None if grace_seconds else 1, grace_seconds
        )
        # The end of a job makes its workers fail.
        failed = failed and self.outcome is None
        if failed:
            self._note_failure(worker)
        if tell:
            self._roster.tell_of_loss(worker)
        if failed and not worker.proven:
            self._strike_host_of(worker)
        if worker in self.generation.members:
            self._remove_member(worker, why)

    def _note_failure(self, worker: Worker) -> None:
        """Keeps the first failure of the newest generation that has one."""
        generation = self.generation
        ends_job = (
            self._finishing
            and worker in generation.members
            and self._lost_at_end is None
        )
        if generation.number > self._failed_in or ends_job:
            self._failed_in = generation.number
            self.first_failure = worker

    def _strike_host_of(self, worker: Worker) -> None:
        host = worker.host
        if left_out := self.hosts.strike(host, worker.started):
            self._actions.say(
                f"host {host} is left out {left_out}, because its workers "
                "fail again and again."
            )

    def _remove_member(self, worker: Worker, why: str) -> None:
        generation = self.generation
        generation.members.remove(worker)
        if self._finishing:
            self._lost_at_end = worker
        all_over = generation.members and not generation.going_on()
        if not (worker.is_over and all_over):
            generation.stop(f"{worker} is lost: {why}")

    def _is_waited_for(self, worker: Worker) -> bool:
        """Returns True if members have begun a later function than a worker."""
        return not worker.done and any(
            each.training and each.run > worker.run
            for each in self.generation.members
        )

    @property
    def _finishing(self) -> bool:
        """True once the training is over; nobody is replaced from then on."""
        return self._some_done or (
            bool(self.generation.members)
            and all(map(self._trainings.has_ended, self.generation.members))
        )

    def _follow_rules(self) -> None:
        self._joiners.let_off()
        self._joiners.let_build()
        if self._finishing and self._end_if_over():
            return
        if not self._finishing:
            for worker, why in self._joiners.misfits():
                self._lose(worker, why)
            self._joiners.probe()
            self._start_missing()
            self._tell_of_waiting()
        self._form_if_possible()
        self._end_displaced()
        self._fail_if_hopeless()

    def _end_displaced(self) -> None:
        """Ends the waiting workers of hosts that were taken away."""
        for worker in list(self.workers.values()):
            gone = worker.host not in self.hosts and not worker.is_over
            if gone and worker not in self.generation.members:
                self._roster.end(
                    worker, f"host {worker.host} is no longer there"
                )

    def _end_if_over(self) -> bool:
        """Ends the job once all members have ended; True if they have."""
        if any(not worker.done for worker in self.generation.members):
            return False
        now = self._clock()
        if self._over_since is None:
            self._over_since = now
        for worker in list(self.workers.values()):
            if not worker.done:
                self._roster.end(worker, "the training is over")
        if self._lost_at_end is not None and not self.workers:
            self.outcome = f"{self._lost_at_end} was lost at the end."
        elif not self.workers:
            self.outcome = ""
        elif now >= self._over_since + self.limits.replacement_seconds:
            self.outcome = (
                "the training is over, and the workers did not end in "
                f"{self.limits.replacement_seconds:g} s "
                "(TFRING_ELASTIC_TIMEOUT_SECONDS)."
            )
        return True

    def _start_missing(self) -> None:
        wanted = places.count(self.limits, self.hosts) + self.limits.spares
        missing = wanted - sum(
            worker.host in self.hosts and not worker.leaving
            for worker in self.workers.values()
        )
        for host in self.hosts.free(self._roster.occupied(), missing):
            self._roster.start(host)

    def _tell_of_waiting(self) -> None:
        """Makes the members leave at a commit if others are to be members."""
        if self.generation.phase is not Phase.TRAINING:
            return
        chosen = self._choose(self.generation.members)
        members = set(self.generation.members)
        if chosen != self._told and set(chosen) != members:
            joiners = len(set(chosen) - members)
            self._actions.send(
                self.generation.members, "waiting", workers=joiners
            )
        self._told = chosen

    def _choose(self, members: list[Worker]) -> list[Worker]:
        joiners = self._joiners.connected()
        return places.choose(members, joiners, self.hosts, self.limits)

    def _form_if_possible(self) -> None:
        if self.generation.waited_for():
            return
        if self.generation.ever_formed and not self.generation.members:
            return  # no member is left with the state
        self._lose_unreachable()
        chosen = self.generation.going_on()
        if not self._finishing:
            chosen = self._choose(chosen)
            few = len(chosen) < self.limits.minimum
            if few or not self._have_gathered(len(chosen)):
                return
            if all(worker.leaving for worker in chosen):
                return  # all of them wait for a successor
        if chosen:
            self._form(places.in_order(chosen))

    def _have_gathered(self, count: int) -> bool:
        """Returns True if the first generation has waited long enough."""
        first = self.limits.first
        wanted = first or places.count(self.limits, self.hosts)
        if self.generation.ever_formed or count >= wanted:
            return True
        may_come = (
            # `-np` also counts workers of hosts that have not joined yet.
            (first is not None and self.limits.may_grow)
            or any(not worker.ready for worker in self.workers.values())
            or self.hosts.capacity(self._roster.occupied()) > 0
        )
        waited = self._clock() - self._last_ready
        return not may_come or waited >= _GATHER_SECONDS

    def _lose_unreachable(self) -> None:
        while worker := accusations.to_blame(
            self.generation.members, self.generation.unconnected
        ):
            self._lose(worker, "it and others cannot connect to each other")

    def _form(self, members: list[Worker]) -> None:
        """Begins a generation; its first member has the newest state."""
        if self._trainings.newest_steps >= 0 > members[0].steps:
            self.outcome = (
                "all workers that had the state of the training are lost."
            )
            return
        chosen = set(members)
        for worker in self.generation.going_on():
            if worker not in chosen and worker.host in self.hosts:
                self._roster.end(worker, "there are more workers than places")
        self._lost_at_end = None
        self._roster.share_cores({worker.host for worker in members})
        self.generation.form(members)
        self._told = self.generation.members

    def _fail_if_hopeless(self) -> None:
        generation = self.generation
        if generation.phase is not Phase.STOPPED or self.outcome is not None:
            return
        if generation.ever_formed and not generation.members:
            self.outcome = "all workers are lost."
            return
        if generation.members and not generation.going_on():
            return
        if generation.late >= 3:
            self.outcome = "the workers cannot connect to one another."
            return
        minimum = 1 if self._finishing else self.limits.minimum
        longest = self.limits.replacement_seconds
        may_come = self.limits.may_grow or self.hosts.cools_down()
        alive = sum(not worker.done for worker in self.workers.values())
        is_possible = alive + self._roster.to_come() >= minimum
        if not ((is_possible and self._roster.has_successor()) or may_come):
            self.outcome = (
                f"only {alive} workers are left, of at least {minimum}, and "
                "there is no host to start more on."
            )
        elif self._clock() >= generation.since + longest:
            self.outcome = (
                f"fewer than {minimum} workers were ready for {longest:g} s "
                "(TFRING_ELASTIC_TIMEOUT_SECONDS)."
            )
