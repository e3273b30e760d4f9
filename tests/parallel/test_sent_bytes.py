"""Ranks send as many bytes as the algorithms need."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import tensorflow as tf
from helpers import job_with

import tfring

_BYTES = 3 << 20  # a third of it, too, is a whole number of elements


@pytest.fixture(scope="module", autouse=True)
def _rings():
    """Another algorithm than the ring may send more, and a GPU no messages."""
    with job_with(TFRING_ALLREDUCE="ring"):
        yield


def sent_by(collective):
    """The bytes that this rank has sent, by kind."""
    before = tfring.statistics().sent_bytes
    with tf.device("CPU:0"):
        collective()
    after = tfring.statistics().sent_bytes
    return {kind: after[kind] - before[kind] for kind in after}


def check(collective, kind, expected_bytes):
    """Returns this rank's own; no other kind but control has any."""
    sent = sent_by(collective)
    assert sent[kind] == pytest.approx(expected_bytes, rel=0.02)
    assert sum(sent.values()) == sent[kind] + sent["control"]
    # Names and sizes alone.
    assert sent["control"] < 10_000


def test_collectives(rank, size):
    x = tf.ones([_BYTES // 4])
    others = size - 1
    reduced = 2 * others / size * _BYTES
    check(lambda: tfring.allreduce(x), "allreduce", reduced)
    half = tfring.Compression.bf16
    check(
        lambda: tfring.allreduce(x, compression=half), "allreduce", reduced / 2
    )
    check(
        lambda: tfring.grouped_allreduce(tf.split(x, 16)), "allreduce", reduced
    )
    check(lambda: tfring.allgather(x), "allgather", others * _BYTES)
    share = others / size * _BYTES
    check(lambda: tfring.alltoall(x), "alltoall", share)
    check(lambda: tfring.reducescatter(x), "reducescatter", share)
    # Along a chain that ends before the root.
    last = (rank + 1) % size == 0
    check(lambda: tfring.broadcast(x, 0), "broadcast", 0 if last else _BYTES)


def test_a_process_set_counts_as_well(sets, rank, size):
    if size < 3:
        pytest.skip("takes a process set of some ranks")
    [two] = sets([0, 1])
    if two.included():
        x = tf.ones([_BYTES // 4])
        check(lambda: tfring.allreduce(x, process_set=two), "allreduce", _BYTES)


def test_negotiation_is_control(size):
    sent = sent_by(tfring.barrier)
    assert (sent["control"] > 0) == (size > 1)
    assert sum(sent.values()) == sent["control"]


def test_the_measurement_of_links_is_control(size):
    with job_with(TFRING_ALLREDUCE="auto"):
        sent = sent_by(lambda: tfring.allreduce(1.0))
    assert sent["allreduce"] < 1000
    assert (sent["control"] > 1_000_000) == (size > 1)


def test_on_one_machine_nothing_goes_to_others():
    before = tfring.statistics()
    tfring.allreduce(tf.ones([_BYTES // 4]))
    after = tfring.statistics()
    between = after.sent_bytes_between_machines
    # Ranks of another test may have taken themselves for several machines.
    assert between == before.sent_bytes_between_machines
    assert between.keys() == after.sent_bytes.keys()


def test_the_other_figures_count_from_the_first_call_on():
    before = tfring.statistics()
    tfring.allreduce(np.ones(1000, np.float32))
    after = tfring.statistics()
    assert after.requests == before.requests + 1
    assert after.buckets == before.buckets + 1
    assert after.tensor_bytes == before.tensor_bytes + 4000
    assert after.running_seconds > before.running_seconds
    assert pickle.loads(pickle.dumps(after)) == after


def test_before_init_there_are_none():
    tfring.shutdown()
    with pytest.raises(tfring.NotInitializedError, match=r"Call tfring.init"):
        tfring.statistics()
    tfring.init()
