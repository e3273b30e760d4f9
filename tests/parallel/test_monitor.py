"""A running job reports its progress to Prometheus and TensorBoard."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import math
import re
import secrets
import socket
import sys
import threading
import time
import urllib.request
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import compiled
from mpi4py import MPI
from prometheus_client.parser import text_string_to_metric_families
from tensorflow.core.util import event_pb2

import tfring
from tfring._core import monitor, runtime

_GUIDE = Path(__file__).parents[2] / "docs/guides/watching.md"


def free_ports(size):
    """The first of as many ports that are free; rank 0 looks.

    Another job of this test on the machine, at the same time, most likely looks
    at other ports, and connections have ports above these.
    """
    first = 0
    if tfring.rank() == 0:
        # Each test may seed `random`.
        for first in iter(lambda: 20000 + secrets.randbelow(12000), None):
            with contextlib.ExitStack() as stack:
                try:
                    for port in range(first, first + size):
                        stack.enter_context(
                            socket.create_server(("127.0.0.1", port))
                        )
                except OSError:
                    continue
            break
    return tfring.broadcast_object(first, 0)


def samples(port):
    url = f"http://127.0.0.1:{port}/metrics"
    with urllib.request.urlopen(url, timeout=20) as response:
        text = response.read().decode()
    families = text_string_to_metric_families(text)
    return [sample for family in families for sample in family.samples]


def scraped(port):
    found = samples(port)
    labels = found[0].labels
    figures = dict.fromkeys((sample.name for sample in found), 0.0)
    for sample in found:
        assert labels.items() <= sample.labels.items()
        figures[sample.name] += sample.value
    assert figures.keys() == {
        *re.findall(r"`(tfring_[a-z_]+)`", _GUIDE.read_text())
    }
    return int(labels["rank"]), int(labels["local_rank"]), figures


def begin_anew(monkeypatch, rank, **settings):
    """A job of the same ranks; rank 0's settings are those of all."""
    tfring.shutdown()
    for name, value in settings.items() if rank == 0 else ():
        monkeypatch.setenv(name, value)
    tfring.init()


@pytest.fixture
def same_job_again(monkeypatch):
    yield
    monkeypatch.undo()
    tfring.shutdown()
    tfring.init()


def late_allreduce(rank, size, tmp_path):
    """The last rank starts after an engine has reported a stall.

    Returns the seconds that this rank has certainly waited for it.
    """
    folders = MPI.COMM_WORLD.allgather(str(tmp_path))
    reports = [Path(folder, "stall") for folder in folders]
    before = tfring.statistics().stalls
    is_over = threading.Event()

    def report():
        while not is_over.wait(0.01):
            if tfring.statistics().stalls > before:
                seen = time.monotonic()
                reports[rank].touch()
                return seen
        return math.inf

    with concurrent.futures.ThreadPoolExecutor() as executor:
        reported = executor.submit(report)
        if rank == size - 1:
            while size > 1 and not any(each.exists() for each in reports):
                time.sleep(0.01)
        came = time.monotonic()
        tfring.allreduce(tf.ones([1000]), name="ones")
        is_over.set()
        last_came = MPI.COMM_WORLD.bcast(came, size - 1)
        return max(0.0, last_came - reported.result())


def test_a_setting_serves_each_rank(
    monkeypatch, rank, size, same_job_again, tmp_path
):
    first = free_ports(size)
    begin_anew(
        *(monkeypatch, rank),
        TFRING_METRICS_PORT=str(first),
        TFRING_STALL_CHECK_TIME_SECONDS="0.1",
    )
    tfring.barrier()
    before = scraped(first + rank)[2]
    for _ in range(3):
        tfring.allreduce(tf.ones([1000]), name="ones")
    stalls = tfring.statistics().stalls
    waited = late_allreduce(rank, size, tmp_path)
    stalls = tfring.statistics().stalls - stalls
    others = (rank + 1) % size
    own = scraped(first + rank)
    assert own[:2] == (rank, rank)
    assert scraped(first + others)[0] == others
    figures = {name: own[2][name] - before[name] for name in before}
    assert own[2]["tfring_size"] == size
    assert own[2]["tfring_generation"] == monitor.generation()
    assert figures["tfring_requests_total"] == 4
    assert figures["tfring_bytes_total"] == 4 * 4000
    assert figures["tfring_buckets_total"] == 4
    assert (figures["tfring_sent_bytes_total"] > 0) == (size > 1)
    assert figures["tfring_running_seconds_total"] > 0
    assert (
        0
        <= figures["tfring_exposed_seconds_total"]
        <= figures["tfring_running_seconds_total"] + 1e-9  # as differences
    )
    # Only the last rank, which was late, has waited for no other.
    assert figures["tfring_negotiation_seconds_total"] >= waited
    assert figures["tfring_stalls_total"] >= stalls
    everyones = tfring.allgather_object((waited, stalls))
    assert max(everyones)[0] > 0 or size == 1
    # With three ranks, another rank may start even later.
    assert everyones[-1] == (0, 0) or size > 2
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", first + rank), timeout=20)

    runtime.restart()
    again = scraped(first + tfring.local_rank())[2]
    assert again["tfring_generation"] == own[2]["tfring_generation"] + 1
    tfring.shutdown()
    with socket.create_server(("127.0.0.1", first + rank)):
        pass  # the port is free
    tfring.init()


def test_an_address_to_listen_at(monkeypatch, rank, size, same_job_again):
    port = free_ports(size)
    begin_anew(monkeypatch, rank, TFRING_METRICS_PORT=f"0.0.0.0:{port}")
    socket.create_connection(("127.0.0.2", port + rank), timeout=20).close()


def test_a_rank_without_the_client_ends_init_on_all(
    monkeypatch, rank, size, same_job_again
):
    last = size - 1
    if rank == last:
        monkeypatch.setitem(sys.modules, "prometheus_client", None)
    whose = "" if rank == last else f"rank {last}: "
    with pytest.raises(ImportError, match=f"^{whose}TFRING_.* pip install"):
        begin_anew(monkeypatch, rank, TFRING_METRICS_PORT="9400")
    assert not tfring.is_initialized()


def test_between_jobs_there_are_no_figures(size, same_job_again):
    port = free_ports(size) + tfring.rank()
    server = monitor.Server("127.0.0.1", port)
    tfring.shutdown()
    assert samples(port) == []
    server.close()


def test_a_port_that_is_taken_is_a_warning(
    monkeypatch, rank, size, same_job_again
):
    first = free_ports(size)
    warnings = []
    monkeypatch.setattr(
        monitor.logging, "warning", lambda text, *a: warnings.append(text % a)
    )
    with contextlib.ExitStack() as stack:
        if rank == size - 1:
            taken = ("127.0.0.1", first + rank)
            stack.enter_context(socket.create_server(taken))
        tfring.barrier()
        begin_anew(monkeypatch, rank, TFRING_METRICS_PORT=str(first))
        tfring.allreduce(1.0)
    assert len(warnings) == (rank == size - 1)
    if warnings:
        assert f"port {first + rank}: " in warnings[0]
        assert "another TFRING_METRICS_PORT" in warnings[0]


def test_who_is_still_to_join_has_no_port(monkeypatch, caplog):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = taken.getsockname()
        monkeypatch.setattr(
            monitor.settings, "metrics_endpoint", lambda: endpoint
        )
        monkeypatch.setattr(monitor.runtime, "is_beside", lambda: True)
        monitor.serve_where_asked()
    assert not caplog.records


def test_the_callback(monkeypatch, rank, size, tmp_path, same_job_again):
    port = free_ports(size)
    begin_anew(monkeypatch, rank, TFRING_METRICS_PORT=str(port))
    keras.utils.set_random_seed(0)
    optimizer = tfring.DistributedOptimizer("sgd")
    model = compiled(optimizer, keras.Input((8,)), keras.layers.Dense(16))
    seen = []
    model.fit(
        *(np.ones((24, 8), np.float32), np.ones((24, 16), np.float32)),
        batch_size=4,
        epochs=2,
        verbose=0,
        callbacks=[
            tfring.callbacks.BroadcastGlobalVariablesCallback(0),
            tfring.callbacks.MonitorCallback(tmp_path / "logs"),
            keras.callbacks.LambdaCallback(
                on_epoch_end=lambda *_: seen.append(scraped(port + rank)),
            ),
        ],
    )
    counts = [figures["tfring_step_seconds_count"] for _, _, figures in seen]
    assert counts[1] - counts[0] == 6
    assert seen[1][2]["tfring_step_seconds_sum"] > 0
    if rank > 0:
        assert not (tmp_path / "logs").exists()
        return
    scalars = scalars_of(tmp_path / "logs")
    assert all(values.keys() == {0, 1} for values in scalars.values())
    assert scalars["step_seconds"][1] > 0
    if size > 1:
        # Weights and biases, and the values that ranks compare in `fit`.
        bytes_per_step = scalars["bytes_per_step"][1]
        assert 4 * 9 * 16 <= bytes_per_step < 4 * 9 * 16 * 4


def scalars_of(folder):
    [file] = folder.iterdir()
    scalars = {}
    for record in tf.data.TFRecordDataset(str(file)).as_numpy_iterator():
        event = event_pb2.Event.FromString(record)
        for value in event.summary.value:
            name = value.tag.removeprefix("tfring/")
            scalars.setdefault(name, {})[event.step] = float(
                tf.make_ndarray(value.tensor)
            )
    return scalars


def test_scalars_of_a_late_rank(rank, size, tmp_path, monkeypatch):
    """The last rank is late by 2 s in each of four steps."""
    late = rank == size - 1
    totals = tfring.Statistics(0, 0.0, 0, 0, 0.0, 0.0, 0, 0, 0, {}, {}, 0.0)
    monkeypatch.setattr(monitor, "current", lambda: totals)
    now = 0.0
    callback = tfring.callbacks.MonitorCallback(tmp_path / "logs")
    callback._clock = lambda: now
    callback.on_train_begin()
    callback.on_epoch_begin(0)
    callback.on_train_batch_begin(0)
    now += 6.0 + 4.0 * late
    callback.on_train_batch_end(3)  # by steps_per_execution
    totals = dataclasses.replace(
        totals,
        requests=4,
        negotiation_seconds=1.0 if late else 9.0,
        buckets=4,
        tensor_bytes=400,
        running_seconds=8.0,
        exposed_seconds=2.0,
        waits=4,
        stalls=int(not late),
        input_seconds=2.0 * late,
    )
    callback.on_epoch_end(0)
    callback.on_train_end()
    if rank == 0:
        scalars = scalars_of(tmp_path / "logs")
        assert {name: values[0] for name, values in scalars.items()} == {
            "step_seconds": 2.5,
            "bytes_per_step": 100.0,
            "overlap": 0.75,
            "stalls": size - 1,
            "generation": monitor.generation(),
            **{f"late_seconds/rank_{r}": 0.0 for r in range(size - 1)},
            f"late_seconds/rank_{size - 1}": 2.0 if size > 1 else 0.0,
            **{f"input_seconds/rank_{r}": 0.0 for r in range(size - 1)},
            f"input_seconds/rank_{size - 1}": 0.5,
        }
