"""The rules of elastic jobs, under random events."""

import random

import pytest
from elastic_job import Job

from tfring.launcher.elastic.generation import Phase


class Fleet:
    """Workers that follow the rules, at a random pace."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        chance = self.chance
        self.hosts = {
            f"h{i}": chance.randint(1, 3) for i in range(chance.randint(1, 4))
        }
        slots = sum(self.hosts.values())
        self.minimum = chance.randint(1, min(2, slots))
        maximum = chance.choice([None, chance.randint(self.minimum, slots)])
        # A second worker may come when the only one gives its state away.
        self.most = max(maximum or 10**9, 2)
        self.job = Job(
            self.hosts,
            minimum=self.minimum,
            maximum=maximum,
            spares=chance.randint(0, 1),
        )
        self.state = {}
        # The generation that each worker believes to be a member of.
        self.inside = {}
        self.steps = {}
        self.gone = set()
        # They leave at their next commit.
        self.asked = set()
        self.down = {}
        # They train by `tfring.elastic.run`.
        self.runs = chance.random() < 0.7
        self.generation = 0
        self.target = 10**9
        # The chance that a new worker fails before it joins.
        self.fails = chance.choice([0.0, 0.0, 0.5, 1.0])
        # The chance that a joiner never connects, and the workers that have.
        self.hangs = chance.choice([0.0, 0.2, 1.0])
        self.connected = set()
        # Members may have to leave because of their hosts.
        self.has_new_hosts = False
        # The chance that the launcher takes more events before it acts.
        self.behind = chance.choice([0.0, 0.5, 0.9])

    def alive(self):
        return [w for w in self.job.host_of if w not in self.gone]

    def check(self):
        """Checks the invariants."""
        job, rules = self.job, self.job.membership
        generation = rules.generation
        members = generation.members
        assert len(set(self.job.names())) == len(members)
        if generation.phase is not Phase.STOPPED:
            assert len(members) <= self.most
        for worker in self.alive():
            for message in job.inbox[worker]:
                if message["kind"] != "form":
                    continue
                names = [m["worker"] for m in message["members"]]
                assert len(set(names)) == len(names)
                assert worker in names
                assert len(names) <= self.most
                if not rules._finishing:
                    assert len(names) >= self.minimum
                steps = [m["steps"] for m in message["members"]]
                assert steps[0] == max(steps)
        # A worker that lives is in no generation but the newest.
        inside = {
            self.inside[w]
            for w in self.alive()
            if self.inside.get(w) and w in rules.workers
        }
        assert len(inside) <= 1, inside
        assert generation.number >= self.generation
        self.generation = generation.number

    def check_end(self, worker, message):
        """Checks that no member is ended for another worker's failure."""
        is_displaced = self.has_new_hosts or worker in self.asked
        if self.inside.get(worker) is not None and not is_displaced:
            assert "more workers than places" not in message["why"]

    def live(self, worker):
        """Has a worker do its next thing."""
        job = self.job
        if worker not in self.state:
            # The first workers do not fail, because a job without workers ends.
            is_joiner = job.membership.generation.ever_formed
            if is_joiner and self.chance.random() < self.fails:
                self.leave(worker, 3)
                return
            self.state[worker] = "ready"
            self.steps[worker] = -1
            self.inside[worker] = 0
            if self.runs:
                job.training(worker, "begun")
            job.be_ready(worker, building=self.chance.random() < 0.7)
            return
        if job.inbox[worker]:
            message = job.inbox[worker].pop(0)
            kind = message["kind"]
            if kind == "end":
                self.check_end(worker, message)
                self.leave(worker, message["status"])
            elif kind == "form":
                assert self.state[worker] == "ready"
                assert message["generation"] > self.inside[worker]
                newest = message["members"][0]["steps"]
                self.steps[worker] = max(newest, 0)
                self.inside[worker] = message["generation"]
                self.state[worker] = "in"
                members = job.membership.generation.members
                joins = worker not in self.connected and any(
                    each.connected for each in members
                )
                if joins and self.chance.random() < self.hangs:
                    return
                self.connected.add(worker)
                job.formed(worker, message["generation"])
            elif kind == "build":
                job.be_ready(worker)
            elif kind == "leave":
                self.leave(worker, 0)
            elif (kind, self.state[worker]) in (
                ("stay", "asks"),
                ("stop", "in"),
                ("waiting", "in"),
            ):
                self.go(worker)
        elif self.state[worker] == "in" and worker in self.asked:
            self.state[worker] = "asks"
            job.leaving(worker)
        elif self.state[worker] == "in":
            self.steps[worker] += 1
            if self.steps[worker] >= self.target:
                self.state[worker] = "trained"
                if self.runs:
                    job.training(worker, "done")
        elif self.state[worker] == "trained":
            self.state[worker] = "done"
            job.bye(worker, 0)
        elif self.state[worker] == "done":
            self.leave(worker, 0)

    def go(self, worker):
        self.state[worker] = "ready"
        generation = self.inside[worker]
        self.inside[worker] = 0
        self.job.be_ready(worker, generation, self.steps[worker])

    def leave(self, worker, status):
        self.gone.add(worker)
        self.inside[worker] = 0
        self.job.exited(worker, status, f"exit status {status}")

    def harm(self):
        """Does something bad, or silly."""
        chance, job = self.chance, self.job
        alive = self.alive()
        if not alive:
            return
        worker = chance.choice(alive)
        what = chance.choice(
            [
                *("hosts", "kill", "eof", "silent", "host", "suspect"),
                *("cut", "term", "go", "exit", "nonsense"),
            ]
        )
        if what == "hosts":
            hosts = dict(self.hosts)
            if len(hosts) > 1 and chance.random() < 0.7:
                del hosts[chance.choice(list(hosts))]
            if chance.random() < 0.5:
                hosts["new"] = 2
            job.table.update(hosts)
            self.has_new_hosts = True
            for host in job.table.missing():
                self.down.setdefault(host, job.now + chance.uniform(0, 5))
        elif what == "kill":
            self.leave(worker, 137)
        elif what == "eof":
            job.disconnected(worker)
            if chance.random() < 0.5:
                self.leave(worker, 1)
        elif what == "silent":
            job.silent(worker, "silent")
        elif what == "host":
            host = job.host_of[worker]
            for each in alive:
                if job.host_of[each] == host:
                    self.gone.add(each)
                    self.inside[each] = 0
            job.host_lost(host, "lost")
            self.down[host] = job.now + chance.uniform(1, 20)
        elif what == "suspect" and self.inside.get(worker):
            other = chance.choice(alive)
            job.suspect(worker, self.inside[worker], other, "no route")
        elif what == "cut":
            job.cut.add(frozenset((worker, chance.choice(alive))))
        elif what == "term":
            self.asked.add(worker)
            if self.state.get(worker) == "ready":  # It waits for a place.
                job.leaving(worker)
        elif what == "exit" and self.runs:
            job.bye(worker, 0)
            self.leave(worker, 0)
        elif what == "go" and self.state.get(worker) == "in":
            self.go(worker)
        elif what == "nonsense":
            job.formed(worker, chance.randint(0, 99))
            job.be_ready(worker, 999)
            job.suspect(worker, 999, "w1", "")
            job.probed(worker, ["w1"], chance.choice(["", "w2"]), "")
            job.state(worker, [("part", chance.choice("ab"))])

    def pass_time(self):
        job = self.job
        job.now += self.chance.choice([0.01, 0.1, 0.5])
        # The supervisor kills whom it was told to kill.
        for worker in job.killed:
            if worker not in self.gone and self.chance.random() < 0.3:
                self.leave(worker, 137)
        for host, until in list(self.down.items()):
            if job.now >= until and host in job.table.missing():
                job.table.came_up(host)
                del self.down[host]
        if not job.is_behind:
            job.act()

    def run(self, moves, harm):
        self.job.cut.clear()
        for _ in range(moves):
            if self.job.ended is not None:
                return
            self.job.is_behind = self.chance.random() < self.behind
            if self.chance.random() < harm:
                self.harm()
            elif alive := self.alive():
                self.live(self.chance.choice(alive))
            self.check()
            self.pass_time()


@pytest.mark.parametrize(
    "block",
    [
        *range(2),
        *(pytest.param(b, marks=pytest.mark.thorough) for b in range(2, 8)),
    ],
)
def test_random_schedules(block):
    """The invariants hold for random events, and the job ends."""
    ends = []
    for seed in range(50 * block, 50 * block + 50):
        fleet = Fleet(seed)
        fleet.run(1500, harm=fleet.chance.choice([0.0, 0.005, 0.02, 0.1]))
        # Nothing fails from here on.
        fleet.fails = fleet.hangs = 0.0
        fleet.target = max(fleet.steps.values(), default=0) + 20
        fleet.run(20_000, harm=0.0)
        assert fleet.job.ended is not None, seed
        # Only joiners hang.
        assert "cannot connect to one another" not in fleet.job.ended, seed
        ends.append(fleet.job.ended)
    assert ends.count("") > 5
