"""The hosts of a job, and the launcher's message if a host fails."""

import os

import pytest

from tfring.launcher import host_failures, hosts as hosts_lib
from tfring.launcher.elastic import discovery
from tfring.launcher.hosts import Host


class TestHosts:
    def test_hosts(self):
        assert hosts_lib.parse_hosts("node1:4, node2") == [
            Host("node1", 4),
            Host("node2", 1),
        ]

    @pytest.mark.parametrize(
        "text",
        [
            *("", "node1:", ":4", "n:0", "n:-1", "n:x", "n:1025", "n:\u00b2"),
            *("Loading...", "node1..example.org:4", "x" * 70 + ":1", "\0:1"),
            *("-oProxyCommand=touch${IFS}owned:1", "a b:4", "\u2603\u0007"),
        ],
    )
    def test_bad_hosts(self, text):
        with pytest.raises(ValueError, match="expected host:slots"):
            hosts_lib.parse_hosts(text)
        with pytest.raises(ValueError, match="expected host:slots"):
            discovery.parse(f"localhost:1\n{text or '?'}\n")

    def test_names(self):
        names = ["10.0.0.1", "node_1.example.org.", "b\u00fccher", "NODE-2"]
        hosts = hosts_lib.parse_hosts(",".join(f"{n}:1024" for n in names))
        assert hosts == [Host(name, 1024) for name in names]

    def test_hostfile(self, tmp_path):
        path = tmp_path / "hosts"
        path.write_text(
            "# our machines\n"
            "node1 slots=4 max_slots=8\n"
            "\n"
            "node2:2  # the old one\n"
            "node3\n"
        )
        assert hosts_lib.read_hostfile(path) == [
            Host("node1", 4),
            Host("node2", 2),
            Host("node3", 1),
        ]

    def test_bad_hostfile(self, tmp_path):
        path = tmp_path / "hosts"
        path.write_text("node1\nnode2 slots=two\n")
        with pytest.raises(ValueError, match=r"hosts, line 2: .*'node2:two'"):
            hosts_lib.read_hostfile(path)
        for line in ("node2 4", "node2 slots = 4", "node2 slot=4"):
            path.write_text(f"node1\n{line}\n")
            with pytest.raises(ValueError, match="line like 'node2 slots=4'"):
                hosts_lib.read_hostfile(path)
        path.write_text("# nothing\n")
        with pytest.raises(ValueError, match="names no hosts"):
            hosts_lib.read_hostfile(path)

    def test_machines_of_a_batch_system(self, tmp_path):
        nodes = tmp_path / "nodes"
        scontrol = tmp_path / "scontrol"
        scontrol.write_text(
            f"#!/bin/sh\ntest \"$*\" = 'show hostnames' && cat {nodes}\n"
        )
        scontrol.chmod(0o755)

        def found(text, **environment):
            nodes.write_text(text)
            path = f"{tmp_path}:{os.environ['PATH']}"
            machines = hosts_lib.allotted({"PATH": path, **environment})
            return [(host.name, host.slots) for host in machines]

        slurm = {"SLURM_JOB_NODELIST": "n[1-3]"}
        lines = "n1\nn2\nn3\n"
        assert found(lines, **slurm, SLURM_TASKS_PER_NODE="2(x2),1") == [
            ("n1", 2),
            ("n2", 2),
            ("n3", 1),
        ]
        with pytest.raises(ValueError, match="3 machines, and slots for 2"):
            found(lines, **slurm, SLURM_TASKS_PER_NODE="2(x2)")
        two = [("n1", 2), ("n2", 1)]
        assert found("n1\nn2\nn1\n", PBS_NODEFILE=str(nodes)) == two
        assert found("", LSB_MCPU_HOSTS="n1 2 n2 1") == two
        lines = "n1 2 all.q@n1 <NULL>\nn2 1 all.q@n2 <NULL>\n"
        assert found(lines, PE_HOSTFILE=str(nodes)) == two
        assert found("") == []

    @pytest.mark.parametrize(
        ("package_cores", "ranks", "cores"),
        [
            ([8], 1, 8),
            ([8], 3, 2),
            ([4, 4], 4, 2),
            ([2], 2, 1),
            ([1, 1], 2, 1),
            # A rank has less than one core, or almost two.
            ([2], 3, 0),
            ([3], 2, 0),
            # Three ranks of three cores fit into ten, but not into two fives.
            ([10], 3, 3),
            ([5, 5], 3, 0),
            # One rank on both packages: no launcher binds it so.
            ([4, 4], 1, 0),
        ],
    )
    def test_cores_to_bind(self, package_cores, ranks, cores):
        assert hosts_lib.cores_to_bind(package_cores, ranks) == cores

    def test_cores_of_this_machine(self):
        cores = sum(hosts_lib.cores_per_package())
        assert 1 <= cores <= len(os.sched_getaffinity(0))
        assert hosts_lib.cpus_of_slot(0, 1) == os.sched_getaffinity(0)

    @pytest.mark.parametrize(
        ("slot", "slots", "threads", "cpus"),
        [
            (0, 1, 1, {0, 1, 2, 3, 4, 5, 6, 7}),
            (1, 2, 4, {2, 6, 3, 7}),
            (1, 3, 1, {1, 5}),
            (2, 3, 1, {2, 6, 3, 7}),
            (3, 4, 2, {3, 7}),
            # More slots than cores, a worker of a host that has lost slots, and
            # more threads than CPUs.
            (0, 5, 1, {0, 1, 2, 3, 4, 5, 6, 7}),
            (4, 4, 1, {0, 1, 2, 3, 4, 5, 6, 7}),
            (3, 4, 3, {0, 1, 2, 3, 4, 5, 6, 7}),
        ],
    )
    def test_cpus_of_a_slot(self, monkeypatch, slot, slots, threads, cpus):
        by_core = {(0, 0): {0, 4}, (1, 1): {3, 7}, (0, 1): {1, 5}}
        by_core[1, 0] = {2, 6}
        monkeypatch.setattr(hosts_lib, "_cpus_by_core", lambda: by_core)
        assert hosts_lib.cpus_of_slot(slot, slots, threads) == cpus


_DAEMON = [
    "A daemon failed to report back after being spawned. This could",
    "  Local host:    vm",
    "  Remote host:   node2",
]
_COMMUNICATION = [
    "PRTE has lost communication with a remote daemon.",
    "  HNP daemon   : [prterun-vm-1@0,0] on node vm",
    "  Remote daemon: [prterun-vm-1@0,1] on node node2",
]
_PROXY = "[mpiexec@vm] ui_cmd_cb (pmci.c:51): Launch proxy failed."
_NO_ROUTE = "ssh: connect to host node2 port 22: No route"
_NO_NAME = "ssh: Could not resolve hostname node2: unknown"
_DENIED = "root@node2: Permission denied (publickey)."
_NO_FILE = "bash: line 1: /venv/bin/prted: No such file"


class TestHostFailures:
    @pytest.mark.parametrize(
        ("lines", "said"),
        [
            ([_NO_ROUTE, *_DAEMON], f"node2 cannot be reached: {_NO_ROUTE}."),
            (
                [_DENIED, *_DAEMON],
                f"node2 cannot be reached: {_DENIED} It needs",
            ),
            ([_NO_NAME, _PROXY], f"a host cannot be reached: {_NO_NAME}."),
            (
                [_NO_FILE, "---", *_DAEMON],
                f"node2 cannot be reached: {_NO_FILE}. It needs",
            ),
            (_DAEMON, "node2 cannot be reached: MPI's daemon is not heard."),
        ],
    )
    def test_one_that_does_not_start(self, lines, said):
        assert said in host_failures.describe(lines, under_way=False)

    @pytest.mark.parametrize("lines", [_DAEMON, _COMMUNICATION])
    def test_one_that_is_lost(self, lines):
        said = host_failures.describe(lines, under_way=True)
        assert said == "host node2 was lost."

    def test_none_has_failed(self):
        assert host_failures.describe(["a warning"], under_way=False) is None
