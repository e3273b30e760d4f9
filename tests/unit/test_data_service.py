"""The data service's files."""

import types

import pytest

from tfring.data import compute_service
from tfring.data.compute_service import TfDataServiceConfig, tf_data_service


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
    # `time.sleep` itself is called by other threads, too.
    writing = types.SimpleNamespace(sleep=lambda seconds: config.write())
    monkeypatch.setattr(compute_service, "time", writing)
    assert TfDataServiceConfig.read(str(configfile), True) == config
    assert configfile.stat().st_mode & 0o777 == 0o600
    moved = configfile.rename(tmp_path / "moved.json")
    client = TfDataServiceConfig.read(str(moved)).compute_client()
    client.shutdown()
    client.shutdown()  # as two ranks may
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="dispatcher_side must be"):
        TfDataServiceConfig(1, 1, "both", [], "unused")


def test_a_job_that_is_gone(configfile, nobody):
    address = f"grpc://127.0.0.1:{nobody[1]}"
    config = TfDataServiceConfig(
        *(2, 1, "compute", [address] * 2, str(configfile)),
        trusted_network=True,
    )
    refuses(config, 1, ConnectionError, f"answers at {address}")
    refuses(config, 2, IndexError, "rank 2 has none of the 2 dispatchers")


def test_workers_that_do_not_come(configfile):
    config = TfDataServiceConfig(
        1, 1, "training", [], str(configfile), timeout=0, trusted_network=True
    )
    refuses(config, 0, TimeoutError, "workers did not appear within 0 s")
    # Workers that start now still know that dispatcher.
    refuses(config, 0, RuntimeError, "Start the compute job again")
