"""An elastic job; the test plays its workers."""

from tfring.launcher.elastic.fixed_membership import FixedMembership
from tfring.launcher.elastic.host_table import HostTable
from tfring.launcher.elastic.membership import Membership
from tfring.launcher.elastic.workers import Limits, Say


class Job:
    """The rules of a job, its messages, and a clock that the test moves."""

    def __init__(self, hosts, **limits):
        self.now = 0.0
        self.table = HostTable(lambda: self.now)
        self.table.update(hosts)
        rules = Membership if limits.get("replaces", True) else FixedMembership
        self.membership = rules(Limits(**limits), self.table, lambda: self.now)
        for host in hosts:
            self.table.came_up(host)
        self.host_of = {}
        # The unread messages of each worker.
        self.inbox = {}
        # Pairs of workers that cannot connect.
        self.cut = set()
        self.answers_probes = True
        self.killed = []
        # The number of workers that share the cores of each worker's node.
        self.cores_shared_by = {}
        # The first slot on the node of each worker's host.
        self.first_slots = {}
        self.said = []
        # If True, the launcher takes more events before it acts.
        self.is_behind = False
        self.act()

    @property
    def ended(self):
        return self.membership.outcome

    def act(self):
        for action in self.membership.take_actions():
            if isinstance(action, Say):
                self.said.append(action.text)
            elif action.role == "supervisor":
                self.obey(*action.names, action.message)
            else:
                for worker in action.names:
                    self.inbox[worker].append(action.message)
                    if action.message["kind"] == "probe" and (
                        self.answers_probes
                    ):
                        self.answer_probe(worker, action.message["workers"])

    def obey(self, host, message):
        if message["kind"] == "share_cores":
            for worker in self.cores_shared_by:
                if self.host_of[worker] == host:
                    self.cores_shared_by[worker] = message["cores_shared_by"]
                    self.first_slots[worker] = message["first_slot"]
            return
        worker = message["worker"]
        if message["kind"] == "start":
            self.host_of[worker] = host
            self.inbox[worker] = []
            self.cores_shared_by[worker] = message["cores_shared_by"]
            self.first_slots[worker] = message["first_slot"]
        else:
            assert message["kind"] == "kill"
            assert host == self.host_of[worker]
            self.killed.append(worker)

    def answer_probe(self, worker, others):
        names = [name for name, _, _ in others]
        cut = [name for name in names if {worker, name} in self.cut]
        reached = [name for name in names if name not in cut]
        failed = cut[0] if cut else ""
        self.probed(worker, reached, failed, f"it cannot reach {failed}")

    def _act_unless_behind(self):
        if not self.is_behind:
            self.act()

    def hear(self, sender, kind, **fields):
        """Has a worker send a message."""
        self.membership.heard(sender, {"kind": kind, **fields})
        self._act_unless_behind()

    def be_ready(self, worker, generation=0, steps=-1, *, building=False):
        self.hear(
            worker,
            "ready",
            generation=generation,
            address=("127.0.0.1", 1),
            steps=steps,
            building=building,
        )

    def formed(self, worker, generation):
        self.hear(worker, "formed", generation=generation)

    def suspect(self, worker, generation, suspected, why):
        self.hear(
            worker,
            "suspect",
            generation=generation,
            worker=suspected,
            why=why,
        )

    def probed(self, worker, reached, failed, why):
        self.hear(worker, "probed", reached=reached, failed=failed, why=why)

    def state(self, worker, parts):
        self.hear(worker, "state", parts=parts)

    def training(self, worker, phase, **more):
        self.hear(worker, "training", phase=phase, **more)

    def leaving(self, worker):
        self.hear(worker, "leaving")

    def bye(self, worker, status):
        self.hear(worker, "bye", status=status)

    def error(self, worker, text):
        self.hear(worker, "error", text=text)

    def exited(self, worker, status, how):
        self.membership.exited(worker, status, how)
        self._act_unless_behind()

    def disconnected(self, worker):
        self.membership.disconnected(worker)
        self._act_unless_behind()

    def silent(self, worker, why):
        self.membership.silent(worker, why)
        self._act_unless_behind()

    def host_lost(self, host, why):
        self.membership.host_lost(host, why)
        self._act_unless_behind()

    def end(self, worker, status=0):
        """Has it say that it ends, and end."""
        self.bye(worker, status)
        self.exited(worker, status, f"exit status {status}")

    def wait(self, seconds):
        for _ in range(int(seconds * 2)):
            self.now += 0.5
            self.act()

    def got(self, worker, kind):
        """Takes the messages of a worker; the last of this kind, or None."""
        found = [m for m in self.inbox[worker] if m["kind"] == kind]
        self.inbox[worker].clear()
        return found[-1] if found else None

    def start(self, workers):
        """Has these form the first generation."""
        for worker in workers:
            self.be_ready(worker)
        for worker in workers:
            self.formed(worker, 1)
        assert self.names() == set(workers)
        for worker in workers:
            assert self.got(worker, "form")["generation"] == 1

    def all_ready(self, workers, generation, steps):
        """Has these leave a generation at a step."""
        for worker in workers:
            self.be_ready(worker, generation, steps)

    def form_again(self, workers, generation, steps):
        """Has these leave a generation at a step, and form the next one."""
        self.all_ready(workers, generation, steps)
        for worker in workers:
            self.formed(worker, generation + 1)

    def go_on_without(self, *lost, steps):
        """Has these killed, and the other members form the next generation."""
        generation = self.membership.generation.number
        left = sorted(self.names() - {*lost})
        for worker in lost:
            self.exited(worker, 137, "killed by SIGKILL")
        self.form_again(left, generation, steps)

    def train(self, workers, *phases, **more):
        """Has these tell of the phases of a training, one after the other."""
        for phase in phases:
            for worker in workers:
                self.training(worker, phase, **more)

    def names(self):
        members = self.membership.generation.members
        return {worker.name for worker in members}


def started(hosts, **limits):
    """Returns a job with all but the spares in its first generation."""
    job = Job(hosts, **limits)
    job.start([*job.host_of][: limits.get("maximum")])
    return job
