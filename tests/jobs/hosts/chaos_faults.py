"""Random faults of a job; the job survives each of them."""

import contextlib
import heapq
import itertools
import os
import signal
import time

# The relative frequency of each kind.
KINDS = {
    "kill": 6,
    "kill two": 2,
    "stop": 3,
    "terminate": 2,
    "step exception": 3,
    "step exit": 1,
    "step leave": 1,
    "step hang": 1,
    "step cut": 4,
    "pause": 4,
    "commit kill": 3,
    "save kill": 2,
    "save exception": 1,
    "sync kill": 2,
    "reset kill": 1,
    "reset stop": 1,
    "joiner kill": 4,
    "joiner stop": 2,
    "joiners fail": 3,
    "dead name": 2,
    "no temporary folder": 2,
    "lost host": 4,
    "frozen host": 2,
    "leaving host": 1,
    "supervisor kill": 2,
    "cut": 4,
    "flap": 3,
    "fewer slots": 3,
    "validation kill": 2,
    "validation exception": 1,
}
# These kinds need a job with a discovery script, or with `fit`.
OF_SCRIPTS = ("fewer slots", "dead name")
OF_FIT = ("validation kill", "validation exception")
# These harm what is beside the training, for a while, and then kill a worker.
BESIDE = ("joiners fail", "dead name", "no temporary folder")
# The launcher has detected a lost worker after this time.
_DETECTION_SECONDS = 4.0
AT_THE_END = ("none", "end kill", "end exception", "end stop", "kill")


class Faults:
    """Harms a job, and keeps enough workers with its state alive."""

    def __init__(self, job, dice):
        self._job = job
        self._dice = dice
        self._harmed = set()
        self._harmed_hosts = {}
        # The slots of hosts that the script prints otherwise for a while.
        self._other_slots = []
        self._later = []
        self._count = itertools.count()
        self.done = 0

    def tick(self):
        """Runs the actions that are due, such as mending a link."""
        while self._later and self._later[0][0] <= time.monotonic():
            heapq.heappop(self._later)[2]()

    def is_quiet(self):
        """Returns True if no action is left."""
        return not self._later

    def mend_all(self):
        """Runs all later actions now."""
        while self._later:
            heapq.heappop(self._later)[2]()

    def survivors(self):
        """Returns (host, pid) of each unharmed worker that trains, by name."""
        trained, _ = self._job.records.trained()
        return {
            name: place
            for name, place in self._job.workers().items()
            if name in trained
            and name not in self._harmed
            and place[0] not in self._harmed_hosts
        }

    def strike(self, kind):
        """Has a fault happen; returns whether it was possible."""
        survivors = self.survivors()
        victims = self._choose(kind, survivors)
        if not victims:
            return False
        if kind in BESIDE:
            self._harm_the_rest(kind, self._dice.uniform(3, 12))
            # The loss finds the launcher busy with it, or not.
            time.sleep(self._dice.uniform(0, 2))
        self._job.say(f"-- {kind}: {', '.join(victims)}")
        self._do(kind, victims, survivors)
        self.done += 1
        return True

    def _choose(self, kind, survivors):
        """Chooses workers or hosts to harm, and leaves two workers to train."""
        names = sorted(survivors)
        spare = len(names) - 2
        hosts = sorted({host for host, _ in survivors.values()})
        match kind:
            case "kill two" | "sync kill" | "reset kill" | "reset stop":
                return self._dice.sample(names, 2) if spare >= 2 else []
            case "joiner kill" | "joiner stop":
                trained, _ = self._job.records.trained()
                joiners = set(self._job.workers()) - trained - self._harmed
                return self._dice.sample(sorted(joiners), 1) if joiners else []
            case (
                "lost host"
                | "frozen host"
                | "leaving host"
                | "cut"
                | "flap"
                | "fewer slots"
                | "supervisor kill"
            ):
                self._dice.shuffle(hosts)
                for host in hosts:
                    on_it = [n for n in names if survivors[n][0] == host]
                    if len(on_it) <= spare:
                        return [host]
                return []
            case _:
                return self._dice.sample(names, 1) if spare >= 1 else []

    def _do(self, kind, victims, survivors):
        first, where = victims[0], kind.split()[0]
        match kind:
            case "kill" | "kill two":
                for victim in victims:
                    self._signal(victim, signal.SIGKILL)
                    time.sleep(self._dice.choice([0, 0, 0.1]))
            case "stop" | "joiner stop":
                self._signal(first, signal.SIGSTOP)
            case "terminate":
                self._signal(first, signal.SIGTERM)
            case "joiner kill":
                self._signal(first, signal.SIGKILL)
            case "sync kill" | "reset kill" | "reset stop":
                # The fault happens in the recovery from the loss of another
                # worker.
                self._order(first, kind)
                self._signal(victims[1], signal.SIGKILL)
            case "lost host":
                self._job.network.signal(first, signal.SIGKILL)
                self._harm_host(first, 0)
            case "frozen host":
                seconds = self._dice.uniform(1, 6)
                self._job.network.signal(first, signal.SIGSTOP)
                self._harm_host(
                    first,
                    seconds,
                    lambda: self._job.network.signal(first, signal.SIGCONT),
                )
            case "leaving host":
                self._signal_supervisor(first, signal.SIGTERM)
                self._harm_host(first, 0)
            case "supervisor kill":
                self._signal_supervisor(first, signal.SIGKILL)
                self._harm_host(first, 0)
            case "cut":
                self._job.network.cut(first)
                self._harm_host(
                    first,
                    self._dice.uniform(3, 8),
                    lambda: self._job.network.mend(first),
                )
            case "flap":
                at = 0.0
                for _ in range(self._dice.randint(1, 3)):
                    self._after(at, lambda: self._job.network.cut(first))
                    at += self._dice.uniform(0.1, 1.2)
                    self._after(at, lambda: self._job.network.mend(first))
                    at += self._dice.uniform(0.1, 1.0)
                self._harm_host(first, at)
            case "fewer slots":
                seconds = self._dice.uniform(2, 6)
                self._change_slots({first: self._job.slots[first] - 1}, seconds)
                self._harm_host(first, seconds)
            case _ if kind in BESIDE:
                self._signal(first, signal.SIGKILL)
            case "pause":
                # Some of these pauses are longer than the limit on silence.
                seconds = self._dice.choice([0.3, 1.0, 3.5])
                self._signal(first, signal.SIGSTOP)
                self._after(
                    seconds, lambda: self._signal(first, signal.SIGCONT)
                )
            case _ if where in ("step", "commit", "save", "end", "validation"):
                self._order(first, kind)
        if first in survivors or "joiner" in kind:
            self._harmed.update(victims)
        if kind in ("pause", "step cut"):  # which it may survive
            self._after(8, lambda: self._harmed.difference_update(victims))

    def _harm_the_rest(self, kind, seconds):
        """Harms what is beside the training, for some seconds."""
        folder, away = self._job.folder / "tmp", self._job.folder / "no-tmp"
        match kind:
            case "joiners fail":
                path = self._job.folder / "faults" / "joiners"
                path.touch()
                self._after(seconds, lambda: path.unlink(missing_ok=True))
            case "dead name":
                self._change_slots({"nowhere": 1}, seconds)
            case "no temporary folder" if folder.exists():
                folder.rename(away)
                self._after(seconds, lambda: away.rename(folder))

    def _change_slots(self, slots, seconds):
        """Has the discovery script print other slots for some seconds."""
        self._other_slots.append(slots)
        self._write_slots()

        def undo():
            self._other_slots.remove(slots)
            self._write_slots()

        self._after(seconds, undo)

    def _write_slots(self):
        slots = dict(self._job.slots)
        for other in self._other_slots:
            slots.update(other)
        self._job.write_hosts(slots)

    def _order(self, name, what):
        path = self._job.folder / "faults" / name
        draft = path.with_name(f".{name}")
        draft.write_text(what)
        draft.rename(path)

    def _signal(self, name, number):
        place = self._job.workers().get(name)
        if place:
            with contextlib.suppress(ProcessLookupError):
                os.kill(place[1], number)

    def _signal_supervisor(self, host, number):
        of_workers = {pid for _, pid in self._job.workers().values()}
        pids = set(self._job.network.processes(host)) - of_workers
        if pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._dice.choice(sorted(pids)), number)

    def _harm_host(self, host, seconds, action=None):
        """Counts no worker of a host as a survivor until it has recovered."""
        mark = object()
        self._harmed_hosts[host] = mark

        def forget():
            # Lost workers are in no later generation.
            if self._harmed_hosts.get(host) is mark:
                del self._harmed_hosts[host]

        if action:
            self._after(seconds, action)
        self._after(seconds + _DETECTION_SECONDS, forget)

    def _after(self, seconds, action):
        at = time.monotonic() + seconds
        heapq.heappush(self._later, (at, next(self._count), action))
