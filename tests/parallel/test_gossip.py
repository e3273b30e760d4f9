"""Gossip: ranks average their weights with a few neighbours."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_alike, assert_same_on_all_ranks
from trainings_in_rounds import (
    assert_close,
    batches_of,
    built_model,
    fitted,
    in_one_process,
    inner,
    plain,
)

import tfring


def gossip_model(topology, rank, every=1, **options):
    optimizer = tfring.DistributedOptimizer(
        inner(), sync=tfring.Gossip(topology, every=every)
    )
    return fitted(optimizer, rank, 4, jit_compile=False, **options)


@pytest.mark.parametrize("topology", ["exponential", "ring"])
def test_gossip_keeps_the_mean(topology, rank, size):
    """Ranks that stand still come to it; one round does so for two ranks."""
    model = built_model()
    optimizer = tfring.DistributedOptimizer(
        keras.optimizers.SGD(0.0), sync=tfring.Gossip(topology)
    )
    variables = model.trainable_variables
    for variable in variables:
        variable.assign(np.random.default_rng(rank).normal(size=variable.shape))
    means = [
        tfring.allreduce(np.asarray(variable)).numpy() for variable in variables
    ]
    gradients = [tf.zeros(variable.shape) for variable in variables]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tfring.NotBroadcastWarning)
        optimizer.apply(gradients, variables)
    first = optimizer.consensus_distance()
    assert_alike(first)
    # One series of rounds gives a power of two the exact mean.
    for _ in range((size - 1).bit_length()):
        optimizer.apply(gradients, variables)
    if topology == "exponential" and size in (1, 2, 4):
        assert_close(model, means, 1e-5)
    for _ in range(40):
        optimizer.apply(gradients, variables)
    assert_close(model, means, 1e-5)
    assert optimizer.consensus_distance() <= min(first, 1e-6)


def test_gossip_of_two_ranks_is_local_sgd(rank, size):
    """And one rank's is plain; a function may give the neighbours."""
    if size > 2:
        return
    model = gossip_model(lambda size, number: [1 + 2 * number], rank)
    assert_same_on_all_ranks(model.trainable_variables)
    assert_close(model, in_one_process(size, 4, 1, plain))


def test_gossip_in_fit(rank, size):
    """All ranks end with the mean, and the logs have the distance to it."""
    model = gossip_model(
        lambda size, number: [] if number % 2 else [1], rank, epochs=2
    )
    assert_same_on_all_ranks(model.trainable_variables)
    distances = model.history.history["consensus_distance"]
    assert_alike(distances)
    assert len(distances) == 2
    assert all(0 < each < 1 for each in distances) or size == 1


def test_gossip_is_not_for_xla(rank):
    optimizer = tfring.DistributedOptimizer(inner(), sync=tfring.Gossip())
    with pytest.raises(NotImplementedError, match="jit_compile=False"):
        fitted(optimizer, rank, 1, jit_compile=True)


def test_validation_on_one_rank_is_named(several_ranks, rank):
    x, y = (each.reshape(-1, each.shape[-1]) for each in batches_of(rank, 2))
    model = built_model()
    model.compile(
        tfring.DistributedOptimizer(inner(), sync=tfring.Gossip()), "mse"
    )
    given = {"validation_data": (x, y)} if rank == 0 else {}
    with pytest.raises(RuntimeError, match="rank 0 validates; rank 1 ends"):
        model.fit(x, y, verbose=0, **given)
