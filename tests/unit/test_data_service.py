"""The data service's files, and its servers with strangers about."""

import socket
import time

import pytest
import tensorflow as tf

from tfring.data import _loopback
from tfring.data.compute_service import TfDataServiceConfig, tf_data_service

# Whoever takes longer hangs, however much else the machine has to do.
WAIT_SECONDS = 60


@pytest.fixture
def configfile(tmp_path):
    return tmp_path / "config.json"


def refuses(config, rank, error, match):
    with pytest.raises(error, match=match), tf_data_service(config, rank):
        pass


def test_a_config_in_a_file(configfile, tmp_path, monkeypatch):
    config = TfDataServiceConfig(
        2, 3, "compute", ["grpc://a:1", "grpc://b:2"], str(configfile), 5, True
    )
    monkeypatch.setattr(time, "sleep", lambda seconds: config.write())
    assert TfDataServiceConfig.read(str(configfile), True) == config
    assert configfile.stat().st_mode & 0o777 == 0o600
    moved = configfile.rename(tmp_path / "moved.json")
    client = TfDataServiceConfig.read(str(moved)).compute_client()
    client.shutdown()
    client.shutdown()  # as two ranks may
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="dispatcher_side must be"):
        TfDataServiceConfig(1, 1, "both", [], "unused")


def test_a_job_that_is_gone(configfile):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"grpc://127.0.0.1:{unused.getsockname()[1]}"
        config = TfDataServiceConfig(
            2, 1, "compute", [address] * 2, str(configfile)
        )
        refuses(config, 1, ConnectionError, f"answers at {address}")
    refuses(config, 2, IndexError, "rank 2 has none of the 2 dispatchers")


def test_workers_that_do_not_come(configfile):
    config = TfDataServiceConfig(
        1, 1, "training", [], str(configfile), timeout=0
    )
    refuses(config, 0, TimeoutError, "workers did not appear within 0 s")
    # Workers that come now know that dispatcher.
    refuses(config, 0, RuntimeError, "Start the compute job anew")


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


def test_no_server_stays_where_none_can_be_bound(configfile, monkeypatch):
    """An interface that does not exist stands in for a kernel that refuses."""
    monkeypatch.setattr(_loopback, "_INTERFACE", b"absent")
    started = []
    start = tf.data.experimental.service.DispatchServer

    def note():
        started.append(start())
        return started[-1]

    monkeypatch.setattr(tf.data.experimental.service, "DispatchServer", note)
    config = TfDataServiceConfig(1, 1, "training", [], str(configfile))
    refuses(config, 0, RuntimeError, "cannot be kept to this machine")
    [server] = started
    port = int(server.target.rpartition(":")[2])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), WAIT_SECONDS)
