"""Connections of an elastic job: ours get through, and strangers do not."""

import contextlib
import gc
import os
import random
import resource
import select
import socket
import struct
import subprocess
import threading
from pathlib import Path

import pytest
from moved_clock import Clock
from waiting import wait_until

from tfring.rendezvous import addresses, frames, handshake, wire

TOKEN = handshake.make_token()
HELLO = {"role": "worker", "worker": "w1"}
# A longer wait is a hang, even on a busy machine.
SECONDS = 60


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def listener(clock):
    made = wire.Listener("127.0.0.1", TOKEN, clock=clock)
    yield made
    made.close()


def connect(listener, hello=HELLO):
    return wire.connect(listener.address, TOKEN, hello, SECONDS)


@contextlib.contextmanager
def accepting(listener):
    """Accepts in a thread, and yields the list of accepted connections."""
    accepted = []
    stop = threading.Event()

    def accept():
        while not stop.is_set():
            if not select.select([listener], [], [], 0.1)[0]:
                continue
            while (each := listener.accept(0)) is not None:
                accepted.append(each)

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield accepted
    finally:
        stop.set()
        thread.join()
        for sock, _ in accepted:
            sock.close()


@pytest.fixture
def stranger(listener):
    """Returns a function that connects to the listener, and says nothing."""
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(
            socket.create_connection(listener.address, SECONDS)
        )


@pytest.fixture
def greeted(listener, stranger):
    """Returns a function that connects, and waits for the greeting."""

    def connect():
        sock = stranger()
        wait_until(lambda: listener.accept(0) is None and is_readable(sock))
        return sock

    return connect


def is_readable(sock):
    return bool(select.select([sock], [], [], 0)[0])


def say_hello(sock):
    """Answers the greeting as a worker of this job does."""
    sock.sendall(handshake.Connecting(TOKEN, HELLO).answer(sock.recv(32)))


def is_closed(sock):
    """Returns True if the peer closes it, perhaps after it has sent data."""
    try:
        while sock.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def test_both_sides_prove_themselves_and_talk(listener):
    with accepting(listener) as accepted:
        ours = wire.Channel(connect(listener))
        wait_until(lambda: accepted)
        sock, hello = accepted[0]
        assert hello == HELLO
        theirs = wire.Channel(sock)
        long = {"kind": "form", "members": ["x" * 100] * 10_000}
        sender = threading.Thread(target=ours.send, args=(long,))
        sender.start()
        assert theirs.receive(SECONDS) == long
        sender.join()
        theirs.send({"kind": "stop"})
        theirs.send({"kind": "end"})
        assert ours.receive(SECONDS) == {"kind": "stop"}
        assert ours.receive(SECONDS) == {"kind": "end"}
        assert ours.receive(0) is None
        assert ours.receive(0.05) is None
        theirs.close()
        with pytest.raises(wire.ChannelClosedError):
            ours.receive(SECONDS)


def test_the_sockets_hear_a_cut_link_and_are_not_inherited(listener):
    with accepting(listener) as accepted:
        sock = connect(listener)
        wait_until(lambda: accepted)
        for each in (sock, accepted[0][0]):
            assert not os.get_inheritable(each.fileno())
            assert each.gettimeout() is None
            assert (
                each.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
                == 5000
            )
            assert each.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        # The shell may open a file of its own under the socket's number.
        inherited = subprocess.run(
            ["sh", "-c", "readlink /proc/$$/fd/*"],
            close_fds=False,
            capture_output=True,
            text=True,
        ).stdout.splitlines()
        for number, is_inherited in ((0, True), (sock.fileno(), False)):
            file = Path(f"/proc/self/fd/{number}").readlink()
            assert (str(file) in inherited) == is_inherited
        sock.close()


def test_another_token_is_refused_by_either_side(listener):
    other = handshake.make_token()
    with accepting(listener) as accepted:
        with pytest.raises(handshake.HandshakeError, match="of another job"):
            wire.connect(listener.address, other, HELLO, SECONDS)
        wait_until(lambda: not listener._handshakes)
        assert not accepted


def test_a_listener_without_the_token_is_not_believed():
    impostor = socket.create_server(("127.0.0.1", 0))

    def serve():
        sock, _ = impostor.accept()
        sock.sendall(bytes(32))
        sock.recv(4096)
        sock.sendall(bytes(32))
        is_closed(sock)
        sock.close()

    thread = threading.Thread(target=serve)
    thread.start()
    with pytest.raises(handshake.HandshakeError, match="who listens there"):
        wire.connect(impostor.getsockname(), TOKEN, HELLO, SECONDS)
    thread.join()
    impostor.close()


@pytest.mark.timeout(SECONDS)
def test_a_silent_listener_costs_only_the_time_given():
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(TimeoutError),
    ):
        wire.connect(silent.getsockname(), TOKEN, HELLO, 0.3)


def test_where_nobody_listens_a_connection_is_refused(nobody):
    with pytest.raises(ConnectionRefusedError):
        wire.connect(nobody, TOKEN, HELLO, SECONDS)


@pytest.fixture
def names(monkeypatch):
    """Returns a function that has a name stand for several addresses."""
    lookup = socket.getaddrinfo

    def names(name, its_addresses):
        def answer(host, port, **options):
            if host != name:
                return lookup(host, port, **options)
            return [lookup(*each, **options)[0] for each in its_addresses]

        monkeypatch.setattr(socket, "getaddrinfo", answer)

    return names


@pytest.mark.parametrize("first", ["silent", "refuses", "closes", "other job"])
def test_each_address_of_a_name_is_tried(
    listener, names, nobody, monkeypatch, first
):
    monkeypatch.setattr(addresses, "_ADDRESS_SECONDS", 0.1)
    with contextlib.ExitStack() as stack:
        if first == "other job":
            other = wire.Listener("127.0.0.1", handshake.make_token())
            stack.callback(other.close)
            stack.enter_context(accepting(other))
            address = other.address
        elif first == "refuses":
            address = nobody
        else:
            server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            address = server.getsockname()
        if first == "closes":
            thread = threading.Thread(target=lambda: server.accept()[0].close())
            thread.start()
            stack.callback(thread.join, SECONDS)
        names("head", [address, listener.address])
        stack.enter_context(accepting(listener))
        wire.connect(("head", 9), TOKEN, HELLO, SECONDS).close()


@pytest.mark.timeout(SECONDS)
def test_one_limit_is_for_all_addresses_of_a_name(names):
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        names("head", [one.getsockname(), other.getsockname()])
        with pytest.raises(TimeoutError):
            wire.connect(("head", 9), TOKEN, HELLO, 0.3)


def test_it_listens_at_the_address_that_this_machine_has(names):
    # The first address is for documentation (RFC 5737): no machine has it.
    names("head", [("192.0.2.1", 0), ("127.0.0.1", 0)])
    made = wire.Listener("head", TOKEN)
    assert made.address[0] == "127.0.0.1"
    made.close()


def test_what_one_connection_said_serves_no_other(listener, stranger):
    with accepting(listener) as accepted:
        first, second = stranger(), stranger()
        said = handshake.Connecting(TOKEN, HELLO).answer(first.recv(32))
        first.sendall(said)
        wait_until(lambda: accepted)
        assert len(second.recv(32)) == 32
        second.sendall(said)
        assert is_closed(second)
        assert len(accepted) == 1


def garbage(seed):
    """Yields the data that strangers send to a port."""
    chance = random.Random(seed)
    yield b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    yield b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + chance.randbytes(
        512
    )
    yield struct.pack(">I", 0xFFFFFFFF)
    yield struct.pack(">I", 0)
    yield struct.pack(">I", 64) + bytes(64)
    yield frames.encode(bytes(64) + b"{}")
    for _ in range(20):
        yield chance.randbytes(chance.randint(5, 70_000))
    good = handshake.Connecting(TOKEN, HELLO).answer(bytes(32))
    for _ in range(20):
        broken = bytearray(good)
        broken[chance.randrange(4, len(good))] ^= 1 << chance.randrange(8)
        yield bytes(broken)


@pytest.mark.parametrize("seed", range(3))
def test_garbage_is_refused_and_ours_get_through(listener, stranger, seed):
    with accepting(listener) as accepted:
        for text in garbage(seed):
            sock = stranger()
            with contextlib.suppress(OSError):
                sock.sendall(text)
                sock.shutdown(socket.SHUT_WR)
            assert is_closed(sock)
        assert not accepted
        connect(listener).close()
        wait_until(lambda: accepted)


def test_a_hello_cut_anywhere_is_refused(listener, stranger):
    connecting = handshake.Connecting(TOKEN, HELLO)
    with accepting(listener) as accepted:
        for cut in (0, 1, 3, 4, 5, 40, 70, 90):
            sock = stranger()
            whole = connecting.answer(sock.recv(32))
            assert cut < len(whole)
            sock.sendall(whole[:cut])
            sock.close()
        wait_until(lambda: not listener._handshakes)
        assert not accepted


def test_what_comes_byte_by_byte_is_a_hello_too(listener, greeted):
    sock = greeted()
    connecting = handshake.Connecting(TOKEN, HELLO)
    *first, last = connecting.answer(sock.recv(32))
    for byte in first:
        sock.sendall(bytes([byte]))
        assert listener.accept(0) is None
    sock.sendall(bytes([last]))
    accepted = []
    wait_until(lambda: accepted.append(listener.accept(0)) or accepted[-1])
    assert accepted[-1][1] == HELLO
    connecting.check(sock.recv(32))
    accepted[-1][0].close()


def test_the_slow_are_closed_in_time(listener, greeted, clock):
    slow = greeted()
    slow.recv(32)
    slow.sendall(struct.pack(">I", 4096))
    for _ in range(49):
        clock.now += wire.HANDSHAKE_SECONDS / 50
        slow.sendall(b"\0")
        assert listener.accept(0) is None
        assert listener._handshakes
    clock.now = wire.HANDSHAKE_SECONDS
    assert listener.accept(0) is None
    assert is_closed(slow)


def test_ours_get_through_among_many_who_say_nothing(listener, stranger):
    # The clock is stopped, so silent strangers never time out.
    listener._most_handshakes = 64
    with accepting(listener) as accepted:
        silent = [stranger() for _ in range(300)]
        for number in range(10):
            connect(listener, {"number": number}).close()
        wait_until(lambda: len(accepted) == 10)
        assert len(listener._handshakes) < 64
        assert all(is_closed(sock) for sock in silent[:200])


def test_many_who_come_do_not_keep_accept_from_returning(listener, stranger):
    strangers = [stranger() for _ in range(3 * wire.ACCEPTED_AT_ONCE)]
    assert listener.accept(0) is None
    greeted = sum(map(is_readable, strangers))
    assert greeted <= wire.ACCEPTED_AT_ONCE
    wait_until(
        lambda: listener.accept(0) is None and all(map(is_readable, strangers))
    )


def test_all_workers_of_a_job_may_come_at_once(listener, stranger):
    # All connect before the first hello.
    workers = [stranger() for _ in range(300)]
    wait_until(
        lambda: listener.accept(0) is None and all(map(is_readable, workers))
    )
    for sock in workers:
        say_hello(sock)
    accepted = [listener.accept(SECONDS) for _ in workers]
    assert all(hello == HELLO for _, hello in accepted)
    for sock, _ in accepted:
        sock.close()


def test_who_makes_room_for_others_is_told_to_come_again(listener, stranger):
    listener._most_handshakes = 1
    first, second = stranger(), stranger()
    wait_until(lambda: listener.accept(0) is None and is_readable(second))
    hello = handshake.Connecting(TOKEN, HELLO)
    with contextlib.suppress(ConnectionError):
        first.sendall(hello.answer(first.recv(32)))
    with pytest.raises(handshake.BusyError, match="too many connections"):
        hello.check(first.recv(32))


class BusyServer:
    """A listener of this job that is overloaded at first."""

    def __init__(self, refusals):
        self.refusals = refusals
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = self.server.getsockname()
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self):
        for _ in range(self.refusals):
            with self.server.accept()[0] as sock:
                sock.sendall(handshake.BUSY)
        with self.server, self.server.accept()[0] as sock:
            accepting_side = handshake.Accepting(TOKEN)
            sock.sendall(accepting_side.greeting)
            while (proof := accepting_side.feed(sock.recv(4096))) is None:
                pass
            sock.sendall(proof)


def test_who_is_told_to_come_again_does_while_there_is_time(monkeypatch):
    monkeypatch.setattr(wire, "_LONGEST_WAIT_SECONDS", 0.01)
    server = BusyServer(refusals=20)
    wire.connect(server.address, TOKEN, HELLO, SECONDS).close()
    server.thread.join(SECONDS)


def test_one_that_is_too_busy_is_not_of_another_job(monkeypatch):
    # There is no time for a second attempt.
    monkeypatch.setattr(wire, "_WAIT_SECONDS", SECONDS)
    server = BusyServer(refusals=1)
    with pytest.raises(TimeoutError, match="too many connections come"):
        wire.connect(server.address, TOKEN, HELLO, SECONDS)
    wire.connect(server.address, TOKEN, HELLO, SECONDS).close()
    server.thread.join(SECONDS)


def test_a_hello_that_came_in_time_is_taken_by_one_that_is_late(
    listener, greeted, clock
):
    say_hello(greeted())
    wait_until(lambda: is_readable(listener))
    clock.now = 10 * wire.HANDSHAKE_SECONDS
    accepted, hello = listener.accept(0)
    assert hello == HELLO
    accepted.close()


def test_an_attempt_that_was_given_up_is_not_taken(listener, greeted):
    sock = greeted()
    say_hello(sock)
    sock.close()
    [accepted] = listener._handshakes
    poll = select.poll()
    poll.register(accepted, select.POLLRDHUP)
    assert poll.poll(1000 * SECONDS)
    assert listener.accept(0) is None
    assert not listener._handshakes


@contextlib.contextmanager
def no_descriptors():
    """Takes all that this process may have."""
    # A collection would close sockets that earlier tests have left in cycles.
    gc.disable()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(each.name) for each in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, limits[1]))
    taken = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for each in taken:
            os.close(each)
        gc.enable()


def test_a_listener_without_descriptors_says_so(listener, stranger):
    first, second = stranger(), stranger()
    with no_descriptors():
        for _ in range(2):
            assert listener.accept(0) is None
    # The listener does not remain ready, because both connections are refused.
    assert not is_readable(listener)
    for sock in (first, second):
        with pytest.raises(handshake.BusyError, match="ulimit -n"):
            say_hello(sock)


def test_a_listener_raises_the_limit_of_descriptors():
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1] // 2, limits[1]))
    try:
        wire.Listener("127.0.0.1", TOKEN).close()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == limits[1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
