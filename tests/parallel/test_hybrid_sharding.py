"""Parameters that some ranks share out, and other ranks have copies of."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest
from helpers import assert_alike, assert_each_close, bits_of, thorough
from sharded_parameters import (
    BATCH,
    adam,
    built,
    compiled,
    fit,
    stacked,
    whole_weights,
)

import tfring
from tfring._memory.parameters import parameters_of

pytestmark = pytest.mark.usefixtures("several_ranks")
optimizers = keras.optimizers


@pytest.fixture
def part(sets, size):
    """A pair of neighbours, or on two and three ranks each rank alone."""
    count = 2 if size % 2 == 0 and size > 2 else 1
    parts = sets(*(range(i, i + count) for i in range(0, size, count)))
    return next(each for each in parts if each.included())


def all_weights(model):
    """Whole weights, which are alike on all ranks to the bit."""
    weights = whole_weights(model)
    assert_alike(bits_of(weights))
    return weights


@pytest.mark.parametrize(
    ("optimizer", "how"),
    [
        (lambda: adam(global_clipnorm=0.1), {}),
        thorough(lambda: adam(gradient_accumulation_steps=2), {}),
        thorough(lambda: adam(clipnorm=0.05), {"jit_compile": True}),
        thorough(lambda: optimizers.LossScaleOptimizer(adam()), {}),
        thorough(adam, {"run_eagerly": True}),
    ],
)
def test_trains_as_whole_parameters(part, optimizer, how):
    def trained(sharded, **within):
        model = built(sharded, lambda: stacked(tied=True), **within)
        compiled(
            model,
            tfring.DistributedOptimizer(optimizer(), shard_states=True),
            **how,
        )
        return fit(model)

    model = trained(True, within=part)
    shares = parameters_of(model.variables)
    kept = sum(int(share.stored.shape[0]) for share in shares)
    total = sum(share.count for share in shares)
    assert total / part.size() <= kept <= total / part.size() + 16 * len(shares)
    expected = all_weights(trained(False))
    assert_each_close(all_weights(model), expected, rtol=1e-4, atol=2e-5)


def test_all_copies_begin_alike(part, rank):
    def make():
        keras.utils.set_random_seed(rank)
        return stacked(1)

    shares = parameters_of(built(make=make, within=part).variables)
    number = part.rank()
    of_ranks = tfring.allgather_object(
        (number, bits_of(s.stored for s in shares))
    )
    assert len({str(each) for each in of_ranks}) == part.size()


def test_files_and_broadcasts(part, rank, shared_path):
    path = f"{shared_path}/hybrid.keras"
    model = compiled(built(make=lambda: stacked(1), within=part))
    last = tfring.size() - 1
    # One rank alone saves, which may be in any set.
    saver = keras.callbacks.ModelCheckpoint(path)
    fit(model, [saver] * (rank == last))
    expected = all_weights(model)
    other = compiled(built(make=lambda: stacked(1), within=part))
    if rank == 0:
        other.load_weights(path)
    tfring.broadcast_variables(other.variables, 0)
    for got, want in zip(all_weights(other), expected, strict=True):
        np.testing.assert_array_equal(got, want)
    model.fit(np.zeros((BATCH, 4)), np.zeros((BATCH, 4)), verbose=0)
    all_weights(model)


def test_checkpoints(part, shared_path):
    """A file does not depend on how the parameters are sharded, if at all."""

    def checkpoint():
        return tfring.callbacks.Checkpoint(shared_path, every_steps=2)

    def new(sharded=True, **within):
        return compiled(built(sharded, lambda: stacked(1), **within))

    model = fit(new(within=part), [checkpoint()])
    expected = all_weights(model)
    # Each share is written once.
    [*_, newest] = sorted(shared_path.iterdir())
    manifest = json.loads((newest / "manifest.json").read_text())
    written = [
        (item["key"], item["number"])
        for each in manifest["parts"]
        for item in each["items"]
        if item["rule"] == "shard" and item["size"] == part.size()
    ]
    assert len(written) == len(set(written)) > 0
    # The training has ended: a later job restores, and makes no step.
    for again in (new(within=part), new(), new(sharded=False)):
        fit(again, [checkpoint()])
        assert bits_of(all_weights(again)) == bits_of(expected)
        states, wanted = (own_states(each) for each in (again, model))
        assert states == wanted


def own_states(model):
    store = {}
    with tfring.whole_states(model):
        model.optimizer.save_own_variables(store)
        return bits_of(store.values())


def test_host():
    """All ranks of a test are on one machine."""
    model = built(make=lambda: stacked(1), within="host")
    for share in parameters_of(model.variables):
        assert share.group.ranks.size == tfring.size()
        assert share.group.ranks.replicas is None


def test_names_what_is_wrong(halves, rank, size):
    with (
        pytest.raises(ValueError, match=r"rank \d passes within .* not in"),
        tfring.shard_parameters(within=halves[0]),
    ):
        pass
    # The last rank alone passes a wrong `within`, and all ranks learn of it.
    is_wrong = rank == size - 1
    text = "'host' or None" if is_wrong else f"On rank {size - 1}: .*got 0"
    with (
        pytest.raises(TypeError if is_wrong else ValueError, match=text),
        tfring.shard_parameters(within=0 if is_wrong else "host"),
    ):
        pass
