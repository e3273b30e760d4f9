"""Ranks train on the rows of Parquet files."""

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import CutOffAt, CutOffError, compiled

import tfring

ROWS = 48


@pytest.fixture
def folder(rank, shared_path):
    """Files that are the same for all ranks."""
    path = shared_path / "rows"
    if rank == 0:
        path.mkdir()
        rows = np.random.default_rng(0).normal(size=(ROWS, 4))
        table = pa.table(
            {
                "row": np.arange(ROWS),
                "x": list(rows.astype("float32")),
                "y": rows.sum(1).astype("float32"),
            }
        )
        pq.write_table(table, path / "a.parquet", row_group_size=7)
    tfring.barrier()
    return path


def rows_for_fit(row):
    return row["x"], row["y"][:, None]


def test_all_rows_are_taken_by_some_rank(rank, size, folder):
    batches = tfring.data.parquet(folder, batch_size=4, columns=["row"])
    own = np.concatenate([batches[n]["row"] for n in range(len(batches))])
    assert len(batches) == ROWS // (4 * size)
    everyones = np.concatenate(tfring.allgather_object(own))
    assert len(set(everyones)) == len(everyones)


def test_other_arguments_are_an_error_on_every_rank(
    rank, size, folder, several_ranks
):
    with pytest.raises(ValueError, match="different data or arguments"):
        tfring.data.parquet(folder, batch_size=4, seed=rank)


def test_a_checkpoint_has_the_place(folder, shared_path):
    """The bits are those of a training that was not cut off."""

    def train(name, *callbacks):
        keras.utils.set_random_seed(1)
        model = compiled(
            tfring.DistributedOptimizer(keras.optimizers.Adam(0.01)),
            keras.Input((4,)),
            keras.layers.Dense(1),
        )
        model.fit(
            tfring.data.parquet(
                folder, batch_size=4, transform=rows_for_fit, seed=2
            ),
            epochs=3,
            shuffle=False,
            verbose=0,
            callbacks=[
                tfring.callbacks.BroadcastGlobalVariablesCallback(0),
                tfring.callbacks.Checkpoint(shared_path / name, every_steps=2),
                *callbacks,
            ],
        )
        return [each.numpy().tobytes() for each in model.variables]

    whole = train("whole")
    with pytest.raises(CutOffError):
        train("cut", CutOffAt(5))
    tfring.barrier()
    assert train("cut") == whole
