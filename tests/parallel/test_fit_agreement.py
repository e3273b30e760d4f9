"""Ranks agree in `fit` on decisions, on the writer and on the end."""

from __future__ import annotations

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import (
    Pair,
    assert_alike,
    assert_each_equal,
    assert_same_on_all_ranks,
    compiled,
    thorough,
)
from keras.callbacks import LambdaCallback

import tfring
from tfring.callbacks import (
    BestModelCheckpoint,
    BroadcastGlobalVariablesCallback,
    JoinCallback,
    MetricAverageCallback,
)

ROWS, BATCH = 16, 4


pytestmark = pytest.mark.usefixtures("several_ranks")


def make_model(seed=0, rate=0.1):
    keras.utils.set_random_seed(seed)
    optimizer = tfring.DistributedOptimizer(keras.optimizers.SGD(rate))
    layers = keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(1)
    return compiled(optimizer, *layers, jit_compile=False)


def fit(model, rank, *, rows=ROWS, nan_at=0, **arguments):
    # Each rank has different data, and so different metrics.
    rng = np.random.default_rng(rank)
    x, y = rng.normal(size=(rows, 3)), rng.normal(size=(rows, 1)) + rank
    if nan_at:
        y[nan_at] = np.nan
    return model.fit(
        *(x, y), BATCH, verbose=0, shuffle=False, **arguments
    ).history


def steps_of(model):
    return int(model.optimizer.iterations)


def assert_same_weights(model):
    assert_same_on_all_ranks(model.weights)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            lambda rank: {"epochs": 1 + rank // 1},
            "Epochs: 1 on rank 0; 2 on rank 1.* Pass the same epochs",
        ),
        (
            lambda rank: {"rows": ROWS - BATCH * (rank == 1)},
            r"Batches in an epoch: 4 on rank.* 0.*; 3 on rank 1\..*"
            r"tfring\.data\.shard.*JoinCallback\(\)",
        ),
        (
            lambda rank: {"initial_epoch": rank % 2, "epochs": 4},
            "Number of the epoch: 0 on rank.*; 1 on rank.*broadcast_object",
        ),
        (
            lambda rank: {
                "callbacks": [keras.callbacks.EarlyStopping("loss")]
                * (rank % 2)
            },
            r"Callbacks: \[\] on .*; \['EarlyStopping'\] on rank",
        ),
        (
            lambda rank: {
                "callbacks": [
                    BroadcastGlobalVariablesCallback(),
                    MetricAverageCallback(),
                ][:: 1 - 2 * (rank % 2)]
            },
            r"\['BroadcastG\w+', 'MetricA\w+'\] on rank.* in the same order",
        ),
    ],
)
def test_what_differs_is_named_before_the_first_batch(
    arguments, expected, rank
):
    model = make_model()
    with pytest.raises(RuntimeError, match="the ranks differ") as error:
        fit(model, rank, **arguments(rank))
    assert re.search(expected, str(error.value))
    assert steps_of(model) == 0
    # All ranks got the error, so the job can continue.
    fit(model, rank)
    assert_same_weights(model)


def test_weights_that_differ_are_an_error_before_the_first_update(rank, size):
    model = make_model(seed=rank)
    before = model.get_weights()
    with pytest.raises(
        RuntimeError, match=r"batch 1.*/dense\w*/kernel"
    ) as error:
        fit(model, rank)
    assert "BroadcastGlobalVariablesCallback(0)" in str(error.value)
    assert_each_equal(model.get_weights(), before)
    fit(model, rank, callbacks=[BroadcastGlobalVariablesCallback()])
    assert_same_weights(model)


def test_what_a_callback_does_on_one_rank_is_noticed_in_the_next_epoch(rank):
    def halve(epoch, logs):
        if rank == 1:
            model.optimizer.learning_rate = 0.05

    def poison(epoch, logs):
        if rank == 1:
            model.layers[-1].bias.assign([7.0])

    for hook, expected in (
        (halve, r"Learning rate: \[0\.1.*\] on rank.*; \[0\.05.*\] on rank 1"),
        (poison, r"epoch 2.*/bias', float32 \(1,\): it is the same only"),
    ):
        model = make_model()
        acts = LambdaCallback(on_epoch_end=hook)
        with pytest.raises(RuntimeError, match=expected):
            fit(model, rank, epochs=3, callbacks=[acts])
        assert steps_of(model) == ROWS // BATCH


@pytest.mark.parametrize(
    "how", ["callback", "TerminateOnNaN", "not a callback"]
)
def test_one_that_stops_stops_all(how, rank, size):
    model = make_model()

    def stop(batch, logs=None):
        if rank == size - 1 and batch == 1:
            model.stop_training = True

    callbacks = {
        "callback": [LambdaCallback(on_train_batch_end=stop)],
        "TerminateOnNaN": [keras.callbacks.TerminateOnNaN()],
        "not a callback": [BroadcastGlobalVariablesCallback()],
    }[how]
    if how == "not a callback":  # as a handler of signals
        model.make_train_function()
        train_function = model.train_function

        def stopped(iterator):
            stop(steps_of(model))
            return train_function(iterator)

        model.train_function = stopped
    nan_at = how == "TerminateOnNaN" and rank == size - 1
    history = fit(
        model, rank, epochs=3, callbacks=callbacks, nan_at=BATCH * nan_at
    )
    assert len(history["loss"]) == 1
    # If no callback acts on batches, ranks stop at the end of the epoch.
    assert steps_of(model) == (ROWS // BATCH if how == "not a callback" else 2)
    assert model.stop_training


def test_callbacks_that_decide_by_metrics_decide_alike(rank):
    def callbacks():
        return [
            keras.callbacks.ReduceLROnPlateau("loss", 0.1, 1, min_delta=0.3),
            keras.callbacks.EarlyStopping("loss", min_delta=0.3, patience=3),
        ]

    results = []
    for extra in ([], [MetricAverageCallback()]):
        model = make_model(rate=0.05)
        # In this order, they decide before the metrics are averaged.
        history = fit(model, rank, epochs=9, callbacks=callbacks() + extra)
        results.append((history, float(model.optimizer.learning_rate)))
        assert_alike(results[-1])
        assert_same_weights(model)
    assert results[0] == results[1]
    [(history, rate), _] = results
    assert rate < 0.05
    assert 3 <= len(history["loss"]) < 9


def test_logs_stay_each_ranks_own_where_nothing_decides_by_them(rank, size):
    history = fit(make_model(), rank)
    losses = tfring.allgather_object(history["loss"])
    assert len({str(loss) for loss in losses}) == size


def test_validation_on_one_rank_alone(rank):
    # On the remaining ranks Keras only warns that the metric is missing.
    stop = keras.callbacks.EarlyStopping("val_loss", min_delta=1e9)
    data = (np.ones((4, 3)), np.ones((4, 1))) if rank == 0 else None
    history = fit(
        make_model(), rank, epochs=5, validation_data=data, callbacks=[stop]
    )
    assert len(history["loss"]) == 2
    assert_alike(history["loss"])


def test_the_first_rank_writes_what_all_would(rank, size, shared_path):
    saves = keras.callbacks.ModelCheckpoint
    best = {"save_best_only": True, "save_weights_only": True}
    callbacks = [
        saves(shared_path / "{epoch}.keras"),
        saves(shared_path / "best.weights.h5", "loss", **best),
        BestModelCheckpoint(shared_path / "best.keras", "loss"),
        keras.callbacks.CSVLogger(shared_path / "log.csv"),
        # Every rank has another path, and so each writes.
        saves(shared_path / f"of_rank_{rank}.keras"),
    ]
    if rank == 1:  # by no other rank
        callbacks.append(saves(shared_path / "one.keras"))
    model = make_model()
    history = fit(model, rank, epochs=2, callbacks=callbacks)
    # All files are there as soon as `fit` has returned on any rank.
    names = {file.name for file in shared_path.iterdir()}
    ranks = {f"of_rank_{each}.keras" for each in range(size)}
    assert names == ranks | {
        *("1.keras", "2.keras", "best.weights.h5", "best.keras", "log.csv"),
        "one.keras",
    }
    lines = (shared_path / "log.csv").read_text().split()
    assert len(lines) == 3
    saved = keras.models.load_model(shared_path / "2.keras")
    assert_each_equal(saved.weights, model.weights)
    assert_alike(history)
    tfring.barrier()  # before the directory goes


@pytest.mark.parametrize("on", [thorough("all ranks"), "rank 0"])
def test_a_backup_is_restored_on_all_ranks(on, rank, shared_path):
    def backup():
        if on == "rank 0" and rank > 0:
            return []
        return [keras.callbacks.BackupAndRestore(shared_path / "backup")]

    def crash(epoch, logs):
        if epoch == 2:
            raise KeyError("a crash")

    expected = make_model()
    fit(expected, rank, epochs=4)
    callbacks = [*backup(), LambdaCallback(on_epoch_begin=crash)]
    with pytest.raises(KeyError):
        fit(make_model(), rank, epochs=4, callbacks=callbacks)
    tfring.barrier()
    model = make_model(seed=5 + rank)
    # On one rank the files are found by rank 0 alone, as with disks of its own.
    history = fit(model, rank, epochs=4, callbacks=backup())
    assert len(history["loss"]) == 2
    assert steps_of(model) == 4 * ROWS // BATCH
    assert_each_equal(model.weights, expected.weights)
    tfring.barrier()
    assert not (shared_path / "backup").exists()
    tfring.barrier()


def test_ranks_may_be_uneven_if_they_join(rank):
    stop = keras.callbacks.EarlyStopping("loss", min_delta=1e9)
    model = make_model()
    # The callbacks have a wrong order, and each looks at batches.
    seen = []
    looks = LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(batch)
    )
    history = fit(
        model,
        rank,
        rows=ROWS + 2 * BATCH * (rank == 1),
        epochs=5,
        callbacks=[stop, looks, MetricAverageCallback(), JoinCallback()],
    )
    assert len(history["loss"]) == 2
    assert len(seen) == 2 * (4 + 2 * (rank == 1))
    assert_same_weights(model)
    assert_alike(history)


class ByF1(keras.callbacks.Callback):
    """Adds a metric that each rank has computed for itself."""

    monitor = "f1"

    def on_epoch_end(self, epoch, logs=None):
        logs["f1"] = 1.0 / (1 + tfring.rank() + epoch)


def test_ranks_decide_by_the_same_numbers(rank):
    stop = keras.callbacks.EarlyStopping("f1", mode="max", patience=1)
    expected = r"Metric 'f1': 1\.0 on rank 0; 0\.5 on rank 1.*MetricAverage"
    with pytest.raises(RuntimeError, match=expected):
        fit(make_model(), rank, epochs=3, callbacks=[ByF1(), stop])
    # All see the average if it is taken after it has been computed.
    callbacks = [ByF1(), MetricAverageCallback(), stop]
    history = fit(make_model(), rank, epochs=4, callbacks=callbacks)
    assert len(history["f1"]) == 2
    assert_alike(history["f1"])


def test_a_metric_that_is_no_number_is_refused_at_the_first_batch(rank):
    class Named(keras.Model):
        def train_step(self, data):
            return super().train_step(data) | {"best": tf.constant("name")}

    inputs = keras.Input((3,))
    model = Named(inputs, keras.layers.Dense(1)(inputs))
    model.compile(tfring.DistributedOptimizer("sgd"), "mse", jit_compile=False)
    stop = keras.callbacks.EarlyStopping("best", mode="max")
    callbacks = [BroadcastGlobalVariablesCallback(), stop]
    with pytest.raises(ValueError, match="monitors 'best', which is no number"):
        fit(model, rank, callbacks=callbacks)
    assert steps_of(model) == 1


def test_weights_are_compared_where_fit_ends(rank):
    """One rank alone may restore its best weights."""
    model = make_model()
    rng = np.random.default_rng(7)
    validation = rng.normal(size=(8, 3)), 100 * rng.normal(size=(8, 1))
    stop = keras.callbacks.EarlyStopping(
        "val_loss", mode="max", patience=1, restore_best_weights=True
    )
    arguments = {"validation_data": validation} if rank == 0 else {}
    expected = "at the end of fit the ranks differ.* Weights: .*validation data"
    with pytest.raises(RuntimeError, match=expected):
        fit(model, rank, epochs=9, callbacks=[stop], **arguments)
    # All ranks got the error, so the job can continue.
    fit(model, rank, callbacks=[BroadcastGlobalVariablesCallback()])
    assert_same_weights(model)


def test_callbacks_are_as_they_were_after_fit(rank):
    given = [
        keras.callbacks.EarlyStopping("loss"),
        keras.callbacks.History(),
        JoinCallback(),
    ]
    callbacks = keras.callbacks.CallbackList(
        given, model=make_model(), epochs=1, steps=ROWS // BATCH
    )
    for _ in range(2):
        fit(callbacks.model, rank, callbacks=callbacks)
        assert callbacks.callbacks == given


def test_a_process_set_agrees_by_itself(sets_of_one, sets, rank, size):
    pair = tfring.global_process_set
    if size > 2:
        [pair] = sets([0, 1])

    def model_of(process_set, seed=rank):
        keras.utils.set_random_seed(seed)
        optimizer = tfring.DistributedOptimizer(
            keras.optimizers.SGD(), process_set=process_set
        )
        return compiled(optimizer, keras.Input((3,)), keras.layers.Dense(1))

    # A rank that trains alone has the number of epochs that it likes.
    fit(model_of(sets_of_one[rank]), rank, epochs=1 + rank)
    if rank < 2:
        with pytest.raises(RuntimeError, match="Epochs: 1 on rank 0; 2 on"):
            fit(model_of(pair, 0), rank, epochs=1 + rank)
        with pytest.raises(RuntimeError, match="kernel"):
            fit(model_of(pair), rank)
        stop = keras.callbacks.EarlyStopping("loss", min_delta=1e9)
        history = fit(model_of(pair, 0), rank, epochs=4, callbacks=[stop])
        assert len(history["loss"]) == 2


def test_an_optimizer_that_is_a_models_own(rank):
    keras.utils.set_random_seed(rank)
    model = Pair(3)
    model.compile()
    with pytest.raises(RuntimeError, match="BroadcastGlobalVariables"):
        fit(model, rank)
    fit(model, rank, callbacks=[BroadcastGlobalVariablesCallback()])
    assert_same_weights(model)
