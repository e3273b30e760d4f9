"""LocalSGD and DiLoCo: refused arguments, and one rank alone."""

import copy
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring

pytestmark = pytest.mark.usefixtures("initialized")


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: tfring.LocalSGD(0), ValueError, "every must be at least 1"),
        (lambda: tfring.LocalSGD(True), TypeError, "must be a whole number"),
        (lambda: tfring.DiLoCo(2, start=-1), ValueError, "start must be at"),
        (lambda: tfring.DiLoCo(2, outer="sgd"), TypeError, "keras.optimizers"),
        (lambda: tfring.DiLoCo(2, within="rack"), TypeError, "'host' or None"),
        (lambda: tfring.Gossip("star"), ValueError, "'exponential', 'ring'"),
        (
            lambda: tfring.Gossip(lambda n, k: [0.5]).hops(2, 0),
            ValueError,
            "whole",
        ),
    ],
)
def test_arguments_are_checked(make, error, message):
    with pytest.raises(error, match=message):
        make()


# test_argument_table.py has the arguments that no rounds take.
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"sync": 50}, TypeError, "tfring.LocalSGD, DiLoCo or Gossip"),
        (
            {"sync": tfring.Gossip(), "compression": tfring.Compression.bf16},
            NotImplementedError,
            "Compression.none",
        ),
    ],
)
def test_what_does_not_go_with_rounds(options, error, message):
    with pytest.raises(error, match=message):
        tfring.DistributedOptimizer("sgd", **options)


def fit_with(*callbacks, layer=None):
    model = keras.Sequential(
        [keras.Input((3,)), layer or keras.layers.Dense(2)]
    )
    optimizer = tfring.DistributedOptimizer("sgd", sync=tfring.DiLoCo(2))
    model.compile(optimizer, "mse")
    x, y = np.ones((8, 3)), np.ones((8, 3 if layer else 2))
    model.fit(x, y, batch_size=2, verbose=0, callbacks=list(callbacks))
    return model


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (tfring.callbacks.JoinCallback, "equally many batches"),
        (keras.callbacks.SwapEMAWeights, "this rank's averages"),
    ],
)
def test_callbacks_that_do_not_go_with_rounds(callback, message):
    with pytest.raises(NotImplementedError, match=message):
        fit_with(callback())


def test_a_sharded_embedding_does_not_go_with_rounds():
    embedding = tfring.layers.ShardedEmbedding(4, 3)
    rows = embedding(np.array([1]))
    optimizer = tfring.DistributedOptimizer("sgd", sync=tfring.LocalSGD(2))
    with pytest.raises(NotImplementedError, match="exchanges rows"):
        optimizer.apply(
            [tf.ones([4, *rows.shape[1:]])], embedding.trainable_variables
        )


def test_synchronized_batch_normalization_does_not_go_with_rounds():
    with pytest.raises(NotImplementedError, match="BatchNormalization, whose"):
        fit_with(layer=tfring.SyncBatchNormalization())


def test_a_saved_model_is_a_plain_one(tmp_path):
    model = fit_with()
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is keras.optimizers.SGD
    assert int(loaded.optimizer.iterations) == 4
    np.testing.assert_equal(loaded.get_weights(), model.get_weights())


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_a_copy_trains_in_rounds_of_its_own(copied):
    sync = tfring.DiLoCo(2, outer=keras.optimizers.SGD(0.5))
    optimizer = tfring.DistributedOptimizer("sgd", sync=sync)
    weight = keras.Variable([1.0])
    copied(optimizer).apply([tf.constant([1.0])], [weight])
    other = copied(optimizer)
    for _ in range(2):
        other.apply([tf.constant([1.0])], [weight])
    # Half of the two steps is added to the weight at the round's begin.
    np.testing.assert_allclose(weight, [0.99 - 0.01], rtol=1e-6)
