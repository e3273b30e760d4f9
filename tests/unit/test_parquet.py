"""Rows of Parquet files: their order, their shares, and what is refused."""

from itertools import chain

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tfring
from tfring._core import native, runtime
from tfring._core.job import Topology
from tfring._keras import sources
from tfring.data import parquet_rows

ROWS = [10, 3, 8]  # of each file; a row group has 4


@pytest.fixture
def folder(tmp_path):
    begin = 0
    for number, rows in enumerate(ROWS):
        row = np.arange(begin, begin + rows)
        table = pa.table(
            {
                "row": row,
                "x": list(np.stack([row, row + 0.5], 1).astype("float32")),
                "name": [f"row {each}" for each in row],
            }
        )
        pq.write_table(
            table, tmp_path / f"part-{number}.parquet", row_group_size=4
        )
        begin += rows
    (tmp_path / "_SUCCESS").touch()
    return tmp_path


@pytest.fixture
def as_rank(monkeypatch):
    """Makes this process a rank of a job, whose others have the same files."""

    def become(rank, size):
        place = Topology.of_nodes(rank, range(size))
        monkeypatch.setattr(runtime, "is_initialized", lambda: True)
        monkeypatch.setattr(runtime, "place", lambda: place)
        monkeypatch.setattr(
            parquet_rows, "gather_same", lambda function, arguments: [None]
        )

    return become


def rows_of(batches):
    return [batches[n]["row"].tolist() for n in range(len(batches))]


def test_without_shuffle_it_is_the_order_of_the_files(folder):
    batches = tfring.data.parquet(folder, batch_size=5, shuffle=False)
    assert rows_of(batches) == [[*range(n, n + 5)] for n in (0, 5, 10, 15)]
    batches.on_epoch_end()
    assert rows_of(batches)[0] == [0, 1, 2, 3, 4]
    batch = batches[2]
    assert batch["x"].dtype == np.float32
    assert batch["x"].tolist() == [[n, n + 0.5] for n in range(10, 15)]
    assert batch["name"].tolist() == [f"row {n}" for n in range(10, 15)]


def test_without_shuffle_no_row_group_is_copied(folder, monkeypatch):
    files = parquet_rows._Files(folder, None)
    group = {"row": np.arange(4)}
    monkeypatch.setattr(files, "read", lambda number: group)
    for seed, is_shared in (None, True), (0, False):
        batches = parquet_rows.ParquetBatches(files, range(4), 2, seed, None)
        read = batches._read(0)["row"]
        assert np.shares_memory(read, group["row"]) == is_shared
        assert sorted(read) == [0, 1, 2, 3]


def test_a_transform_may_change_a_batch_in_place(folder):
    def negated(row):
        return np.negative(row["row"], out=row["row"])

    batches = tfring.data.parquet(
        folder, batch_size=2, shuffle=False, transform=negated
    )
    for _ in range(2):
        assert batches[0].tolist() == [0, -1]


def test_each_epoch_has_an_order_of_its_own(folder):
    batches = tfring.data.parquet(folder, batch_size=7, seed=3)
    epochs = []
    for _ in range(3):
        epochs.append(rows_of(batches))
        assert sorted(chain(*epochs[-1])) == [*range(21)]
        batches.on_epoch_end()
    assert epochs[0] != epochs[1] != epochs[2]
    batches.set_epoch(1)
    assert rows_of(batches) == epochs[1]
    again = tfring.data.parquet(folder, batch_size=7, seed=3)
    assert rows_of(again) == epochs[0]
    assert again[2]["row"].tolist() == epochs[0][2]  # also backwards
    assert again[0]["row"].tolist() == epochs[0][0]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_ranks_have_no_row_in_common(folder, as_rank, size):
    taken = []
    for rank in range(size):
        as_rank(rank, size)
        batches = tfring.data.parquet(folder, batch_size=2)
        assert len(batches) == 21 // (2 * size)
        taken += chain(*rows_of(batches))
    assert len(set(taken)) == len(taken) == 21 // (2 * size) * 2 * size


def test_a_rank_reads_its_own_row_groups(folder, as_rank, monkeypatch):
    read = []
    keep = parquet_rows._Files.read
    monkeypatch.setattr(
        parquet_rows._Files,
        "read",
        lambda self, number: read.append(number) or keep(self, number),
    )
    as_rank(1, 3)
    rows_of(tfring.data.parquet(folder, batch_size=1, seed=1))
    # Its seven rows are in two to four of the six groups, each read once.
    assert len(read) == len(set(read)) <= 4


def test_columns_and_a_transform(folder):
    batches = tfring.data.parquet(
        str(folder / "part-1.parquet"),
        batch_size=3,
        columns=["x", "row"],
        shuffle=False,
        transform=lambda row: (row["x"], row["row"] * 2),
    )
    x, y = batches[0]
    assert x.shape == (3, 2)
    assert y.tolist() == [20, 22, 24]
    plain = tfring.data.parquet(folder, batch_size=3, columns=["row"])
    assert [*plain[0]] == ["row"]


@pytest.mark.parametrize("kind", ["list", "large_list", "fixed", "nested"])
def test_lists_become_dimensions(tmp_path, kind):
    values = np.arange(12, dtype="int16").reshape(2, 3, 2)
    if kind != "nested":
        values = values.reshape(2, 6)
    types = {
        "list": pa.list_(pa.int16()),
        "large_list": pa.large_list(pa.int16()),
        "fixed": pa.list_(pa.int16(), 6),
        "nested": pa.list_(pa.list_(pa.int16())),
    }
    table = pa.table({"v": pa.array(values.tolist(), types[kind])})
    pq.write_table(table, tmp_path / "a.parquet")
    batches = tfring.data.parquet(tmp_path, batch_size=2, shuffle=False)
    np.testing.assert_array_equal(batches[0]["v"], values)
    assert batches[0]["v"].dtype == np.int16


def test_files_may_be_empty(tmp_path):
    table = pa.table({"v": [[1, 2], [3, 4]]})
    for name, rows in ("a", 2), ("b", 0), ("c", 2):
        pq.write_table(table.slice(0, rows), tmp_path / f"{name}.parquet")
    batches = tfring.data.parquet(tmp_path, batch_size=4, shuffle=False)
    assert batches[0]["v"].tolist() == [[1, 2], [3, 4]] * 2


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([1, None, 3], "1 nulls are in column 'v' in row group 0 of .*a.parq"),
        ([[1], [1, 2], [1]], "lists of 1 to 2 elements are in column 'v'"),
        ([[1.0], [None], [2.0]], "1 nulls are in column 'v'"),
    ],
)
def test_what_is_no_array_is_an_error(tmp_path, column, message):
    pq.write_table(pa.table({"v": column}), tmp_path / "a.parquet")
    batches = tfring.data.parquet(tmp_path, batch_size=3)
    with pytest.raises(ValueError, match=message):
        batches[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": ["row", "y"]}, r"no columns \['y'\]. It has \['row', 'x'"),
        ({"batch_size": 0}, "batch_size must be positive, got 0"),
        ({"batch_size": 22}, "has 21 rows, too few for a batch of 22 on each"),
    ],
)
def test_arguments_are_checked(folder, options, message):
    with pytest.raises(ValueError, match=message):
        tfring.data.parquet(folder, **{"batch_size": 2, **options})


def test_no_files_are_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        tfring.data.parquet(tmp_path / "none", batch_size=1)


def test_an_elastic_job_has_no_shares(folder, as_rank, monkeypatch):
    as_rank(0, 2)
    monkeypatch.setattr(native, "is_elastic", lambda: True)
    with pytest.raises(RuntimeError, match="Pass of_all_ranks=True"):
        tfring.data.parquet(folder, batch_size=2)
    assert (
        len(tfring.data.parquet(folder, batch_size=2, of_all_ranks=True)) == 10
    )


def test_a_source_tells_it_the_epoch(folder):
    batches = tfring.data.parquet(folder, batch_size=2, of_all_ranks=True)
    expected = []
    for _ in range(2):
        expected.append(rows_of(batches))
        batches.on_epoch_end()
    source = sources.source(batches, None, None, None)
    for epoch in (1, 0):
        for size in (1, 2, 3):
            taken = []
            rests = [source.rest(rank, size, epoch, 4) for rank in range(size)]
            for step in range(rests[0].steps):
                taken += [rest.batch(step)["row"].tolist() for rest in rests]
            assert taken == expected[epoch][4 : 4 + len(taken)]


def test_fit_has_another_order_in_each_epoch(folder):
    read = []

    def transform(row):
        read.append(row["row"].tolist())
        return row["x"], row["row"].astype("float32")

    batches = tfring.data.parquet(
        folder, batch_size=7, columns=["x", "row"], transform=transform
    )
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    epochs = []

    class Noting(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            epochs.append(read[-3:])  # Keras has looked at the first before.

    model.fit(batches, epochs=3, shuffle=False, verbose=0, callbacks=[Noting()])
    for each in epochs:
        assert sorted(chain(*each)) == [*range(21)]
    assert epochs[0] != epochs[1] != epochs[2]
