"""elastic.fit: where it goes on, with each kind of data."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import FailsOnce, assert_each_close, compiled, small_model

import tfring
from tfring import elastic

ROWS_LEFT, BATCH, FIT_BATCHES, FIT_EPOCHS = 1, 3, 4, 3


def rows_to_fit(size):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(FIT_BATCHES * BATCH * size + ROWS_LEFT, 2))
    return x, x @ np.array([[1.0], [-2.0]])


def fitted_by_hand(size, *, shuffle):
    """The weights of a linear model after gradient descent."""
    x, y = rows_to_fit(size)
    weights, rows = np.ones((2, 1)), np.arange(len(x))
    for epoch in range(FIT_EPOCHS):
        if shuffle:
            rows = np.random.default_rng([7, epoch]).permutation(len(x))
        for step in range(FIT_BATCHES):
            own = rows[step * BATCH * size : (step + 1) * BATCH * size]
            error = x[own] @ weights - y[own]
            weights -= 0.1 * 2 * x[own].T @ error / len(own)
    return weights


def check_going_on(
    rank, size, capsys, data, fails_at, *, shuffle, per_execution=1
):
    """A linear model is the one of NumPy, in spite of a loss on the way."""
    model = compiled(
        tfring.DistributedOptimizer(keras.optimizers.SGD(0.1)),
        keras.Input((2,)),
        keras.layers.Dense(1, use_bias=False),
        steps_per_execution=per_execution,
    )
    model.set_weights([np.full((2, 1), 1.0 if rank == 0 else 5.0)])
    history = elastic.fit(
        model,
        **data,
        epochs=FIT_EPOCHS,
        shuffle=shuffle,
        seed=7,
        callbacks=[FailsOnce(*fails_at)] if fails_at else None,
        verbose=1,
    )
    expected = fitted_by_hand(size, shuffle=shuffle)
    assert_each_close(model.get_weights(), [expected], rtol=1e-5)
    assert len(history["loss"]) == FIT_EPOCHS
    shown = capsys.readouterr().out
    if rank != 0:
        assert "Epoch" not in shown
        return
    epoch, step = fails_at or (0, 0)
    again = shown.rpartition(f"Epoch {epoch + 1}/{FIT_EPOCHS}")[2]
    # The bar begins behind the batches that were done, and ends with the last
    # one.
    first = re.search(rf"(\d+)/{FIT_BATCHES}", again)
    assert int(first[1]) == step + per_execution
    assert f"{FIT_BATCHES}/{FIT_BATCHES}" in again
    assert f"Epoch {FIT_EPOCHS}/{FIT_EPOCHS}" in shown


class Numbered(keras.utils.PyDataset):
    """Batches of all ranks, by their numbers."""

    def __init__(self, x, y, **options):
        super().__init__(**options)
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x) // BATCH

    def __getitem__(self, index):
        own = slice(index * BATCH, (index + 1) * BATCH)
        return self.x[own], self.y[own]


def data_in_batches(kind, size):
    """The rows of `rows_to_fit` in one of the forms that `fit` takes."""
    rows = tf.data.Dataset.from_tensor_slices(rows_to_fit(size))
    match kind:
        case "PyDataset":
            return {"x": Numbered(*rows_to_fit(size))}
        case "PyDataset in threads":
            return {"x": Numbered(*rows_to_fit(size), workers=2)}
        case "Dataset":
            # The last batches make no step of all ranks, and the last has fewer
            # rows.
            return {"x": rows.batch(BATCH)}
        case "function":

            def left(epoch, taken):
                mine = tfring.data.shard(rows, seed=None, skip=taken)
                return mine.batch(BATCH, drop_remainder=True)

            return {"x": left, "batch_size": BATCH}


@pytest.mark.parametrize(
    ("kind", "fails_at"),
    [
        ("PyDataset", (1, 2)),
        ("PyDataset in threads", (1, 2)),
        ("Dataset", (1, 2)),
        ("function", (1, 2)),
        pytest.param("Dataset", (0, 0), marks=pytest.mark.thorough),
        pytest.param("Dataset", (2, 3), marks=pytest.mark.thorough),
    ],
)
def test_fit_goes_on_in_batches(rank, size, capsys, caplog, fails_at, kind):
    data = data_in_batches(kind, size)
    check_going_on(rank, size, capsys, data, fails_at, shuffle=False)
    reads_again = kind == "Dataset" and fails_at[1] > 0 and rank == 0
    assert ("Dataset are read again" in caplog.text) == reads_again


def test_a_shuffled_pydataset_has_each_batch_once_in_an_epoch(rank, size):
    asked = []

    class Asked(Numbered):
        def __getitem__(self, index):
            asked.append(index)
            return super().__getitem__(index)

    data = Asked(*rows_to_fit(size))
    elastic.fit(
        small_model(),
        data,
        epochs=2,
        seed=7,
        callbacks=[FailsOnce(1, 2)],
        verbose=0,
    )
    orders = [
        np.random.default_rng([7, epoch]).permutation(len(data))
        for epoch in range(2)
    ]
    own = [order[rank::size][:FIT_BATCHES].tolist() for order in orders]
    # Each `fit` of Keras takes two batches for their shapes, and before the
    # loss it may have asked for more batches than it trained on.
    assert asked[:2] == own[0][:2]
    assert asked[2 : 2 + FIT_BATCHES] == own[0]
    assert asked[-(FIT_BATCHES - 2) :] == own[1][2:]


@pytest.mark.parametrize("fails_at", [(1, 0), (1, 3)])
def test_a_function_goes_on_in_the_order_of_its_epoch(size, fails_at):
    """The model counts how often each row is trained on."""
    rows = 2 * FIT_BATCHES * size

    def left(epoch, taken):
        mine = tfring.data.shard(
            tf.data.Dataset.range(rows), seed=epoch, skip=taken
        ).batch(2, drop_remainder=True)
        return mine.map(lambda own: (tf.one_hot(own, rows), tf.zeros([2, 1])))

    model = compiled(
        tfring.DistributedOptimizer(keras.optimizers.SGD(2.0), op=tfring.Sum),
        keras.Input((rows,)),
        keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros"),
        loss=lambda targets, outputs: -outputs,
    )
    elastic.fit(
        model,
        left,
        batch_size=2,
        epochs=FIT_EPOCHS,
        callbacks=[FailsOnce(*fails_at)],
        verbose=0,
    )
    counts = model.get_weights()[0].ravel()
    np.testing.assert_array_equal(counts, np.full(rows, FIT_EPOCHS))


def test_epochs_of_different_lengths(size):
    def left(epoch, taken):
        rows = tf.data.Dataset.from_tensor_slices(
            (np.ones((4 - epoch, 2)), np.ones((4 - epoch, 1)))
        )
        return rows.batch(1)

    with pytest.raises(ValueError, match="Give all epochs equally many"):
        elastic.fit(small_model(), left, batch_size=1, epochs=2, verbose=0)


@pytest.mark.parametrize(
    ("fails_at", "shuffle", "per_execution"),
    [
        (None, True, 1),
        ((1, 2), True, 1),
        ((1, 2), True, 2),
        ((1, 3), False, 1),
        pytest.param((0, 0), True, 1, marks=pytest.mark.thorough),
        pytest.param((1, 0), True, 1, marks=pytest.mark.thorough),
        pytest.param((2, 3), True, 1, marks=pytest.mark.thorough),
        pytest.param((1, 3), True, 3, marks=pytest.mark.thorough),
    ],
)
def test_fit_goes_on_where_it_was(
    rank, size, capsys, fails_at, shuffle, per_execution
):
    x, y = rows_to_fit(size)
    check_going_on(
        *(rank, size, capsys, {"x": x, "y": y, "batch_size": BATCH}, fails_at),
        shuffle=shuffle,
        per_execution=per_execution,
    )


def test_callbacks_know_the_place_in_the_epoch(rank, size, tmp_path):
    """A warm-up resumes at its step, and a log file is not truncated."""

    def rates_and_logs(name, *fails):
        path, model, rates = tmp_path / name, small_model(), []

        def note(batch, logs):
            rates.append(float(model.optimizer.learning_rate))

        elastic.fit(
            model,
            *rows_to_fit(size),
            batch_size=BATCH,
            epochs=3,
            callbacks=[
                *(FailsOnce(*when) for when in fails),
                tfring.callbacks.LearningRateWarmupCallback(1e-3, 2),
                keras.callbacks.CSVLogger(path),
                keras.callbacks.LambdaCallback(on_train_batch_end=note),
            ],
            verbose=0,
        )
        lines = path.read_text().splitlines() if rank == 0 else []
        return rates, [line.partition(",")[0] for line in lines]

    rates, epochs = rates_and_logs("undisturbed.csv")
    again, epochs_again = rates_and_logs("lost.csv", (0, 2), (1, 1), (2, 0))
    np.testing.assert_allclose(again, rates)
    assert epochs_again == epochs
    assert epochs in ([], ["epoch", "0", "1", "2"])


class Ends(keras.callbacks.Callback):
    """Records the epochs that end, and their logs."""

    def __init__(self):
        super().__init__()
        self.ended = []

    def on_epoch_end(self, epoch, logs=None):
        self.ended.append((epoch, sorted(logs)))


def test_an_epoch_ends_also_without_a_step_for_all_ranks(size):
    """The remaining rows may be a step for few ranks, but not for more."""
    fails, ends = FailsOnce(1, 2), Ends()

    def left(epoch, taken):
        x, y = np.ones((4 * size, 2)), np.ones((4 * size, 1))
        rows = tf.data.Dataset.from_tensor_slices((x, y))
        rest = 0 if epoch == 1 and taken > 0 else 4
        return rows.take(rest).batch(1)

    history = elastic.fit(
        small_model(),
        left,
        batch_size=1,
        epochs=3,
        callbacks=[
            fails,
            tfring.callbacks.MetricAverageCallback(),
            tfring.callbacks.LearningRateWarmupCallback(1e-3, 2),
            ends,
        ],
        validation_data=(np.ones((4, 2)), np.ones((4, 1))),
        verbose=0,
    )
    names = ["learning_rate", "loss", "val_loss"]
    assert ends.ended == [(epoch, names) for epoch in range(3)]
    assert all(len(history[name]) == 3 for name in names)
    assert history["loss"][0] > history["loss"][1] > history["loss"][2] > 0


def test_callbacks_are_made_anew_at_each_new_start(rank, size):
    fails, made = FailsOnce(1, 2), []

    def callbacks():
        made.append(Ends())
        return [fails, made[-1]]

    elastic.fit(
        small_model(),
        *rows_to_fit(size),
        batch_size=BATCH,
        epochs=3,
        callbacks=callbacks,
        verbose=0,
    )
    ended = [[epoch for epoch, _ in each.ended] for each in made]
    assert ended == [[0], [1, 2]]


def test_a_fit_that_stops_early(size):
    model = small_model()
    x, y = np.ones((4 * size, 2)), np.ones((4 * size, 1))

    def stop(epoch, logs):
        model.stop_training = epoch == 1

    stops = keras.callbacks.LambdaCallback(on_epoch_end=stop)
    history = elastic.fit(
        *(model, x, y), batch_size=2, epochs=9, callbacks=[stops], verbose=0
    )
    assert len(history["loss"]) == 2


@pytest.mark.parametrize("kind", ["arrays", "PyDataset"])
def test_fit_weighs_classes(size, kind):
    labels = np.arange(FIT_BATCHES * BATCH * size) % 2
    data = {
        "arrays": {"x": labels, "y": labels, "batch_size": BATCH},
        "PyDataset": {"x": Numbered(labels, labels)},
    }[kind]
    model = compiled(
        tfring.DistributedOptimizer(keras.optimizers.SGD()),
        keras.Input((), dtype="int64"),
        keras.layers.Embedding(2, 2, "zeros"),
        keras.layers.Softmax(),
        loss="sparse_categorical_crossentropy",
    )

    elastic.fit(model, **data, class_weight={0: 0.0, 1: 2.0}, verbose=0)

    of_none, of_one = model.get_weights()[0]
    np.testing.assert_array_equal(of_none, 0)
    assert of_one[0] < 0 < of_one[1]


def test_fit_reads_without_autotuning(monkeypatch):
    """An iterator with a sleeping autotuner may take seconds to end."""
    tuned = []
    begin = tf.data.Dataset.__iter__

    def seen(dataset):
        tuned.append(dataset.options().autotune.enabled)
        return begin(dataset)

    monkeypatch.setattr(tf.data.Dataset, "__iter__", seen)
    data = rows_to_fit(tfring.size())
    elastic.fit(small_model(), *data, batch_size=BATCH, epochs=2, verbose=0)
    assert set(tuned) == {False}


def batches_of_ones():
    return tf.data.Dataset.from_tensors((np.ones((2, 2)), np.ones((2, 1))))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"batch_size": 0}, ValueError),
        ({"epochs": 0}, ValueError),
        ({"batches_per_commit": 0}, ValueError),
        ({"initial_epoch": 1}, TypeError),
        ({"sample_weight": np.ones(8)}, TypeError),
        ({"callbacks": [keras.callbacks.BackupAndRestore("b")]}, ValueError),
        ({"batch_size": 1000}, ValueError),
        ({"y": np.ones((5, 1))}, ValueError),
        ({"x": (each for each in [1]), "y": None}, TypeError),
        ({"x": 3, "y": None}, TypeError),
        ({"x": batches_of_ones()}, ValueError),
        ({"x": batches_of_ones(), "y": None, "batch_size": 2}, ValueError),
        ({"x": batches_of_ones().repeat(), "y": None}, ValueError),
        (
            {"x": batches_of_ones().filter(lambda x, y: True), "y": None},
            ValueError,
        ),
        ({"x": batches_of_ones().take(0), "y": None}, ValueError),
        ({"x": batches_of_ones().shuffle(2, seed=1), "y": None}, ValueError),
        (
            {
                "x": batches_of_ones()
                .shuffle(2, reshuffle_each_iteration=False)
                .prefetch(1),
                "y": None,
            },
            ValueError,
        ),
        ({"x": lambda epoch, taken: 3, "y": None}, ValueError),
        (
            {"x": lambda epoch, taken: 3, "y": None, "batch_size": 2},
            TypeError,
        ),
    ],
)
def test_arguments_of_fit(options, error):
    arguments = {"x": np.ones((8, 2)), "y": np.ones((8, 1)), **options}
    with pytest.raises(error, match=r"^tfring\.elastic\.fit: "):
        elastic.fit(small_model(), **arguments)
