"""Generations of an elastic job: how they end, and how the next is formed.

No clocks and no sockets: what is to be done goes out by `take_actions`, and the
time comes from outside. `membership` takes the events.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Iterable
from typing import Any

from tfring.launcher.elastic import accusations, places
from tfring.launcher.elastic.host_table import HostTable
from tfring.launcher.elastic.workers import (
    Action,
    Finish,
    Kill,
    Limits,
    Say,
    Send,
    Start,
    State,
    Worker,
)


class Generations:
    """The workers of a job, and the generation that trains.

    Attributes:
        workers: By name, those that are alive as far as is known.
        generation: The number of the current generation; 0 before the first.
        stopped: It has ended, and the next is not formed.
        finished: The job is over.
        first_failure: The worker that failed first, of the last generation in
            which one did.
    """

    def __init__(
        self, limits: Limits, hosts: HostTable, clock: Callable[[], float]
    ) -> None:
        self.limits = limits
        self.hosts = hosts
        self._clock = clock
        self._actions: list[Action] = []
        # Events have changed the state since the rules were followed.
        self._has_changed = False
        self._count = 0
        self.generation = 0
        # Of the current generation, in the order of their ranks.
        self._members: list[Worker] = []
        self.workers: dict[str, Worker] = {}
        # Lost, but their processes may still be there.
        self._ending: dict[str, Worker] = {}
        self.stopped = True
        self._formed_at: float | None = None
        self._ever_formed = False
        self._newest_steps = -1
        # Who would train next, as the members were told.
        self._told: list[Worker] = []
        # A member has ended of its own will.
        self._some_done = False
        # The last function of `tfring.elastic.run` that all have ended; the
        # names of those that were begun, and what the ended ones returned.
        self._trained_run = 0
        self._functions: dict[int, str] = {}
        self._results: dict[int, str | None] = {}
        self._over_since: float | None = None
        # Lost when others had said that the training is over.
        self._lost_at_end: Worker | None = None
        self.finished = False
        self.first_failure: Worker | None = None
        self._failed_in = -1
        # The members', as one of them has told.
        self._state: State | None = None
        # Two members that could not connect, and in which generation.
        self._unconnected: set[accusations.Accusation] = set()
        self._short_since = clock()
        self._stop_at = math.inf
        self._stop_why = ""
        self._ready_by = math.inf
        self._formed_by = math.inf
        self._late = 0
        self._last_ready = clock()

    def take_actions(self) -> list[Action]:
        """Returns what is to be done, in order; each once.

        Each call looks at all workers, so it should follow many events at once.
        """
        if self._has_changed:
            self._has_changed = False
            self._follow_rules()
        actions, self._actions = self._actions, []
        return actions

    def _lose(
        self,
        worker: Worker,
        why: str,
        *,
        strike: bool = True,
        tell: bool = True,
        ends_itself: bool = False,
        grace_seconds: float = 0.0,
    ) -> None:
        del self.workers[worker.name]
        self._ending[worker.name] = worker
        worker.why = why
        self._note_failure(worker)
        if not ends_itself:
            self._send(worker, {"kind": "end", "status": 1, "why": why})
        self._actions.append(Kill(worker.name, worker.host, grace_seconds))
        if tell:
            self._tell_of_loss(worker)
        self._unconnected = {
            (generation, pair)
            for generation, pair in self._unconnected
            if worker.name not in pair
        }
        counts = strike and not worker.proven
        if counts and self.hosts.strike(
            worker.host, worker.started, self._clock()
        ):
            self._say(
                f"host {worker.host} is left out "
                f"{self.hosts.left_out_for(worker.host)}, as its workers fail "
                "again and again."
            )
        if worker not in self._members:
            return
        self._members.remove(worker)
        if self._finishing:
            self._lost_at_end = worker
        if not (worker.is_over and self._members and self._are_over()):
            self._stop(f"{worker} is lost: {why}")

    def _tell_of_loss(self, worker: Worker) -> None:
        if not worker.told:
            worker.told = True
            self._say(f"{worker} is lost: {worker.error or worker.why}.")

    def _note_failure(self, worker: Worker) -> None:
        if worker.preempted or self.generation <= self._failed_in:
            return
        self._failed_in = self.generation
        self.first_failure = worker

    def _end(self, worker: Worker, why: str) -> None:
        """Ends a worker that is not needed; that is no failure."""
        del self.workers[worker.name]
        self._ending[worker.name] = worker
        worker.told = True
        self._send(worker, {"kind": "end", "status": 0, "why": why})
        self._actions.append(
            Kill(worker.name, worker.host, self.limits.ending_seconds)
        )

    def _stop(self, why: str) -> None:
        if self.stopped:
            return
        now = self._clock()
        self.stopped = True
        self._formed_at = None
        self._stop_at = self._formed_by = math.inf
        self._short_since = now
        self._ready_by = now + self.limits.ready_seconds
        message = {"kind": "stop", "generation": self.generation, "why": why}
        self._send_all(
            (
                worker
                for worker in self._members
                if worker.ready is None and not worker.done
            ),
            message,
        )

    def _stop_soon(self, seconds: float, why: str) -> None:
        """Stops the generation then, unless it is to stop earlier."""
        if self._clock() + seconds < self._stop_at:
            self._stop_at, self._stop_why = self._clock() + seconds, why

    def _waited_for(self) -> list[Worker]:
        """The members that have not left the generation yet."""
        return [
            worker
            for worker in self._members
            if worker.ready is None and not worker.is_over
        ]

    @property
    def _finishing(self) -> bool:
        """Tells if nobody is replaced any more, as the training is over."""
        return self._some_done or (
            bool(self._members)
            and all(0 < each.run <= self._trained_run for each in self._members)
        )

    def _are_over(self) -> bool:
        """Tells if no member trains any more."""
        return all(worker.is_over for worker in self._members)

    def _go_on(self) -> None:
        """Has the rules followed with the next `take_actions`."""
        self._has_changed = True

    def _follow_rules(self) -> None:
        if self.finished:
            return
        if self._finishing and self._is_over():
            return
        if not self._finishing:
            self._lose_misfits()
            self._probe_joiners()
            self._start_missing()
            self._tell_of_waiting()
        self._form_if_possible()
        self._fail_if_hopeless()

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
            self._finish(f"{self._lost_at_end} was lost at the end.")
        elif not self.workers:
            self._finish("")
        elif now >= self._over_since + self.limits.replacement_seconds:
            self._finish(
                "the training is over, and the workers did not end in "
                f"{self.limits.replacement_seconds:g} s "
                "(TFRING_ELASTIC_TIMEOUT_SECONDS)."
            )
        return True

    def _start_missing(self) -> None:
        wanted = self._places() + self.limits.spares
        missing = min(wanted, self.hosts.capacity()) - sum(
            worker.host in self.hosts for worker in self.workers.values()
        )
        occupied = self._occupied()
        while missing > 0:
            host = self.hosts.free(occupied)
            if host is None:
                return
            missing -= 1
            occupied[host] += 1
            self._count += 1
            worker = Worker(f"w{self._count}", self._count, host, self._clock())
            self.workers[worker.name] = worker
            self._actions.append(Start(worker.name, host))

    def _places(self) -> int:
        """How many members there may be."""
        if self.limits.maximum is not None:
            return self.limits.maximum
        return max(
            self.limits.minimum, self.hosts.capacity() - self.limits.spares
        )

    def _occupied(self) -> collections.Counter[str]:
        """The workers of each host, also those that are still ending."""
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
        ]

    def _joiners(self) -> list[Worker]:
        """Those that can: nobody is to stop for one that cannot connect."""
        joiners: list[Worker] = []
        for worker in self._waiting():
            # The members will tell which state they have.
            is_early = worker.state and not self._state and not self.stopped
            if not is_early and not self._not_reached(worker, joiners):
                joiners.append(worker)
        return joiners

    def _lose_misfits(self) -> None:
        """Gives up joiners that have another state than the members."""
        for worker in self._waiting():
            if worker.state and self._state:
                why = worker.state.difference_from(self._state)
                if why:
                    self._lose(worker, why)

    def _not_reached(
        self, worker: Worker, joiners: list[Worker]
    ) -> list[Worker]:
        """With whom it is yet to connect, to join them and these joiners."""
        if not self._ever_formed:
            return []  # Nobody trains, who would stop for it.
        members = [each for each in self._members if not each.is_over]
        return [
            each
            for each in (*members, *joiners)
            if each.name not in worker.reached
        ]

    def _probe_joiners(self) -> None:
        before: list[Worker] = []
        for worker in self._waiting():
            others = self._not_reached(worker, before)
            before.append(worker)
            if others and worker.probing_since is None:
                worker.probing_since = self._clock()
                workers = [[each.name, *each.address] for each in others]
                self._send(worker, {"kind": "probe", "workers": workers})

    def _tell_of_waiting(self) -> None:
        """Has the members leave at the next commit, if others would train."""
        if self._formed_at is None:
            return
        chosen = self._choose(self._members)
        members = set(self._members)
        if chosen != self._told and set(chosen) != members:
            joiners = len(set(chosen) - members)
            self._send_all(
                self._members, {"kind": "waiting", "workers": joiners}
            )
        self._told = chosen

    def _choose(self, members: list[Worker]) -> list[Worker]:
        return places.choose(
            members,
            self._joiners(),
            self.hosts,
            minimum=self.limits.minimum,
            places=self._places(),
            maximum=self.limits.maximum,
        )

    def _form_if_possible(self) -> None:
        if self._waited_for():
            return
        if self._ever_formed and not self._members:
            return  # They leave nothing to go on from.
        self._lose_unreachable()
        going_on = [each for each in self._members if not each.is_over]
        if self._finishing:
            chosen = going_on
        else:
            chosen = self._choose(going_on)
            if len(chosen) < self.limits.minimum or not self._have_gathered(
                len(chosen)
            ):
                return
        if not chosen:
            return
        self._form(places.in_order(chosen))

    def _have_gathered(self, count: int) -> bool:
        """Tells if the first generation has waited long enough."""
        if self._ever_formed:
            return True
        first = self.limits.first
        if count >= (self._places() if first is None else first):
            return True
        waits = self._last_ready + self.limits.gather_seconds > self._clock()
        # The user has said how many to wait for, also from hosts to come.
        may_come = first is not None and self.limits.may_grow
        return not (waits and (may_come or self._may_come()))

    def _may_come(self) -> bool:
        """Tells if more workers are about to join."""
        return any(not worker.ready for worker in self.workers.values()) or (
            self.hosts.may_give(self._occupied()) > 0
        )

    def _lose_unreachable(self) -> None:
        """Gives up who could not connect to others, one after the other."""
        while (
            worker := accusations.to_blame(self._members, self._unconnected)
        ) is not None:
            self._lose(worker, "it and others cannot connect to each other")

    def _let_off(self, worker: Worker) -> None:
        """Has a worker leave out a function that the others have ended."""
        worker.ready = None
        worker.building_since = self._clock()
        self._send(
            worker, {"kind": "over", "result": self._results[worker.run]}
        )

    def _let_build(self, worker: Worker) -> None:
        """Has a joiner build before it is taken: the others would wait."""
        worker.ready = None
        worker.building_since = self._clock()
        rank, nodes = places.to_come(
            worker,
            [
                each
                for each in (*self._members, *self.workers.values())
                if each.host in self.hosts
            ],
            self._places(),
        )
        self._send(worker, {"kind": "build", "rank": rank, "nodes": nodes})

    def _form(self, members: list[Worker]) -> None:
        if self._newest_steps >= 0 and places.newest_steps(members) < 0:
            self._finish(
                "all workers that had the state of the training are lost."
            )
            return
        now = self._clock()
        chosen = set(members)
        for worker in self._members:
            if worker not in chosen and not worker.is_over:
                if worker.host in self.hosts:
                    why = "there are more workers than places"
                else:
                    why = f"host {worker.host} is no longer there"
                self._end(worker, why)
        self.generation += 1
        self.stopped = False
        self._lost_at_end = None
        self._members = list(members)
        self._told = self._members
        self._stop_at = self._ready_by = math.inf
        self._formed_by = now + self.limits.forming_seconds
        described = [
            {
                "worker": worker.name,
                **{
                    key: (worker.ready or {}).get(key)
                    for key in ("address", "node", "steps")
                },
            }
            for worker in members
        ]
        for rank, worker in enumerate(members):
            worker.ready = None
            worker.formed = False
            worker.rank = rank
            worker.generation = self.generation
        # Each finds itself in it: a message for all is encoded once.
        self._send_all(
            members,
            {
                "kind": "form",
                "generation": self.generation,
                "members": described,
            },
        )
        for worker in self._waiting():
            if worker.ready and worker.ready.get("building"):
                self._let_build(worker)
        self._say(
            f"generation {self.generation}: {len(members)} workers on "
            f"{len({worker.host for worker in members})} hosts."
        )

    def _fail_if_hopeless(self) -> None:
        if self.finished or not self.stopped:
            return
        if self._ever_formed and not self._members:
            self._finish("all workers are lost.")
            return
        if self._members and self._are_over():
            return
        if self._late >= 3:
            self._finish("the workers cannot connect to one another.")
            return
        minimum = 1 if self._finishing else self.limits.minimum
        alive = sum(not worker.done for worker in self.workers.values())
        possible = alive + self.hosts.may_give(self._occupied())
        # Processes that are ending will leave their slots.
        possible += sum(
            each.host in self.hosts for each in self._ending.values()
        )
        may_come = self.limits.may_grow or self.hosts.cools_down()
        if possible < minimum and not may_come:
            self._finish(
                f"only {alive} workers are left, of at least {minimum}, and "
                "there is no host to start more on."
            )
        elif (
            self._clock() >= self._short_since + self.limits.replacement_seconds
        ):
            self._finish(
                f"fewer than {minimum} workers were ready for "
                f"{self.limits.replacement_seconds:g} s "
                "(TFRING_ELASTIC_TIMEOUT_SECONDS)."
            )

    def _finish(self, text: str) -> None:
        self.finished = True
        self._actions.append(Finish(text))

    def _send(self, worker: Worker, message: dict[str, Any]) -> None:
        self._send_all((worker,), message)

    def _send_all(
        self, workers: Iterable[Worker], message: dict[str, Any]
    ) -> None:
        names = tuple(worker.name for worker in workers)
        self._actions.append(Send(names, message))

    def _say(self, text: str) -> None:
        self._actions.append(Say(text))
