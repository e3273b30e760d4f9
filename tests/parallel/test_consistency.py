"""Ranks that drift apart are noticed; the best model is saved once."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from helpers import assert_each_equal, compiled, fit_noise

import tfring
from tfring.callbacks import BestModelCheckpoint, ConsistencyCheckCallback


def make_model(optimizer=None):
    model = compiled(
        optimizer or tfring.DistributedOptimizer(keras.optimizers.SGD(0.01)),
        keras.Input((3,)),
        keras.layers.Dense(4, name="first"),
        keras.layers.Dense(1, name="second"),
    )
    tfring.broadcast_variables(model.variables)
    return model


def poison(model):
    """Changes one weight by one bit."""
    bias = model.get_layer("second").bias
    bias.assign(np.nextafter(bias.numpy(), np.float32(9)))


def poisoned(model, rank, at_rank, after, **arguments):
    """Fits with another weight on one rank after some batches."""

    def act(batch, logs):
        if rank == at_rank and batch + 1 == after:
            poison(model)

    acts = keras.callbacks.LambdaCallback(on_train_batch_end=act)
    fit_noise(
        model, rank, callbacks=[acts, ConsistencyCheckCallback(**arguments)]
    )


def test_the_same_weights_pass(rank):
    model = make_model()
    fit_noise(
        model, rank, epochs=2, callbacks=[ConsistencyCheckCallback(every=1)]
    )
    assert int(model.optimizer.iterations) == 8


def test_one_bit_on_one_rank_is_an_error_on_all(rank, several_ranks, size):
    others = list(range(size - 1))
    model = make_model()
    with pytest.raises(RuntimeError, match="after 2 batches") as error:
        poisoned(model, rank, size - 1, after=2, every=2)
    assert "/second/bias', float32 (1,): it is the same" in str(error.value)
    assert f"the ranks {others}, [{size - 1}]. " in str(error.value)
    # All were told at the same batch, so the job can go on.
    assert int(model.optimizer.iterations) == 2
    tfring.broadcast_variables(model.variables)
    fit_noise(model, rank, callbacks=[ConsistencyCheckCallback(every=1)])


def test_ranks_that_stand_by_are_not_counted(rank, size):
    if size < 3:
        pytest.skip("needs two ranks that go on without a third")
    model = make_model()
    callback = ConsistencyCheckCallback(every=1)
    callback.set_model(model)
    if rank == 0:
        tfring.allreduce(1, op=tfring.Sum, name="here")
    else:
        # Rank 0 has joined once this has gone through without it.
        while tfring.allreduce(1, op=tfring.Sum, name="here") == size:
            pass
        if rank == size - 1:
            poison(model)
        others = list(range(1, size - 1))
        with pytest.raises(RuntimeError) as error:
            callback.on_train_batch_end(0)
        assert f"the ranks {others}, [{size - 1}]. " in str(error.value)
    assert tfring.join() > 0


def test_epochs_are_checked_at_their_end(rank, several_ranks):
    with pytest.raises(RuntimeError, match="at the end of epoch 1 "):
        poisoned(make_model(), rank, 0, after=4, every=None)


def test_an_optimizer_that_is_not_distributed_is_noticed(rank, several_ranks):
    model = make_model(keras.optimizers.SGD(0.01))
    with pytest.raises(RuntimeError, match=r"first/kernel.*Use Distributed"):
        fit_noise(model, rank, callbacks=[ConsistencyCheckCallback(every=1)])


def test_models_of_different_depth(rank, several_ranks):
    model = keras.Sequential([keras.Input((3,))])
    for _ in range(1 + (rank == 0)):
        model.add(keras.layers.Dense(3))
    callback = ConsistencyCheckCallback()
    callback.set_model(model)
    with pytest.raises(RuntimeError, match=r"have \[4, 2.* variables"):
        callback.on_epoch_end(0)


def test_moving_statistics_may_be_left_out(rank, size):
    def with_batch_norm():
        optimizer = tfring.DistributedOptimizer(keras.optimizers.SGD(0.01))
        norm = keras.layers.BatchNormalization()
        return compiled(optimizer, keras.Input((3,)), norm)

    callback = ConsistencyCheckCallback(every=1, trainable_only=True)
    fit_noise(with_batch_norm(), rank, callbacks=[callback])
    if size > 1:
        with pytest.raises(RuntimeError, match=r"moving_mean.*trainable_only"):
            fit_noise(
                with_batch_norm(), rank, callbacks=[ConsistencyCheckCallback()]
            )


@pytest.mark.parametrize("every", [0, -1])
def test_every_must_be_positive(every):
    with pytest.raises(ValueError, match="positive number of batches or None"):
        ConsistencyCheckCallback(every=every)


def test_rank_0_alone_saves_the_best_model(rank, tmp_path):
    model = make_model()
    # A directory for each rank: who writes is seen.
    callback = BestModelCheckpoint(tmp_path / "of{epoch}.keras", "loss")
    callback.set_model(model)
    for epoch, loss in enumerate([3.0, 2.0, 2.5, 1.0]):
        callback.on_epoch_begin(epoch)
        callback.on_epoch_end(epoch, {"loss": loss})
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ([] if rank else ["of1.keras", "of2.keras", "of4.keras"])
    if rank == 0:
        saved = keras.models.load_model(tmp_path / "of4.keras")
        assert_each_equal(saved.weights, model.weights)


def test_best_model_needs_a_model_file():
    with pytest.raises(ValueError, match=r"must end in `\.keras`"):
        BestModelCheckpoint("best")
