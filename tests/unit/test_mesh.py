"""Connections between the workers of an elastic job."""

import os
import re
import resource
import socket
import threading

import pytest

from tfring._core import mesh as meshes
from tfring._core.job import Topology
from tfring._core.mesh import Form, Member
from tfring.rendezvous import descriptors, wire
from tfring.rendezvous.handshake import make_token

TOKEN = make_token()


class Workers:
    """Some workers of one process, as threads."""

    def __init__(self, size, why=None):
        self.meshes = [
            meshes.Mesh("127.0.0.1", f"w{rank}", TOKEN, lambda generation: why)
            for rank in range(size)
        ]

    def form(self, generation, rank):
        members = [
            Member(f"w{number}", mesh.address, "node")
            for number, mesh in enumerate(self.meshes)
        ]
        return Form(generation, rank, tuple(members))

    def connect(self, generation, channel, ranks=None):
        """Returns the result or the error of `connect` on each rank."""
        ranks = list(ranks or range(len(self.meshes)))
        results = {}

        def run(rank):
            mesh = self.meshes[rank]
            mesh.begin(generation)
            try:
                results[rank] = [
                    socket.socket(fileno=fd) if fd >= 0 else None
                    for fd in mesh.connect(
                        self.form(generation, rank), channel, ranks
                    )
                ]
            except ConnectionError as error:
                results[rank] = error

        threads = [threading.Thread(target=run, args=[r]) for r in ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return results


def check_all_connected(results):
    for place, rank in enumerate(sorted(results)):
        for other_place, other in enumerate(sorted(results)):
            if rank == other:
                assert results[rank][other_place] is None
                continue
            results[rank][other_place].sendall(bytes([rank, other]))
            assert results[other][place].recv(2) == bytes([rank, other])


HELLO = {
    "role": "data",
    "generation": 2,
    "channel": "world/1",
    "worker": "w1",
    "to": "w0",
}


def connect_to(mesh, **changed):
    return wire.connect(mesh.address, TOKEN, {**HELLO, **changed}, 60)


def is_closed(sock):
    sock.settimeout(60)
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("size", [1, 2, 4])
def test_each_two_workers_have_a_connection_in_each_channel(size):
    workers = Workers(size)
    for generation in (1, 5):
        for channel in ("world/1", "world/2"):
            check_all_connected(workers.connect(generation, channel))


def test_some_of_the_ranks():
    check_all_connected(Workers(4).connect(1, "set 1/1", [1, 3]))


def test_two_workers_connect_when_they_need_each_other():
    workers = Workers(2)

    def connect(rank):
        return workers.meshes[rank].connect_when_needed(
            workers.form(1, rank), "world/1", 1 - rank
        )

    assert connect(0) is None  # The higher one connects.
    high = connect(1)
    low = None
    while low is None:  # until its thread has taken the connection
        low = connect(0)
    low, high = socket.socket(fileno=low), socket.socket(fileno=high)
    low.sendall(b"x")
    assert high.recv(1) == b"x"
    assert connect(0) is None


def test_descriptors_are_closed_in_programs_that_a_worker_starts():
    for sockets in Workers(2).connect(1, "world/1").values():
        for sock in filter(None, sockets):
            assert not os.get_inheritable(sock.fileno())


def test_connections_of_earlier_generations_are_refused():
    mesh = Workers(2).meshes[0]
    mesh.begin(1)
    came_before = connect_to(mesh, generation=1)
    mesh.begin(2)
    assert is_closed(came_before)
    assert is_closed(connect_to(mesh, generation=1))


@pytest.mark.parametrize(
    "wrong",
    [
        {"role": "worker"},
        {"to": "w1"},
        {"generation": "2"},
        {"generation": 0},
        {"channel": None},
        {"worker": 3},
        {"role": "probe"},
    ],
)
def test_what_is_not_for_this_worker_is_refused(wrong):
    workers = Workers(2)
    assert is_closed(connect_to(workers.meshes[0], **wrong))


def test_strangers_are_refused():
    workers = Workers(2)
    address = workers.meshes[0].address
    with pytest.raises(ConnectionError):
        wire.connect(address, make_token(), HELLO, 60)
    with socket.create_connection(address) as stranger:
        stranger.sendall(b"GET / HTTP/1.0\r\n\r\n" * 10_000)
        check_all_connected(workers.connect(2, "world/1"))


def test_a_worker_that_is_no_member_is_not_taken():
    workers = Workers(2)
    other = connect_to(workers.meshes[0], worker="w9")
    check_all_connected(workers.connect(2, "world/1"))
    workers.meshes[0].begin(3)
    assert is_closed(other)


def test_a_generation_that_is_over_ends_the_wait():
    workers = Workers(2, why="w1 is lost")
    # Rank 1 does not connect.
    results = {}

    def connect():
        mesh = workers.meshes[0]
        try:
            mesh.connect(workers.form(1, 0), "world/1", [0, 1], seconds=1000)
        except ConnectionError as error:
            results[0] = error

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(60)
    assert str(results[0]) == "w1 is lost"


def test_a_member_that_cannot_be_reached(nobody):
    workers = Workers(2)
    gone = Member("w0", nobody, "node")
    form = Form(1, 1, (gone, workers.form(1, 1).members[1]))
    with pytest.raises(meshes.UnreachableError, match="rank 0") as raised:
        workers.meshes[1].connect(form, "world/1", [0, 1], seconds=0.5)
    assert raised.value.rank == 0


def test_ranks_do_not_all_begin_with_the_same_one(monkeypatch):
    workers, reached = Workers(4), []

    def connect(form, channel, rank, deadline):
        reached.append(rank)
        return socket.socket()

    monkeypatch.setattr(workers.meshes[3], "_connect", connect)
    for descriptor in workers.meshes[3].connect(
        workers.form(1, 3), "world/1", range(4)
    )[:3]:
        os.close(descriptor)
    assert reached == [2, 1, 0]


def test_too_few_descriptors_are_an_error_that_says_how_many(monkeypatch):
    workers = Workers(2)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (16, 16))
    with pytest.raises(RuntimeError) as raised:
        workers.meshes[1].connect(workers.form(1, 1), "world/1", [0, 1])
    # Other threads open and close files, so only the error knows the count.
    used, needed = re.fullmatch(
        r"this process has (\d+) open files, its limit is 16, and 1 more are "
        r"needed to connect .* process set takes as many again\. Raise the "
        r"limit \(`ulimit -n`, .*\) to (\d+) or more .*",
        str(raised.value),
    ).groups()
    assert int(needed) == int(used) + 1 + descriptors.SPARE


def test_a_probe_connects_both_ways(monkeypatch, nobody):
    workers = Workers(2)
    # One attempt, for which even a busy machine has time.
    monkeypatch.setattr(meshes, "_CONNECT_SECONDS", 0.0)
    monkeypatch.setattr(meshes, "_ATTEMPT_SECONDS", 60.0)
    prober, other = workers.meshes
    assert prober.probe("w1", other.address) == ""
    # Another worker listens there.
    assert "it cannot reach w2" in prober.probe("w2", other.address)
    assert "it cannot reach w1: " in prober.probe("w1", nobody)
    prober.address = nobody
    assert "w1 cannot reach it: " in prober.probe("w1", other.address)


@pytest.mark.parametrize(
    ("nodes", "rank", "expected"),
    [
        (["a"], 0, Topology(0, 1, 0, 1, 0, 1, is_homogeneous=True)),
        (list("aabb"), 3, Topology(3, 4, 1, 2, 1, 2, is_homogeneous=True)),
        (list("aab"), 1, Topology(1, 3, 1, 2, 0, 1, is_homogeneous=False)),
        (list("aab"), 2, Topology(2, 3, 0, 1, 1, 2, is_homogeneous=False)),
    ],
)
def test_topology_of_nodes(nodes, rank, expected):
    assert Topology.of_nodes(rank, nodes) == expected


def test_topology_compares_no_two_nodes():
    class Node(str):
        def __eq__(self, other):
            raise AssertionError("nodes are looked up")

        __hash__ = str.__hash__

    nodes = [node for node in map(Node, "abcdefgh") for _ in range(8)]
    assert Topology.of_nodes(9, nodes) == Topology(
        9, 64, 1, 8, 1, 8, is_homogeneous=True
    )
