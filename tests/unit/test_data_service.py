"""The data service's registry and servers, with strangers about."""

import resource
import socket
import threading
import time

import pytest
import tensorflow as tf

from tfring.data import _loopback, _registry, compute_service
from tfring.data._registry import ComputeClient, ComputeService

# Whoever takes longer hangs, however much else the machine has to do.
WAIT_SECONDS = 60


@pytest.fixture
def service():
    service = ComputeService(1, 1, b"key")
    yield service
    service.shutdown()


class Timers:
    """Timers that go off when a test says so."""

    def __init__(self):
        self.made = 0
        self.running = []

    def __call__(self, seconds, function):
        self.made += 1
        return _Timer(self.running, function)


class _Timer:
    def __init__(self, running, function):
        self._running = running
        self.function = function

    def start(self):
        self._running.append(self)

    def cancel(self):
        self._running.remove(self)


@pytest.fixture
def timers(monkeypatch):
    timers = Timers()
    monkeypatch.setattr(_registry, "_Timer", timers)
    return timers


def until(condition):
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def client_of(service):
    return ComputeClient(service.addresses(), b"key")


def stranger_at(service):
    [[address]] = service.addresses().values()
    return socket.create_connection(address, WAIT_SECONDS)


def test_a_stranger_who_says_nothing_is_hung_up_on(service, timers):
    with stranger_at(service) as stranger:
        assert b"#CHALLENGE#" in stranger.recv(4096)
        [timer] = timers.running
        timer.function()
        assert b"" in iter(lambda: stranger.recv(4096), None)
    client_of(service).register_dispatcher(0, "grpc://a:1")


def test_a_stranger_who_says_too_much_is_hung_up_on(service):
    with stranger_at(service) as stranger:
        # The length of a message, which would be 2 GB.
        stranger.sendall(b"\x7f\xff\xff\xff")
        assert list(iter(lambda: stranger.recv(4096), b""))
    client_of(service).register_dispatcher(0, "grpc://a:1")


def test_a_known_client_may_wait_for_longer(service, timers):
    answers = []
    thread = threading.Thread(
        target=lambda: answers.append(
            client_of(service).wait_for_dispatcher_registration(0, None)
        )
    )
    thread.start()
    # One on each side, while they prove themselves and it asks.
    until(lambda: timers.made == 2 and not timers.running)
    client_of(service).register_dispatcher(0, "grpc://a:1")
    thread.join(WAIT_SECONDS)
    assert answers == ["grpc://a:1"]


def test_what_does_not_come_in_time_is_an_error(service):
    with pytest.raises(TimeoutError, match=r"did not come within 0\.1 s"):
        client_of(service).wait_for_dispatcher_registration(0, 0.1)


def test_a_silent_service_is_given_up(monkeypatch):
    monkeypatch.setattr(_registry, "_HANDSHAKE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        addresses = {socket.gethostname(): [silent.getsockname()]}
        with pytest.raises(ConnectionError, match="hung up, or said nothing"):
            ComputeClient(addresses, b"key").shutdown()


def test_the_registry_outlives_a_lack_of_descriptors(service, monkeypatch):
    accept_has_failed = threading.Event()
    monkeypatch.setattr(
        _registry, "_sleep", lambda seconds: accept_has_failed.set()
    )
    [[address]] = service.addresses().values()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as stranger:
        # Only those of the standard streams, which are all in use.
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            stranger.connect(address)
            assert accept_has_failed.wait(WAIT_SECONDS)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    client_of(service).register_dispatcher(0, "grpc://a:1")


def test_another_machine_is_told_why_nobody_answers(service):
    [[(ip, port)]] = service.addresses().values()
    service.shutdown()
    client = ComputeClient({"elsewhere": [(ip, port)]}, b"key")
    with pytest.raises(ConnectionError, match="serves elsewhere alone, and"):
        client.shutdown()


def test_a_server_is_bound_to_the_loopback_interface():
    with socket.create_server(("", 0)) as server:
        _loopback.bind_to_loopback(server.getsockname()[1])
        device = server.getsockopt(
            socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16
        )
        assert device == b"lo\0"
        with socket.create_connection(
            ("127.0.0.1", server.getsockname()[1]), WAIT_SECONDS
        ):
            pass


def test_a_stranger_of_the_first_moment_is_noticed():
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        # Another address stands in for another machine.
        with (
            socket.create_connection(
                ("127.0.0.1", port), WAIT_SECONDS, ("127.0.0.2", 0)
            ),
            pytest.raises(RuntimeError, match=r"from 0200007F:\w+ as"),
        ):
            _loopback.bind_to_loopback(port)


def test_no_server_to_bind():
    with socket.socket() as unused:
        unused.bind(("", 0))
        with pytest.raises(RuntimeError, match="no socket that listens there"):
            _loopback.bind_to_loopback(unused.getsockname()[1])


def test_no_server_stays_where_none_can_be_bound(service, monkeypatch):
    """An interface that does not exist stands in for a kernel that refuses."""
    monkeypatch.setattr(_loopback, "_INTERFACE", b"absent")
    started = []
    start = tf.data.experimental.service.DispatchServer

    def note():
        started.append(start())
        return started[-1]

    monkeypatch.setattr(tf.data.experimental.service, "DispatchServer", note)
    config = compute_service.TfDataServiceConfig(
        1, 1, "training", service.addresses(), b"key", timeout=1
    )
    with (
        pytest.raises(RuntimeError, match="cannot be kept to this machine"),
        compute_service.tf_data_service(config, 0),
    ):
        pass
    [server] = started
    port = int(server.target.rpartition(":")[2])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), WAIT_SECONDS)
