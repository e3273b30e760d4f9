"""The rules of an elastic job: its workers, generations and losses.

No clocks and no sockets. Events are calls, `take_actions` returns the actions,
and the caller passes a clock. A *generation* is a set of workers that train
together, its *members*; there is one at a time. The first loss stops it. All
remaining members must say that they have left it (`ready`) before the next one
is formed, so no worker is ever in two.

| phase    | ends when                                | time limits          |
|----------|------------------------------------------|----------------------|
| STOPPED  | the members and enough workers are ready | ready, replacement   |
| FORMING  | all members are connected, or one is lost| forming              |
| TRAINING | a member is lost, or leaves at a commit  |                      |
"""

from __future__ import annotations

import collections
import enum
import itertools
import math
import signal
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tfring.launcher.elastic import accusations, places
from tfring.launcher.elastic.host_table import HostTable
from tfring.launcher.elastic.trainings import Trainings
from tfring.launcher.elastic.workers import Limits, Say, Send, State, Worker
from tfring.launcher.reason import reason

# By another, and not by an error of its own: 128 + the signal.
_KILLED = (128 + signal.SIGKILL, 128 + signal.SIGTERM)
# All members may take so long to connect to one another.
_FORMING_SECONDS = 60.0
# A generation that has lasted for so long clears its hosts of suspicion.
PROGRESS_SECONDS = 30.0
# The first generation leaves out workers that join later than this after the
# one before.
_GATHER_SECONDS = 30.0
# A process may live on so long without its connection.
_EXIT_SECONDS = 3.0
# A worker that is not needed, or asked to end, may take so long for that.
_ENDING_SECONDS = 10.0
# The members find at nearly the same time that one cannot connect.
_ACCUSING_SECONDS = 2.0


class Phase(enum.Enum):
    """See the table above."""

    STOPPED = enum.auto()
    FORMING = enum.auto()
    TRAINING = enum.auto()


class Membership:
    """The workers of a job, and the generation that trains.

    Events of unknown and of lost workers are ignored.
    """

    def __init__(
        self, limits: Limits, hosts: HostTable, clock: Callable[[], float]
    ) -> None:
        self.limits = limits
        self.hosts = hosts
        self._clock = clock
        self._actions: list[Send | Say] = []

        # The living ones, by name.
        self.workers: dict[str, Worker] = {}
        # Lost, but their processes may still be there.
        self._ending: dict[str, Worker] = {}
        self._numbers = itertools.count(1)
        self._last_ready = clock()

        self.generation = 0  # 0 before the first
        # In the order of their ranks.
        self._members: list[Worker] = []
        self.phase = Phase.STOPPED
        self._since = clock()  # of the phase
        self._stop_at, self._stop_why = math.inf, ""
        self._ever_formed = False
        # How many in a row were not connected in time.
        self._late = 0
        # The next members, as the current ones were told.
        self._told: list[Worker] = []
        # Pairs of members that could not connect, with their generations.
        self._unconnected: set[accusations.Accusation] = set()

        self._trainings = Trainings()
        # A member has ended of its own will.
        self._some_done = False
        self._over_since: float | None = None
        # A member that was lost when some had ended the training.
        self._lost_at_end: Worker | None = None
        # In the latest generation with a failure.
        self.first_failure: Worker | None = None
        self._failed_in = -1
        # Why the job has failed; "" if it has succeeded, and None until it is
        # over.
        self.outcome: str | None = None

    def take_actions(self) -> list[Send | Say]:
        """Returns what is to be done, in order; each once.

        Call it a few times a second, for the time limits. Each call looks at
        all workers, so it should follow many events at once.
        """
        if self.outcome is None:
            self._keep_times()
            self._follow_rules()
        actions, self._actions = self._actions, []
        return actions

    # Events

    def host_lost(self, host: str, why: str) -> None:
        """Takes note that a supervisor is gone, and its workers with it."""
        left_out = self.hosts.lost(host, self._clock())
        for worker in list(self.workers.values()):
            if worker.host == host and worker.done:
                self._say_goodbye_to(worker, why)
            elif worker.host == host:
                self._lose(worker, why)
        for worker in list(self._ending.values()):
            if worker.host == host:
                self._tell_of_loss(worker)
                del self._ending[worker.name]
        if left_out:
            self._say(f"host {host} is left out {left_out}: {why}.")

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
        elif message["kind"] == "error" and name in self._ending:
            self._ending[name].error = reason(message["text"])

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
        if worker in self._members:
            # The other members leave as well, or must be told.
            self._stop_soon(1.0, "a member has left it")

    def _take_formed(self, worker: Worker, generation: int) -> None:
        """It has all its connections."""
        if generation != worker.generation or worker.ready:
            return
        worker.formed = True
        if self.phase is Phase.FORMING and all(
            each.formed for each in self._members
        ):
            self._enter(Phase.TRAINING)
            for each in self._members:
                each.connected = True
            self._ever_formed = True
            self._late = 0

    def _take_suspect(
        self, accuser: Worker, generation: int, worker: str, why: str
    ) -> None:
        """It cannot reach another member."""
        accused = self.workers.get(worker)
        if accuser not in self._members or generation != self.generation:
            return
        if accused in self._members and accused is not accuser:
            pair = frozenset((accuser.name, worker))
            self._unconnected.add((generation, pair))
            # The accusations of all members show who is to blame.
            self._stop_soon(
                _ACCUSING_SECONDS, f"{accuser} cannot reach {accused}: {why}"
            )

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
        if failed in self.workers and worker not in self._members:
            self._lose(worker, why)

    def _take_state(self, worker: Worker, parts: list[list[str]]) -> None:
        """Its state has these parts: a joiner's, or the members'."""
        worker.state = State(worker.run, parts)
        if worker in self._members:
            self._trainings.state = worker.state

    def _take_training(
        self,
        worker: Worker,
        phase: str,
        function: str = "",
        result: str | None = None,
    ) -> None:
        """Its training has begun, is done by all members, or is left.

        Until it is over any end is a loss. After it nobody is replaced or
        killed, and any status but 0 is the job's. All workers must begin the
        same functions in the same order; the result is for who joins later.
        """
        worker.training = phase == "begun"
        worker.trained = phase == "done"
        if worker.trained:
            self._trainings.end(worker, result)
        elif worker.training:
            self._some_done = False  # Those have ended before their training.
            if why := self._trainings.begin(worker, function):
                self._lose(worker, why)
            for each in list(self._members):
                if each.silence and self._is_waited_for(each):
                    self._lose(each, each.silence)

    def _take_leaving(self, worker: Worker) -> None:
        """It has committed, and was asked to end.

        The last one with the state stays until another worker has it, if there
        is another or can be.
        """
        worker.leaving = True
        others = [each for each in self._going_on() if not each.leaving]
        why = "it was asked to end (SIGTERM)"
        if others or not self._has_successor():
            self._send([worker], "leave")
            self._lose(worker, why, _ENDING_SECONDS, failed=False)
        else:
            self._send([worker], "stay")
            self._say(f"{worker} stays until another has its state: {why}.")

    def _take_bye(self, worker: Worker, status: int) -> None:
        """It leaves of its own will."""
        if worker.trained:
            worker.done = True  # Its process will say with which status.
        elif worker.training or status != 0:
            # How it ends is told when it has.
            worker.announced = status
            why = f"exit status {status}"
            self._lose(worker, why, _ENDING_SECONDS, tell=False)
        elif self._is_waited_for(worker):
            why = "its script has ended while others train"
            self._lose(worker, why, _ENDING_SECONDS)
        elif worker in self._members:
            worker.done = True
            self._some_done = True

    def _take_error(self, worker: Worker, text: str) -> None:
        """An exception ends it."""
        worker.error = reason(text)
        if not worker.trained:
            self._lose(worker, worker.error, _ENDING_SECONDS)

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
        """Tells if others have begun a function after a worker's last one."""
        return not worker.done and any(
            each.training and each.run > worker.run for each in self._members
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
            elif worker.done and status in _KILLED:
                self._say_goodbye_to(worker, how)
            else:
                self._lose(worker, how)
        ended = self._ending.pop(name, None)
        if ended is not None:
            if ended.announced is not None and status in _KILLED:
                # That took too long.
                status = ended.announced
                how = f"exit status {status}"
            # An exception ends it, and if that takes too long, SIGKILL.
            ended.status = 1 if ended.error and status > 128 else status
            if not ended.told:
                ended.why = how
                if ended.training and status < 128:
                    ended.why += ", in the middle of its training"
                self._tell_of_loss(ended)

    def _say_goodbye_to(self, worker: Worker, why: str) -> None:
        """Does without one that had nothing left to do but to end."""
        del self.workers[worker.name]
        self._say(f"{worker} ended after its training: {why}.")

    # Rules

    def _keep_times(self) -> None:
        limits, now = self.limits, self._clock()
        self.hosts.tick(now)
        lasted = now - self._since
        if now >= self._stop_at:
            self._stop(self._stop_why)
        elif self.phase is Phase.STOPPED and lasted >= limits.ready_seconds:
            for worker in self._waited_for():
                self._lose(
                    worker,
                    "it did not leave its generation in "
                    f"{limits.ready_seconds:g} s",
                )
        elif self.phase is Phase.FORMING and lasted >= _FORMING_SECONDS:
            self._late += 1
            self._stop(
                f"not all members were connected in {_FORMING_SECONDS:g} s"
            )
        elif self.phase is Phase.TRAINING and lasted >= PROGRESS_SECONDS:
            self._unconnected.clear()
            for worker in self._members:
                worker.proven = True
                self.hosts.progress(worker.host)
        for worker in list(self.workers.values()):
            if now >= worker.due:
                self._lose(worker, worker.overdue)

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
        self._dismiss(worker, why, None if grace_seconds else 1, grace_seconds)
        # When the job has ended, workers fail because of that.
        failed = failed and self.outcome is None
        at_end = self._finishing and worker in self._members
        if failed and (
            self.generation > self._failed_in
            or (at_end and self._lost_at_end is None)
        ):
            self._failed_in = self.generation
            self.first_failure = worker
        if tell:
            self._tell_of_loss(worker)
        if failed and not worker.proven:
            host = worker.host
            left_out = self.hosts.strike(host, worker.started, self._clock())
            if left_out:
                self._say(
                    f"host {host} is left out {left_out}, as its workers fail "
                    "again and again."
                )
        if worker not in self._members:
            return
        self._members.remove(worker)
        if self._finishing:
            self._lost_at_end = worker
        if not (worker.is_over and self._members and not self._going_on()):
            self._stop(f"{worker} is lost: {why}")

    def _tell_of_loss(self, worker: Worker) -> None:
        if not worker.told:
            worker.told = True
            self._say(f"{worker} is lost: {worker.error or worker.why}.")

    def _end(self, worker: Worker, why: str) -> None:
        """Ends a worker that is not needed; that is no failure."""
        worker.told = True
        self._dismiss(worker, why, 0, _ENDING_SECONDS)

    def _dismiss(
        self, worker: Worker, why: str, status: int | None, grace_seconds: float
    ) -> None:
        """Has a worker end with a status, or by itself, or else killed."""
        del self.workers[worker.name]
        self._ending[worker.name] = worker
        worker.why = why
        if status is not None:
            self._send([worker], "end", status=status, why=why)
        self._order(worker, "kill", grace_seconds=grace_seconds)

    def _stop(self, why: str) -> None:
        if self.phase is Phase.STOPPED:
            return
        self._enter(Phase.STOPPED)
        inside = [
            each for each in self._members if not (each.ready or each.done)
        ]
        self._send(inside, "stop", generation=self.generation, why=why)

    def _stop_soon(self, seconds: float, why: str) -> None:
        """Stops the generation then, unless it is to stop earlier."""
        at = self._clock() + seconds
        if self.phase is not Phase.STOPPED and at < self._stop_at:
            self._stop_at, self._stop_why = at, why

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self._since = self._clock()
        if phase is not Phase.TRAINING:  # It may be about to stop.
            self._stop_at = math.inf

    def _going_on(self) -> list[Worker]:
        """The members that have not reached the end of the training."""
        return [each for each in self._members if not each.is_over]

    def _waited_for(self) -> list[Worker]:
        """The members that have not left the generation yet."""
        return [each for each in self._going_on() if not each.ready]

    @property
    def _finishing(self) -> bool:
        """Tells if nobody is replaced any more, as the training is over."""
        return self._some_done or (
            bool(self._members)
            and all(map(self._trainings.has_ended, self._members))
        )

    def _follow_rules(self) -> None:
        self._let_off()
        self._let_build()
        if self._finishing and self._is_over():
            return
        if not self._finishing:
            self._lose_misfits()
            self._probe_joiners()
            self._start_missing()
            self._tell_of_waiting()
        self._form_if_possible()
        self._end_displaced()
        self._fail_if_hopeless()

    def _end_displaced(self) -> None:
        """Ends who is no member on a host that has been taken away."""
        for worker in list(self.workers.values()):
            gone = worker.host not in self.hosts and not worker.is_over
            if gone and worker not in self._members:
                self._end(worker, f"host {worker.host} is no longer there")

    def _is_over(self) -> bool:
        """Ends the job once its members have ended."""
        if any(not worker.done for worker in self._members):
            return False
        now = self._clock()
        if self._over_since is None:
            self._over_since = now
        for worker in list(self.workers.values()):
            if not worker.done:
                self._end(worker, "the training is over")
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
        missing = min(wanted, self.hosts.capacity()) - sum(
            worker.host in self.hosts and not worker.leaving
            for worker in self.workers.values()
        )
        for host in self.hosts.free(self._occupied(), missing):
            number = next(self._numbers)
            worker = Worker(f"w{number}", number, host, self._clock())
            self.workers[worker.name] = worker
            self._expect(worker, "join the job")
            slots = str(self.hosts.slots(host))
            environment = {"TFRING_ELASTIC_SLOTS": slots}
            self._order(worker, "start", environment=environment)

    def _expect(
        self, worker: Worker, what: str, seconds: float | None = None
    ) -> None:
        """Loses a worker if it has not done this in so long."""
        seconds = seconds or self.limits.replacement_seconds
        worker.due = self._clock() + seconds
        worker.overdue = f"it did not {what} in {seconds:g} s"

    def _expect_build(self, worker: Worker) -> None:
        worker.ready = False
        if worker.generation == 0:
            self._expect(worker, "build what it trains")

    def _occupied(self) -> collections.Counter[str]:
        """The workers of each host, including ending ones."""
        return collections.Counter(
            worker.host
            for worker in (*self.workers.values(), *self._ending.values())
        )

    def _waiting(self) -> list[Worker]:
        """The workers that would join."""
        members = set(self._members)
        return [
            worker
            for worker in self.workers.values()
            if worker.ready
            and worker not in members
            and worker.host in self.hosts
            and not self._trainings.has_ended(worker)
        ]

    def _joiners(self) -> list[Worker]:
        """The waiting workers that can connect to the members."""
        joiners: list[Worker] = []
        for worker in self._waiting():
            # The members will tell which state they have.
            is_early = (
                worker.state
                and not self._trainings.state
                and self.phase is not Phase.STOPPED
            )
            if not is_early and not self._not_reached(worker, joiners):
                joiners.append(worker)
        return joiners

    def _lose_misfits(self) -> None:
        """Gives up joiners that have another state than the members."""
        for worker in self._waiting():
            own, others = worker.state, self._trainings.state
            if own and others and (why := own.difference_from(others)):
                self._lose(worker, why)

    def _not_reached(
        self, worker: Worker, joiners: list[Worker]
    ) -> list[Worker]:
        """With whom it is yet to connect, to join them and these joiners."""
        if not self._ever_formed:
            return []  # Nobody trains, who would stop for it.
        return [
            each
            for each in (*self._going_on(), *joiners)
            if each.name not in worker.reached
        ]

    def _probe_joiners(self) -> None:
        before: list[Worker] = []
        for worker in self._waiting():
            others = self._not_reached(worker, before)
            before.append(worker)
            if others and worker.due == math.inf:
                self._expect(
                    worker,
                    "say if it can connect to the others",
                    _FORMING_SECONDS,
                )
                workers = [[each.name, *each.address] for each in others]
                self._send([worker], "probe", workers=workers)

    def _tell_of_waiting(self) -> None:
        """Has the members leave at the next commit if their choice changes."""
        if self.phase is not Phase.TRAINING:
            return
        chosen = self._choose(self._members)
        members = set(self._members)
        if chosen != self._told and set(chosen) != members:
            joiners = len(set(chosen) - members)
            self._send(self._members, "waiting", workers=joiners)
        self._told = chosen

    def _choose(self, members: list[Worker]) -> list[Worker]:
        return places.choose(members, self._joiners(), self.hosts, self.limits)

    def _form_if_possible(self) -> None:
        if self._waited_for():
            return
        if self._ever_formed and not self._members:
            return  # They leave nothing to go on from.
        self._lose_unreachable()
        chosen = self._going_on()
        if not self._finishing:
            chosen = self._choose(chosen)
            few = len(chosen) < self.limits.minimum
            if few or not self._have_gathered(len(chosen)):
                return
            if all(worker.leaving for worker in chosen):
                return  # They wait for who goes on.
        if chosen:
            self._form(places.in_order(chosen))

    def _have_gathered(self, count: int) -> bool:
        """Tells if the first generation has waited long enough."""
        first = self.limits.first
        wanted = first or places.count(self.limits, self.hosts)
        if self._ever_formed or count >= wanted:
            return True
        may_come = (
            # `-np` also counts workers of hosts to come.
            (first is not None and self.limits.may_grow)
            or any(not worker.ready for worker in self.workers.values())
            or self.hosts.capacity(self._occupied()) > 0
        )
        waited = self._clock() - self._last_ready
        return not may_come or waited >= _GATHER_SECONDS

    def _lose_unreachable(self) -> None:
        """Loses workers that could not connect, one at a time."""
        while worker := accusations.to_blame(self._members, self._unconnected):
            self._lose(worker, "it and others cannot connect to each other")

    def _let_off(self) -> None:
        """Has workers skip a function that the members have ended.

        A joiner skips it when a member begins the next one; until then the
        script may be at its end.
        """
        begun = max((each.run for each in self._members), default=0)
        for worker in self.workers.values():
            if not worker.ready or not self._trainings.has_ended(worker):
                continue
            if worker in self._members or worker.run < begun:
                self._expect_build(worker)
                result = self._trainings.results.get(worker.run)
                self._send([worker], "over", result=result)

    def _let_build(self) -> None:
        """Has joiners build before they join, so that nobody waits for them."""
        building = [
            worker
            for worker in self.workers.values()
            if worker.ready and worker.building
        ]
        alone = not self._ever_formed and self.phase is Phase.STOPPED
        if not building or alone:
            return
        for worker in building:
            self._expect_build(worker)
        workers = (*self._members, *self.workers.values())
        for worker, rank, nodes in places.to_come(
            building,
            [each for each in workers if each.host in self.hosts],
            places.count(self.limits, self.hosts),
        ):
            self._send([worker], "build", rank=rank, nodes=nodes)

    def _form(self, members: list[Worker]) -> None:
        """Begins a generation of these; the first has the newest state."""
        if self._trainings.newest_steps >= 0 > members[0].steps:
            self.outcome = (
                "all workers that had the state of the training are lost."
            )
            return
        chosen = set(members)
        for worker in self._going_on():
            if worker not in chosen and worker.host in self.hosts:
                self._end(worker, "there are more workers than places")
        self.generation += 1
        self._enter(Phase.FORMING)
        self._lost_at_end = None
        self._members = list(members)
        self._told = self._members
        described = [
            {
                "worker": worker.name,
                "address": worker.address,
                "node": worker.host,
                "steps": worker.steps,
            }
            for worker in members
        ]
        for rank, worker in enumerate(members):
            worker.ready = worker.formed = False
            worker.due = math.inf
            worker.rank = rank
            worker.generation = self.generation
        # Each finds itself in it: a message for all is encoded once.
        self._send(
            members, "form", generation=self.generation, members=described
        )
        self._say(
            f"generation {self.generation}: {len(members)} workers on "
            f"{len({worker.host for worker in members})} hosts."
        )

    def _fail_if_hopeless(self) -> None:
        if self.phase is not Phase.STOPPED or self.outcome is not None:
            return
        if self._ever_formed and not self._members:
            self.outcome = "all workers are lost."
            return
        if self._members and not self._going_on():
            return
        if self._late >= 3:
            self.outcome = "the workers cannot connect to one another."
            return
        minimum = 1 if self._finishing else self.limits.minimum
        may_come = self.limits.may_grow or self.hosts.cools_down()
        alive = sum(not worker.done for worker in self.workers.values())
        is_possible = alive + self._to_come() >= minimum
        if not ((is_possible and self._has_successor()) or may_come):
            self.outcome = (
                f"only {alive} workers are left, of at least {minimum}, and "
                "there is no host to start more on."
            )
        elif self._clock() >= self._since + self.limits.replacement_seconds:
            self.outcome = (
                f"fewer than {minimum} workers were ready for "
                f"{self.limits.replacement_seconds:g} s "
                "(TFRING_ELASTIC_TIMEOUT_SECONDS)."
            )

    def _to_come(self) -> int:
        """How many workers more the hosts have slots for, now or soon."""
        ending = [each for each in self.workers.values() if each.done]
        return self.hosts.capacity(self._occupied()) + sum(
            each.host in self.hosts
            for each in (*ending, *self._ending.values())
        )

    def _has_successor(self) -> bool:
        """Tells if there is a worker, or can be, that goes on with the job."""
        return self._to_come() > 0 or not all(
            worker.done or worker.leaving for worker in self.workers.values()
        )

    # Actions

    def _send(self, to: Iterable[Worker], kind: str, **more: Any) -> None:
        names = tuple(worker.name for worker in to)
        self._actions.append(Send("worker", names, {"kind": kind, **more}))

    def _order(self, worker: Worker, kind: str, **more: Any) -> None:
        """Gives a worker's supervisor an order for it."""
        message = {"kind": kind, "worker": worker.name, **more}
        self._actions.append(Send("supervisor", (worker.host,), message))

    def _say(self, text: str) -> None:
        self._actions.append(Say(text))
