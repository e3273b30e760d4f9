"""Who belongs to an elastic job: the rules, without clocks or sockets.

Events come in as calls and actions go out by `take_actions`; the time comes
from outside. A *generation* is a set of workers that train together, its
*members*; there is one at a time. Its end is decided here alone: the first loss
stops it, all members that are left must say that they have left it (`ready`),
and only then is the next formed. So no worker is ever in two.
"""

from __future__ import annotations

import math
import signal
from typing import Any

from tfring.launcher.elastic.generations import Generations
from tfring.launcher.elastic.workers import State, Worker

# By another, and not by an error of its own: 128 + the signal.
_KILLED = (128 + signal.SIGKILL, 128 + signal.SIGTERM)
# The members find at nearly the same time that one cannot connect.
_ACCUSING_SECONDS = 2.0


class Membership(Generations):
    """The state of a job. Unknown and lost workers' events are ignored."""

    def hosts_changed(self) -> None:
        """Takes note that the table of hosts is another one."""
        for worker in list(self.workers.values()):
            gone = worker.host not in self.hosts
            if gone and worker not in self._members and not worker.done:
                self._end(worker, f"host {worker.host} is no longer there")
        self._go_on()

    def host_lost(self, host: str, why: str) -> None:
        """Takes note that a supervisor is gone, and its workers with it."""
        left_out = self.hosts.lost(host, self._clock())
        for worker in list(self.workers.values()):
            if worker.host == host and worker.done:
                self._say_goodbye_to(worker, why)
            elif worker.host == host:
                self._lose(worker, why, strike=False)
        for worker in list(self._ending.values()):
            if worker.host == host:
                self._tell_of_loss(worker)
                del self._ending[worker.name]
        if left_out:
            how_long = self.hosts.left_out_for(host)
            self._say(f"host {host} is left out {how_long}: {why}.")
        self._go_on()

    def ready(self, name: str, message: dict[str, Any]) -> None:
        """Takes a worker's `ready`: it has left its generation, and waits."""
        worker = self.workers.get(name)
        if worker is None or message["generation"] != worker.generation:
            return
        forms = bool(self._members) and not self.stopped
        if message.get("building") and (self._ever_formed or forms):
            self._let_build(worker)
            return
        if 0 < worker.run <= self._trained_run:
            self._let_off(worker)
            return
        worker.ready = message
        host, port = message["address"]
        worker.address = (host, port)
        worker.formed = False
        self._last_ready = self._clock()
        self._newest_steps = max(self._newest_steps, message["steps"])
        if worker in self._members and not self.stopped:
            # The others leave as well, or have to be told.
            self._stop_soon(1.0, "a member has left it")
        self._go_on()

    def formed(self, name: str, generation: int) -> None:
        """Takes note that a member is connected to all others."""
        worker = self.workers.get(name)
        if worker is None or generation != worker.generation or worker.ready:
            return
        worker.formed = True
        if not self.stopped and all(each.formed for each in self._members):
            self._formed_at = self._clock()
            self._formed_by = math.inf
            for each in self._members:
                each.connected = True
            self._ever_formed = True
            self._late = 0
        self._go_on()

    def suspect(self, name: str, generation: int, other: str, why: str) -> None:
        """Takes note that a member cannot reach another one."""
        worker = self.workers.get(name)
        accused = self.workers.get(other)
        if worker not in self._members or generation != self.generation:
            return
        if accused in self._members and accused not in (None, worker):
            self._unconnected.add((generation, frozenset((name, other))))
            # Who is to blame is seen from what the others say.
            self._stop_soon(
                _ACCUSING_SECONDS, f"{worker} cannot reach {accused}: {why}"
            )
        self._go_on()

    def probed(
        self, name: str, reached: list[str], failed: str, why: str
    ) -> None:
        """Takes note of whom a worker can connect to, before it joins.

        Args:
            name: The worker.
            reached: They can connect to each other.
            failed: The next one, with which it cannot; "" if there is none.
            why: Why it cannot.
        """
        worker = self.workers.get(name)
        if worker is None:
            return
        worker.probing_since = None
        worker.reached.update(reached)
        # Not if the other one is lost.
        if failed in self.workers and worker not in self._members:
            self._lose(worker, why)
        self._go_on()

    def state(self, name: str, parts: list[tuple[str, str]]) -> None:
        """Takes the parts of a worker's state: a joiner's, or the members'."""
        worker = self.workers.get(name)
        if worker is None:
            return
        worker.state = State(worker.run, parts)
        if worker in self._members:
            self._state = worker.state
        self._go_on()

    def training(
        self,
        name: str,
        phase: str,
        *,
        function: str = "",
        result: str | None = None,
    ) -> None:
        """Takes note of where a worker is in its training.

        Until it is over any end is a loss. After it nobody is replaced or
        killed, and any status but 0 is the job's.

        Args:
            name: The worker.
            phase: "begun"; "done", if all members have come to its end; or
                "left" for another reason.
            function: The name of what it begins. It must be the others', who
                have begun as many.
            result: What it returned, as JSON, for those who come later; None if
                JSON cannot hold it.
        """
        worker = self.workers.get(name)
        if worker is None:
            return
        worker.training = phase == "begun"
        worker.trained = phase == "done"
        if worker.training:
            worker.run += 1
            others = self._functions.setdefault(worker.run, function)
            if function != others:
                self._lose(
                    worker,
                    f"its training {worker.run} is '{function}', and the "
                    f"others' is '{others}'",
                )
        if worker.trained and worker.run > self._trained_run:
            self._trained_run = worker.run
            self._results[worker.run] = result
            # Of the next one: what all bring to it.
            self._newest_steps = 0
            for other in self.workers.values():
                if other.ready and 0 < other.run <= self._trained_run:
                    self._let_off(other)
        self._go_on()

    def bye(self, name: str, status: int, preempted: bool) -> None:
        """Takes note that a worker leaves of its own will."""
        worker = self.workers.get(name)
        if worker is None:
            return
        if preempted:
            worker.preempted = True
            self._lose_ending(
                worker, "it was asked to end (SIGTERM)", strike=False
            )
        elif worker.trained:
            worker.done = True  # Its process will say with which status.
        elif worker.training or status != 0:
            # How it ends is told when it has.
            self._lose_ending(worker, f"exit status {status}", tell=False)
        elif worker in self._members:
            worker.done = True
            self._some_done = True
        self._go_on()

    def error(self, name: str, text: str) -> None:
        """Takes the exception that ends a worker."""
        worker = self.workers.get(name)
        if worker is not None:
            worker.error = text
            if not worker.trained:
                self._lose_ending(worker, text)
            self._go_on()
        elif name in self._ending:
            self._ending[name].error = text

    def _lose_ending(
        self,
        worker: Worker,
        why: str,
        *,
        tell: bool = True,
        strike: bool = True,
    ) -> None:
        """Goes on without one that ends by itself, which may take seconds."""
        self._lose(
            worker,
            why,
            tell=tell,
            strike=strike,
            ends_itself=True,
            grace_seconds=self.limits.ending_seconds,
        )

    def silent(self, name: str, why: str) -> None:
        """Takes note that nothing is heard of a worker."""
        worker = self.workers.get(name)
        if worker is not None and not worker.is_over:
            self._lose(worker, why)
            self._go_on()

    def disconnected(self, name: str) -> None:
        """Takes note that a worker's connection has ended."""
        worker = self.workers.get(name)
        if worker is not None and not worker.is_over:
            # Its process is about to end, and its supervisor to say how.
            self._lose(
                worker,
                "its connection has ended",
                tell=False,
                grace_seconds=self.limits.exit_seconds,
            )
            self._go_on()

    def exited(self, name: str, status: int, how: str) -> None:
        """Takes note that a worker's process is gone.

        Args:
            name: The worker.
            status: Its exit status, or 128 + n.
            how: In words.
        """
        ended = self._ending.pop(name, None)
        if ended is not None:
            # An exception ends it, and if that takes too long, SIGKILL.
            ended.status = 1 if ended.error and status > 128 else status
            if not ended.told:
                ended.why = how
                if ended.training and status < 128:
                    ended.why += ", in the middle of its training"
                self._tell_of_loss(ended)
        worker = self.workers.get(name)
        if worker is not None:
            worker.status = status
            if worker.is_over and status == 0:
                worker.done = True
                del self.workers[name]
            elif worker.done and status in _KILLED:
                self._say_goodbye_to(worker, how)
            else:
                self._lose(worker, how)
                del self._ending[name]
        self._go_on()

    def _say_goodbye_to(self, worker: Worker, why: str) -> None:
        """Does without one that had nothing left to do but to end."""
        del self.workers[worker.name]
        self._say(f"{worker} ended after its training: {why}.")

    def tick(self) -> None:
        """Does what is due; call it a few times a second."""
        now = self._clock()
        self.hosts.tick(now)
        if now >= self._stop_at:
            self._stop(self._stop_why)
        if now >= self._ready_by:
            self._ready_by = math.inf
            for worker in self._waited_for():
                self._lose(
                    worker,
                    "it did not leave its generation in "
                    f"{self.limits.ready_seconds:g} s",
                )
        if now >= self._formed_by:
            self._late += 1
            self._stop(
                "not all members were connected in "
                f"{self.limits.forming_seconds:g} s"
            )
        if (
            self._formed_at is not None
            and now >= self._formed_at + self.limits.progress_seconds
        ):
            self._unconnected.clear()
            for worker in self._members:
                worker.proven = True
                self.hosts.progress(worker.host)
        for worker in self._waiting():
            since = worker.probing_since
            if since is not None and (
                now - since >= self.limits.forming_seconds
            ):
                self._lose(
                    worker,
                    "it did not say in "
                    f"{self.limits.forming_seconds:g} s if it can connect to "
                    "the others",
                )
        for worker in list(self.workers.values()):
            if worker.generation > 0 or worker.ready is not None:
                continue
            seconds = self.limits.start_seconds
            if worker.building_since is None:
                since, what = worker.started, "join the job"
            else:
                since, what = worker.building_since, "build what it trains"
            if now - since >= seconds:
                self._lose(worker, f"it did not {what} in {seconds:g} s")
        self._go_on()
