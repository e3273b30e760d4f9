"""Compiled losses that the average over ranks does not go with."""

from __future__ import annotations

from functools import partial

import keras
import numpy as np
import pytest
from helpers import compiled, warnings_of

import tfring

ROWS = 12
SQUARES = keras.losses.MeanSquaredError
warned = partial(warnings_of, tfring.LossReductionWarning)


class WeightedMean(keras.losses.Loss):
    """A loss that divides by the sum of all ranks' weights."""

    def __call__(self, y_true, y_pred, sample_weight=None):
        each = keras.losses.mean_squared_error(y_true, y_pred)
        return tfring.global_mean(each, sample_weight)


def trained(optimizer, loss, rows=slice(None)):
    keras.utils.set_random_seed(0)
    layers = keras.Input((2,)), keras.layers.Dense(1)
    model = compiled(optimizer, *layers, loss=loss, jit_compile=False)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(ROWS, 2)), rng.normal(size=(ROWS, 1))
    weights = np.linspace(0.1, 2, ROWS)
    model.fit(
        *(x[rows], y[rows]),
        sample_weight=weights[rows],
        batch_size=ROWS,
        epochs=2,
        verbose=0,
    )
    return np.concatenate([each.ravel() for each in model.get_weights()])


def sgd(**how):
    return tfring.DistributedOptimizer(keras.optimizers.SGD(0.05), **how)


@pytest.mark.filterwarnings("ignore::tfring.NotDistributedWarning")
@pytest.mark.parametrize(
    ("of_ranks", "alone", "how", "warns"),
    [
        ("mse", "mse", {}, False),
        (SQUARES("sum"), SQUARES("sum"), {}, True),
        (SQUARES("sum"), SQUARES("sum"), {"op": tfring.Sum}, False),
        (SQUARES(None), SQUARES(None), {}, True),
        (
            SQUARES("mean_with_sample_weight"),
            SQUARES("mean_with_sample_weight"),
            {},
            True,
        ),
        (WeightedMean(), SQUARES("mean_with_sample_weight"), {}, False),
    ],
)
def test_who_trains_otherwise_is_warned(
    of_ranks, alone, how, warns, rank, size
):
    """A warning stands where training is not that of one process."""
    expected = trained(keras.optimizers.SGD(0.05), alone)
    per_rank = ROWS // size
    mine = slice(rank * per_rank, (rank + 1) * per_rank)
    found = []
    texts = warned(lambda: found.append(trained(sgd(**how), of_ranks, mine)))
    assert len(texts) == (warns and size > 1 and rank == 0)
    assert all("the loss 'mean_squared_error'" in text for text in texts)
    differs = np.abs(found[0] - expected).max() > 1e-5
    assert differs == (warns and size > 1)


def two_outputs():
    x = keras.Input((2,))
    outputs = {name: keras.layers.Dense(1)(x) for name in ("a", "b")}
    return keras.Model(x, outputs)


@pytest.mark.parametrize(
    ("loss", "optimizer", "named"),
    [
        ({"a": SQUARES("sum", "one"), "b": SQUARES("sum", "two")}, sgd, 2),
        ({"a": "mse", "b": SQUARES("sum", "two")}, sgd, 1),
        ({"a": SQUARES("sum"), "b": None}, keras.optimizers.SGD, 0),
        (
            {"a": SQUARES("sum"), "b": None},
            lambda: sgd(sync=tfring.LocalSGD(2)),
            0,
        ),
    ],
)
def test_each_loss_is_named(loss, optimizer, named, rank, size):
    def train():
        model = two_outputs()
        model.compile(optimizer(), loss, jit_compile=False)
        for _ in range(2):
            y = {name: np.ones([4, 1]) for name in ("a", "b")}
            model.fit(np.ones([4, 2]), y, verbose=0)

    texts = warned(train)
    assert len(texts) == (named if size > 1 and rank == 0 else 0)
    for text, name in zip(texts[::-1], ("two", "one"), strict=False):
        assert f"'{name}' has reduction='sum'" in text


def test_ranks_that_train_alone_are_not_warned(sets_of_one, rank):
    own = partial(sgd, process_set=sets_of_one[rank])
    assert warned(lambda: trained(own(), SQUARES("sum"))) == []


def test_a_loaded_model(rank, size, tmp_path):
    layers = keras.Input((2,)), keras.layers.Dense(1)
    model = compiled(sgd(), *layers, loss=SQUARES("sum"))
    model.save(tmp_path / "model.keras")
    loaded = tfring.load_model(tmp_path / "model.keras")
    texts = warned(lambda: loaded.train_on_batch(np.ones([2, 2]), np.ones(2)))
    assert len(texts) == (size > 1 and rank == 0)
