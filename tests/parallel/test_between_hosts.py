"""Ranks that MPI has started are connected by tfring's own TCP."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import compiled
from mpi4py import MPI

import tfring
from tfring._core import between_hosts, runtime

SETTING = "TFRING_BETWEEN_HOSTS"


@pytest.fixture
def again(several_ranks, monkeypatch):
    """Returns a function that starts the job again with a setting."""

    def again(setting):
        MPI.COMM_WORLD.Barrier()
        tfring.shutdown()
        monkeypatch.setenv(SETTING, setting)
        tfring.init()

    yield again
    monkeypatch.delenv(SETTING)
    MPI.COMM_WORLD.Barrier()
    tfring.shutdown()
    tfring.init()


@pytest.fixture
def each_on_its_host(monkeypatch):
    """Makes the ranks believe that they are on several hosts.

    They reach each other at the loopback interface.
    """
    monkeypatch.setattr(
        "tfring._core.mpi_job.nodes_of", lambda comm: list(range(comm.size))
    )
    monkeypatch.setenv("OMPI_MCA_btl_tcp_if_include", "lo")
    monkeypatch.setenv("OMPI_MCA_btl_tcp_if_exclude", "none")
    monkeypatch.delenv("OMPI_MCA_btl", raising=False)


def uses_tcp():
    return runtime.job()._tcp is not None


def check_collectives(rank, size):
    for count in (1, 1001, 3 << 20):
        value = tf.range(count, dtype=tf.float32) % 97 + rank
        np.testing.assert_array_equal(
            tfring.allreduce(value, op=tfring.Sum),
            size * (np.arange(count, dtype=np.float32) % 97)
            + size * (size - 1) / 2,
        )
    evens = tfring.add_process_set(list(range(0, size, 2)))
    if evens.included():
        total = tfring.allreduce([1.0], op=tfring.Sum, process_set=evens)
        assert total.numpy() == [evens.size()]
    tfring.remove_process_set(evens)


def trained_weights(rank, size):
    keras.utils.set_random_seed(3)
    optimizer = tfring.DistributedOptimizer("adam")
    model = compiled(optimizer, keras.Input((8,)), keras.layers.Dense(4))
    x = np.random.default_rng(0).normal(size=(8 * size, 8)).astype("float32")
    model.fit(x[rank::size], x[rank::size, :4], batch_size=4, verbose=0)
    return [each.tobytes() for each in model.get_weights()]


def test_one_machine(again, rank, size):
    again("tcp")
    assert uses_tcp()
    check_collectives(rank, size)
    by_tcp = trained_weights(rank, size)
    assert len({*map(tuple, tfring.allgather_object(by_tcp))}) == 1
    again("mpi")
    assert not uses_tcp()
    assert trained_weights(rank, size) == by_tcp


def test_several_hosts_without_a_fabric(again, each_on_its_host, rank, size):
    again("auto")
    assert uses_tcp()
    assert tfring.cross_size() == size
    check_collectives(rank, size)


@pytest.mark.parametrize("rank_without", [0, 1])
def test_a_rank_without_an_address(
    again, each_on_its_host, rank, size, monkeypatch, caplog, rank_without
):
    if rank == 0 and rank_without == 0:
        monkeypatch.setenv("OMPI_MCA_btl_tcp_if_include", "no such interface")
    if rank == rank_without == 1:
        monkeypatch.setattr(
            between_hosts, "_way_to", lambda *_: (None, "the network is down")
        )
    again("auto")
    assert not uses_tcp()
    check_collectives(rank, size)
    why = ["rank 0 has no IPv4 address", "the network is down"][rank_without]
    said = f"rank 1: {why}"
    assert (said in caplog.text) == (rank == 0)
    monkeypatch.setenv(SETTING, "tcp")
    with pytest.raises(RuntimeError, match=f"{SETTING}=tcp, but {said}"):
        between_hosts.connect(MPI.COMM_WORLD, range(size))


def test_a_wrong_setting_of_rank_0(again, rank):
    with pytest.raises(ValueError, match="'udp' must be one of auto, mpi, tcp"):
        again("udp" if rank == 0 else "auto")
