"""Masked losses are divided by the count of all ranks."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import compiled

import tfring

ROWS, STEPS, CLASSES = 12, 5, 3


def data():
    """Returns the data of all ranks; the first rows have few valid elements."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, STEPS, 4)).astype("float32")
    labels = rng.integers(0, CLASSES, size=(ROWS, STEPS))
    valid = rng.random((ROWS, STEPS)) < np.linspace(0.1, 1, ROWS)[:, None]
    return x, np.where(valid, labels, -1)[..., np.newaxis]


def distributed_loss(labels, logits):
    labels = tf.squeeze(labels, -1)
    each = keras.losses.sparse_categorical_crossentropy(
        tf.maximum(labels, 0), logits, from_logits=True
    )
    return tfring.global_mean(each, labels >= 0)


def trained(loss, optimizer, rows, **how):
    keras.utils.set_random_seed(0)
    layers = keras.Input((STEPS, 4)), keras.layers.Dense(CLASSES)
    model = compiled(optimizer, *layers, loss=loss, **how)
    x, labels = data()
    x, labels = x[rows], labels[rows]
    model.fit(x, labels, batch_size=len(x), epochs=3, shuffle=False, verbose=0)
    return np.concatenate([np.ravel(w) for w in model.get_weights()])


@pytest.mark.filterwarnings("ignore::tfring.NotDistributedWarning")
@pytest.mark.parametrize(
    "how",
    [{"jit_compile": False}, {"jit_compile": True}, {"run_eagerly": True}],
)
def test_trains_as_one_process(how, rank, size):
    per_rank = ROWS // size
    mine = slice(rank * per_rank, (rank + 1) * per_rank)
    loss = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, ignore_class=-1
    )
    expected = trained(loss, keras.optimizers.SGD(0.5), slice(None))
    optimizer = tfring.DistributedOptimizer(keras.optimizers.SGD(0.5))
    got = trained(distributed_loss, optimizer, mine, **how)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)


def test_values(rank, size):
    half = tf.constant([1.0, 3.0, np.inf], tf.float16) * (rank + 1)
    share = tfring.global_mean(half, [True, True, False])
    assert share.dtype == tf.float16
    np.testing.assert_allclose(share, 2 * (rank + 1))
    # Ranks have different numbers of elements, and rank 0 has none.
    own = tf.fill([rank, 2], 1.0 + rank)
    shares = tfring.allgather([tfring.global_mean(own)]).numpy()
    elements = np.concatenate([np.full(2 * r, 1.0 + r) for r in range(size)])
    expected = elements.mean() if len(elements) else 0.0
    np.testing.assert_allclose(shares.mean(), expected, rtol=1e-6)
    assert tfring.global_mean(tf.zeros([4]), tf.zeros([4])) == 0
    weighted = tfring.global_mean([[1.0, 2.0], [3.0, 4.0]], [[3.0], [1.0]])
    np.testing.assert_allclose(weighted, (9 + 7) / 8)
    with pytest.raises(TypeError, match="floating-point dtype, got int32"):
        tfring.global_mean([1, 2])


@pytest.mark.parametrize(
    "how", [{"jit_compile": True}, {"run_eagerly": True, "jit_compile": False}]
)
def test_evaluation_is_each_rank_s_own(how, rank):
    """Rank 0 has one batch more than the others, or evaluates alone."""
    optimizer = tfring.DistributedOptimizer(keras.optimizers.SGD(0.5))
    layers = keras.Input((STEPS, 4)), keras.layers.Dense(CLASSES)
    model = compiled(optimizer, *layers, loss=distributed_loss, **how)
    x, labels = data()
    own = slice(0, 4 if rank == 0 else 2)
    history = model.fit(
        x, labels, validation_data=(x[own], labels[own]),
        validation_batch_size=2, batch_size=len(x), verbose=0,
    )  # fmt: skip
    plain = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, ignore_class=-1
    )
    same = compiled(keras.optimizers.SGD(0.0), *layers, loss=plain, **how)
    same.set_weights(model.get_weights())
    expected = same.evaluate(x[own], labels[own], batch_size=2, verbose=0)
    np.testing.assert_allclose(
        history.history["val_loss"], [expected], rtol=1e-5
    )
    if rank == 0:
        assert np.isfinite(model.evaluate(x, labels, verbose=0))
