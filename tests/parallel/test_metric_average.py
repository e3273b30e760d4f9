"""Metrics of ranks with unequal data equal the metrics of all data."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from helpers import Largest, compiled, thorough

import tfring

METRICS = {
    "accuracy": lambda: keras.metrics.BinaryAccuracy(name="accuracy"),
    "auc": lambda: keras.metrics.AUC(name="auc"),
    "rmse": lambda: keras.metrics.RootMeanSquaredError(name="rmse"),
    "f1": lambda: keras.metrics.F1Score(threshold=0.5, name="f1"),
    "largest": Largest,
}
BATCHES = 2


def data(rank):
    """Each rank's batches have more and larger samples than those before."""
    rng = np.random.default_rng(rank)
    rows = BATCHES * (2 + 3 * rank)
    x = rng.normal(rank, 1, (rows, 3)).astype(np.float32)
    return x, (rng.random((rows, 1)) * (rank + 1) / 2 > 0.3).astype(np.float32)


def small_model(rate, metrics):
    keras.utils.set_random_seed(0)
    return compiled(
        tfring.DistributedOptimizer(keras.optimizers.SGD(rate)),
        keras.Input((3,)),
        keras.layers.Dense(1, activation="sigmoid"),
        loss="binary_crossentropy",
        metrics=[METRICS[name]() for name in metrics],
    )


def fit(model, rank, callbacks, **arguments):
    x, y = data(rank)
    validation = tuple(rows[: rank + 1] for rows in data(rank))
    return model.fit(
        *(x, y),
        batch_size=len(x) // BATCHES,
        validation_data=validation,
        callbacks=[tfring.callbacks.MetricAverageCallback(), *callbacks],
        verbose=0,
        **arguments,
    ).history


def test_metrics_are_those_of_one_rank_with_all_data(rank, size):
    # Nothing is learnt, so that one model can look at all data afterwards.
    model = small_model(0.0, METRICS)
    history = fit(model, rank, [], epochs=2, validation_freq=2)
    of_ranks = [data(r) for r in range(size)]
    for prefix, parts in (
        ("", of_ranks),
        (
            "val_",
            [(x[: r + 1], y[: r + 1]) for r, (x, y) in enumerate(of_ranks)],
        ),
    ):
        x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        expected = model.evaluate(x, y, verbose=0, return_dict=True)
        rows = [len(part[0]) for part in parts]
        expected["largest"] = np.average(
            [part[1].max() for part in parts], weights=rows
        )
        for name, value in expected.items():
            everyones = history[prefix + name]
            assert len(everyones) == (1 if prefix else 2)
            for of_epoch in everyones:
                assert np.shape(of_epoch) == np.shape(value)
                np.testing.assert_allclose(of_epoch, value, rtol=1e-5)


def test_an_array_of_one_element_that_is_logged_as_a_number(rank, size):
    """Keras logs F1 as such a number with NumPy before 2.4."""
    model = small_model(0.0, ["f1"])
    callback = tfring.callbacks.MetricAverageCallback()
    callback.set_model(model)
    callback.on_epoch_begin(0)
    x, y = data(rank)
    own = model.evaluate(x, y, verbose=0, return_dict=True)["f1"]
    logs = {"f1": np.ravel(own)[0]}
    callback.on_epoch_end(0, logs)
    x, y = map(np.concatenate, zip(*map(data, range(size)), strict=True))
    expected = model.evaluate(x, y, verbose=0, return_dict=True)["f1"]
    assert np.shape(logs["f1"]) == ()
    np.testing.assert_allclose(logs["f1"], np.ravel(expected)[0], rtol=1e-5)


def test_the_rank_keeps_its_own_state(rank, size):
    model = small_model(0.0, ["auc"])
    x, y = data(rank)
    own = model.evaluate(x, y, verbose=0, return_dict=True)
    fit(model, rank, [], validation_freq=2)
    for name, value in model.get_metrics_result().items():
        np.testing.assert_allclose(value, own[name], rtol=1e-6)


@pytest.mark.parametrize("validates", [thorough(False), True])
def test_an_evaluation_in_a_callback_before_changes_nothing(rank, validates):
    def history(evaluates):
        model = small_model(0.0, METRICS)
        x, y = data(3)

        def evaluate(epoch, logs):
            if evaluates and rank == 0:
                model.evaluate(x, 1 - y, verbose=0)

        return model.fit(
            *data(rank),
            validation_data=data(rank) if validates else None,
            verbose=0,
            callbacks=[
                keras.callbacks.LambdaCallback(on_epoch_end=evaluate),
                tfring.callbacks.MetricAverageCallback(),
            ],
        ).history

    assert history(True) == history(False)


def test_numbers_from_elsewhere_are_averages_by_samples(rank, size):
    model = small_model(0.0, [])
    x, y = data(rank)
    own = {
        "loss": np.float32(rank),
        "val_f1": 10.0 * rank,
        "whole": rank,
        "table": [[rank, 2.0], [0.0, -rank]],
        "name": "no number",
    }
    history = model.fit(
        *(x, y),
        batch_size=len(x) // BATCHES,
        verbose=0,
        callbacks=[
            keras.callbacks.LambdaCallback(
                on_epoch_end=lambda epoch, logs: logs.update(own)
            ),
            tfring.callbacks.MetricAverageCallback(),
        ],
    ).history
    rows = [len(data(r)[0]) for r in range(size)]
    expected = np.average(np.arange(size), weights=rows)
    np.testing.assert_allclose(history["loss"], [expected])
    np.testing.assert_allclose(history["val_f1"], [10 * expected])
    np.testing.assert_allclose(history["whole"], [expected])
    np.testing.assert_allclose(
        history["table"], [[[expected, 2.0], [0.0, -expected]]]
    )
    assert history["name"] == ["no number"]
