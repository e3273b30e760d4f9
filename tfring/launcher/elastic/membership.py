"""The rules of an elastic job: who is lost, who trains next, and when it ends.

No clocks and no sockets. Events are calls, `take_actions` returns the actions,
and the caller passes a clock. `generation` has the members and their phase, and
`roster` the processes of all workers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tfring.launcher.elastic import accusations, places
from tfring.launcher.elastic.generation import (
    FORMING_SECONDS,
    Generation,
    Phase,
)
from tfring.launcher.elastic.host_table import HostTable
from tfring.launcher.elastic.joiners import Joiners
from tfring.launcher.elastic.roster import ENDING_SECONDS, KILLED, Roster
from tfring.launcher.elastic.trainings import Trainings
from tfring.launcher.elastic.workers import (
    Actions,
    Limits,
    Say,
    Send,
    State,
    Worker,
)
from tfring.launcher.reason import reason

# Members of a generation that has lasted for this time have trained: they clear
# their hosts of earlier failures.
PROGRESS_SECONDS = 30.0
# The first generation leaves out workers that join later than this after the
# one before.
_GATHER_SECONDS = 30.0
# A process may live on so long without its connection.
_EXIT_SECONDS = 3.0


class Membership:
    """The workers of a job, and the generation that trains.

    Events of unknown and of lost workers are ignored.

    Attributes:
        generation: The newest generation.
        first_failure: The first lost worker in the latest generation with a
            failure.
        outcome: Why the job has failed; "" if it has succeeded, and None until
            it is over.
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
        # The next members, as the current ones were told.
        self._told: list[Worker] = []
        # A member has ended of its own will.
        self._some_done = False
        self._over_since: float | None = None
        # A member that was lost when some had ended the training.
        self._lost_at_end: Worker | None = None
        self.first_failure: Worker | None = None
        self._failed_in = -1
        self.outcome: str | None = None

    @property
    def workers(self) -> dict[str, Worker]:
        """The workers that are not lost, by name."""
        return self._roster.living

    def take_actions(self) -> list[Send | Say]:
        """Returns what is to be done, in order; each once.

        Call it a few times a second, for the time limits. Each call looks at
        all workers, so it should follow many events at once.
        """
        if self.outcome is None:
            self._keep_times()
            self._follow_rules()
        return self._actions.take()

    # Events

    def host_lost(self, host: str, why: str) -> None:
        """Takes note that a supervisor is gone, and its workers with it."""
        left_out = self.hosts.lost(host, self._clock())
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

        `LauncherLink` has the other side.

        Raises:
            KeyError: It has no kind.
            TypeError: It has other arguments.
        """
        worker = self.workers.get(name)
        take = getattr(self, f"_take_{message['kind']}", None)
        if take is not None and worker is not None:
            worker.silence = ""
            take(worker, **{k: v for k, v in message.items() if k != "kind"})
        elif message["kind"] == "error" and name in self._roster.ending:
            self._roster.ending[name].error = reason(message["text"])

    # A worker's messages, by their kind.

    def _take_ready(
        self,
        worker: Worker,
        generation: int,
        address: Sequence[str | int],
        steps: int,
        building: bool,
    ) -> None:
        """It has left its generation, and waits."""
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
            # The other members leave as well, or must be told.
            self.generation.stop_soon(1.0, "a member has left it")

    def _take_formed(self, worker: Worker, generation: int) -> None:
        """It has all its connections."""
        if generation == worker.generation and not worker.ready:
            worker.formed = True
            self.generation.train_if_connected()

    def _take_suspect(
        self, accuser: Worker, generation: int, worker: str, why: str
    ) -> None:
        """It cannot reach another member."""
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
        """It has connected to these, and could not to `failed`."""
        worker.reached.update(reached)
        if worker.ready:
            worker.due = math.inf
        # A lost worker is no reason.
        if failed in self.workers and worker not in self.generation.members:
            self._lose(worker, why)

    def _take_state(self, worker: Worker, parts: list[list[str]]) -> None:
        """Its state has these parts: a joiner's, or the members'."""
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
        """Its training has begun, is done by all members, or is left.

        Until it is over any end is a loss. After it nobody is replaced or
        killed, and any status but 0 is the job's. All workers must begin the
        same functions in the same order; later workers get the result.
        """
        worker.training = phase == "begun"
        worker.trained = phase == "done"
        if worker.trained:
            self._trainings.end(worker, result)
        elif worker.training:
            self._some_done = False  # They ended before their training.
            if why := self._trainings.begin(worker, function):
                self._lose(worker, why)
            for each in list(self.generation.members):
                if each.silence and self._is_waited_for(each):
                    self._lose(each, each.silence)

    def _take_leaving(self, worker: Worker) -> None:
        """It has committed, or waits for a place, and was asked to end.

        The last member with the state stays until another worker has it, if
        there is another or can be.
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
        """It leaves of its own will."""
        if worker.trained:
            worker.done = True  # Its process will say with which status.
        elif worker.training or status != 0:
            # How it ends is told when it has.
            worker.announced = status
            why = f"exit status {status}"
            self._lose(worker, why, ENDING_SECONDS, tell=False)
        elif self._is_waited_for(worker):
            why = "its script has ended while others train"
            self._lose(worker, why, ENDING_SECONDS)
        elif worker in self.generation.members:
            worker.done = True
            self._some_done = True

    def _take_error(self, worker: Worker, text: str) -> None:
        """An exception ends it."""
        worker.error = reason(text)
        if not worker.trained:
            self._lose(worker, worker.error, ENDING_SECONDS)

    # Accusations of it.

    def silent(self, name: str, why: str, grace_seconds: float = 0.0) -> None:
        """Takes note that nothing is heard of a worker.

        In its grace it ends by itself, and its supervisor says how. Between two
        functions it is lost when another member begins the next one.
        """
        worker = self.workers.get(name)
        if worker is None:
            return
        if worker.is_over and not self._is_waited_for(worker):
            worker.silence = why
        else:
            self._lose(worker, why, grace_seconds, tell=not grace_seconds)

    def _is_waited_for(self, worker: Worker) -> bool:
        """Returns True if members have begun a function that it has not."""
        return not worker.done and any(
            each.training and each.run > worker.run
            for each in self.generation.members
        )

    def disconnected(self, name: str) -> None:
        """Takes note that a worker's connection has ended."""
        self.silent(name, "its connection has ended", _EXIT_SECONDS)

    def exited(self, name: str, status: int, how: str) -> None:
        """Takes note that a worker's process is gone; `how` is in words."""
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

    # Rules

    def _keep_times(self) -> None:
        limits, now = self.limits, self._clock()
        self.hosts.tick(now)
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
        """Has members that have trained go on without those that hang.

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
        """Goes on without a worker; in its grace it ends by itself."""
        self._roster.dismiss(
            worker, why, None if grace_seconds else 1, grace_seconds
        )
        generation = self.generation
        # When the job has ended, workers fail because of that.
        failed = failed and self.outcome is None
        at_end = self._finishing and worker in generation.members
        if failed and (
            generation.number > self._failed_in
            or (at_end and self._lost_at_end is None)
        ):
            self._failed_in = generation.number
            self.first_failure = worker
        if tell:
            self._roster.tell_of_loss(worker)
        if failed and not worker.proven:
            host = worker.host
            left_out = self.hosts.strike(host, worker.started, self._clock())
            if left_out:
                self._actions.say(
                    f"host {host} is left out {left_out}, as its workers fail "
                    "again and again."
                )
        if worker not in generation.members:
            return
        generation.members.remove(worker)
        if self._finishing:
            self._lost_at_end = worker
        all_over = generation.members and not generation.going_on()
        if not (worker.is_over and all_over):
            generation.stop(f"{worker} is lost: {why}")

    @property
    def _finishing(self) -> bool:
        """True once the training is over, and nobody is replaced any more."""
        return self._some_done or (
            bool(self.generation.members)
            and all(map(self._trainings.has_ended, self.generation.members))
        )

    def _follow_rules(self) -> None:
        self._joiners.let_off()
        self._joiners.let_build()
        if self._finishing and self._is_over():
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
        """Ends workers of hosts that were taken away, but for members."""
        for worker in list(self.workers.values()):
            gone = worker.host not in self.hosts and not worker.is_over
            if gone and worker not in self.generation.members:
                self._roster.end(
                    worker, f"host {worker.host} is no longer there"
                )

    def _is_over(self) -> bool:
        """Ends the job once its members have ended."""
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
        """Has the members leave at the next commit if their choice changes."""
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
            return  # They leave nothing to go on from.
        self._lose_unreachable()
        chosen = self.generation.going_on()
        if not self._finishing:
            chosen = self._choose(chosen)
            few = len(chosen) < self.limits.minimum
            if few or not self._have_gathered(len(chosen)):
                return
            if all(worker.leaving for worker in chosen):
                return  # They wait for a worker that goes on.
        if chosen:
            self._form(places.in_order(chosen))

    def _have_gathered(self, count: int) -> bool:
        """Returns True if the first generation has waited long enough."""
        first = self.limits.first
        wanted = first or places.count(self.limits, self.hosts)
        if self.generation.ever_formed or count >= wanted:
            return True
        may_come = (
            # `-np` also counts workers of hosts to come.
            (first is not None and self.limits.may_grow)
            or any(not worker.ready for worker in self.workers.values())
            or self.hosts.capacity(self._roster.occupied()) > 0
        )
        waited = self._clock() - self._last_ready
        return not may_come or waited >= _GATHER_SECONDS

    def _lose_unreachable(self) -> None:
        """Loses workers that could not connect, one at a time."""
        while worker := accusations.to_blame(
            self.generation.members, self.generation.unconnected
        ):
            self._lose(worker, "it and others cannot connect to each other")

    def _form(self, members: list[Worker]) -> None:
        """Begins a generation of these; the first has the newest state."""
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
