"""Evaluation and prediction by all ranks match one process with all data."""

from __future__ import annotations

import collections

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import (
    Largest,
    all_thorough_but,
    assert_alike,
    assert_same_on_all_ranks,
    thorough,
)

import tfring

# No multiple of 2, 3 or 4.
ROWS = 37


class Bias(keras.metrics.Mean):
    """A metric of the user's own that is a mean."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        difference = keras.ops.cast(y_pred, "float32") - keras.ops.cast(
            y_true, "float32"
        )
        super().update_state(difference, sample_weight)


class Model(keras.Model):
    """A model that has no variables before its first batch."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3, activation="softmax")

    def call(self, x):
        return self.dense(x)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(5)
    x = rng.normal(size=(ROWS, 4)).astype(np.float32)
    y = np.eye(3, dtype=np.float32)[rng.integers(0, 3, ROWS)]
    return x, y, rng.random(ROWS).astype(np.float32)


def compiled(model, *metrics):
    model.compile(
        loss="categorical_crossentropy",
        metrics=[
            "accuracy",
            keras.metrics.AUC(name="auc"),
            keras.metrics.R2Score(name="r2"),
            keras.metrics.F1Score(average=None, name="f1"),
            Bias(name="bias"),
            *metrics,
        ],
        weighted_metrics=[keras.metrics.Recall(name="recall"), "mse"],
    )
    return model


def same_weights(model):
    model(np.zeros((1, 4), np.float32))
    tfring.broadcast_variables(model.variables, 0)
    return model


def parts(size, kind):
    """The rows of each rank."""
    if kind == "dealt":
        return [np.arange(ROWS)[r::size] for r in range(size)]
    if kind == "unequal":
        ends = [ROWS * (r + 1) ** 2 // size**2 for r in range(size)]
    else:  # the last rank has none, unless it is alone
        ends = [ROWS * (r + 1) // max(size - 1, 1) for r in range(size)]
    return np.split(np.arange(ROWS), np.minimum(ends, ROWS)[:-1])


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("none", "arrays"),
        thorough("unequal", "dataset"),
        thorough("dealt", "arrays"),
        thorough("none", "dataset"),
    ],
)
def test_evaluation_is_that_of_one_process(kind, given, data, rank, size):
    model = same_weights(compiled(Model(), Largest()))
    mine = [array[parts(size, kind)[rank]] for array in data]
    if given == "arrays":
        x, y, weights = mine
        arguments = {"x": x, "y": y, "sample_weight": weights, "batch_size": 5}
    else:
        rows = tf.data.Dataset.from_tensor_slices(tuple(mine)).batch(5)
        arguments = {"x": rows.filter(lambda *_: True)}  # cardinality unknown
    together = tfring.metrics.evaluate(
        model, **arguments, verbose=0, merge={"largest": tfring.Max}
    )
    x, y, weights = data
    alone = model.evaluate(
        x, y, sample_weight=weights, batch_size=5, verbose=0, return_dict=True
    )
    assert together.keys() == alone.keys()
    for name, value in alone.items():
        np.testing.assert_allclose(
            together[name], value, rtol=2e-6, atol=1e-7, err_msg=name
        )
    assert_alike(repr(together))


Pair = collections.namedtuple("Pair", "first second")

# Forms of the input that Keras takes, and how a model makes a tensor of each.
INPUTS = {
    "tensor": (tf.constant, lambda x: x),
    "tf.SparseTensor": (tf.sparse.from_dense, tf.sparse.to_dense),
    "scipy": (
        lambda x: pytest.importorskip("scipy.sparse").csr_matrix(x),
        tf.sparse.to_dense,
    ),
    "ragged": (tf.RaggedTensor.from_tensor, lambda x: x.to_tensor()),
    "named tuple": (lambda x: Pair(x, (x,)), lambda x: x[0] + x[1][0]),
    "dictionary": (lambda x: {"a": [x, x]}, lambda x: x["a"][1]),
}


class AnyInput(keras.Model):
    def __init__(self, dense_of, output_of=lambda y: y):
        super().__init__()
        self.dense = keras.layers.Dense(3)
        self.dense_of = dense_of
        self.output_of = output_of

    def call(self, x):
        dense = tf.ensure_shape(self.dense_of(x), [None, 4])
        return self.output_of(self.dense(dense))


@pytest.mark.parametrize(
    "given", all_thorough_but(("scipy", "dictionary"), INPUTS)
)
def test_inputs_that_keras_takes(given, data, rank, size):
    form, dense_of = INPUTS[given]
    model = AnyInput(dense_of)
    model.compile(loss="mse")
    x, y, _ = data
    model.predict(form(x), verbose=0)  # builds it
    tfring.broadcast_variables(model.variables, 0)
    alone = model.predict(form(x), verbose=0)
    loss = model.evaluate(form(x), y, verbose=0)
    own = parts(size, "none")[rank]
    together = tfring.metrics.predict(
        model, form(x[own]), verbose=0, order="blocks"
    )
    np.testing.assert_allclose(together, alone, rtol=1e-5)
    results = tfring.metrics.evaluate(model, form(x[own]), y[own], verbose=0)
    np.testing.assert_allclose(results["loss"], loss, rtol=1e-5)


def test_outputs_in_a_class_that_cannot_travel(data):
    local = collections.namedtuple("Local", "first second")
    model = AnyInput(lambda x: x, lambda y: local(y, y))
    with pytest.raises(TypeError, match="'Local' cannot be pickled"):
        tfring.metrics.predict(model, data[0], verbose=0)


@pytest.mark.parametrize(
    ("order", "kind"),
    [("dealt", "dealt"), ("blocks", "unequal"), ("blocks", "none")],
)
def test_predictions_come_in_the_order_of_the_data(
    order, kind, data, rank, size
):
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(8, activation="tanh")(inputs)
    model = keras.Model(
        inputs,
        {
            "class": keras.layers.Dense(3)(hidden),
            "row": keras.ops.cast(inputs[:, 0] * 1000, "int32"),
        },
    )
    same_weights(model)
    x = data[0][parts(size, kind)[rank]]
    together = tfring.metrics.predict(
        model, x, batch_size=4, verbose=0, order=order
    )
    alone = model.predict(data[0], batch_size=4, verbose=0)
    assert together.keys() == alone.keys()
    np.testing.assert_array_equal(together["row"], alone["row"])
    assert together["row"].dtype == np.int32
    np.testing.assert_allclose(together["class"], alone["class"], rtol=1e-5)
    assert_same_on_all_ranks([together["class"]])


@pytest.mark.parametrize("remainder", ["keep", "pad"])
def test_predictions_of_a_shard(remainder, data, size):
    model = same_weights(Model())
    rows = tf.data.Dataset.from_tensor_slices(data[0])
    mine = tfring.data.shard(rows, seed=None, remainder=remainder).batch(4)
    together = tfring.metrics.predict(model, mine, verbose=0)
    alone = model.predict(data[0], batch_size=4, verbose=0)
    assert len(together) == (-(-ROWS // size) * size if size > 1 else ROWS) or (
        remainder == "keep" and len(together) == ROWS
    )
    np.testing.assert_allclose(together[:ROWS], alone, rtol=1e-5)


def test_what_cannot_be_merged_is_named(data):
    x, y, _ = data
    model = same_weights(compiled(Model(), Largest(name="top")))
    with pytest.raises(ValueError, match=r"'top' \(Largest\).*merge=.'top'"):
        tfring.metrics.evaluate(model, x, y, verbose=0)
    with pytest.raises(ValueError, match=r"merge names other; .* auc, .*top"):
        tfring.metrics.evaluate(
            *(model, x, y),
            verbose=0,
            merge={"top": tfring.Max, "other": tfring.Sum},
        )
    with pytest.raises(TypeError, match="of Sum, Max, Min and Product"):
        tfring.metrics.evaluate(model, x, y, merge={"top": tfring.Average})

    class Own(Model):
        def test_step(self, batch):
            return {"distance": tf.reduce_sum(self(batch[0]))}

    model = Own()
    model.compile(loss="mse")
    with pytest.raises(ValueError, match=r"returns distance, which .* none of"):
        tfring.metrics.evaluate(model, x, y, verbose=0)


def test_an_error_of_one_rank_is_raised_on_all(data, rank, size):
    model = same_weights(compiled(Model()))
    x, y, _ = data
    wrong = rank == size - 1
    given = x[:, :3] if wrong else x
    for call, arguments in (
        (tfring.metrics.evaluate, (given, y)),
        (tfring.metrics.predict, (given,)),
    ):
        error, match = ValueError, "shape"
        if not wrong:
            error = RuntimeError
            match = rf"{call.__name__}: rank {size - 1} failed: Value"
        with pytest.raises(error, match=match):
            call(model, *arguments, verbose=0)


def test_data_that_does_not_fit(data, rank, size):
    model = same_weights(compiled(Model()))
    x, y, _ = data
    with pytest.raises(ValueError, match="has data"):
        tfring.metrics.evaluate(model, None, None)
    with pytest.raises(ValueError, match="has data"):
        tfring.metrics.predict(model, x[:0])
    with pytest.raises(ValueError, match="'dealt' or 'blocks', got 'rows'"):
        tfring.metrics.predict(model, x, order="rows")
    if size == 1:
        return
    with pytest.raises(ValueError, match=r"not dealt out .*'?keep"):
        tfring.metrics.predict(model, x[: 1 + 2 * rank], verbose=0)
    other = compiled(Model(), *[Bias(name="more")][: size - 1 - rank])
    with pytest.raises(ValueError, match="ranks have different metrics"):
        tfring.metrics.evaluate(same_weights(other), x, y, verbose=0)


def test_a_process_set(data, sets, size):
    x, y, _ = data
    model = same_weights(compiled(Model()))
    alone = model.evaluate(x, y, verbose=0, return_dict=True)
    # Tests a set without rank 0.
    [last] = sets([size - 1]) if size > 1 else [None]
    if last is None or last.included():
        arguments = {} if last is None else {"process_set": last}
        together = tfring.metrics.evaluate(model, x, y, verbose=0, **arguments)
        np.testing.assert_allclose(together["auc"], alone["auc"], rtol=1e-6)
        rows = tfring.metrics.predict(model, x, verbose=0, **arguments)
        np.testing.assert_array_equal(rows, model.predict(x, verbose=0))
    else:
        with pytest.raises(ValueError, match="is not in"):
            tfring.metrics.evaluate(model, x, y, process_set=last)
