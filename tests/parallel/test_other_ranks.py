"""callbacks.Checkpoint: other ranks go on in the middle of an epoch."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
from counted_rows import BATCH, ROWS, count
from helpers import small_model, thorough

import tfring


def pretend_more_ranks(folder, size):
    """Makes the last checkpoint one of one rank more."""
    path = max(folder.glob("*/manifest.json"))
    manifest = json.loads(path.read_text())
    part = {**manifest["parts"][-1], "rank": size}
    names = f"part-{size - 1:05d}", f"part-{size:05d}"
    part["files"] = [
        [name.replace(*names), *others] for name, *others in part["files"]
    ]
    for file in path.parent.glob(f"{names[0]}*"):
        shutil.copy(file, path.parent / file.name.replace(*names))
    manifest["parts"].append(part)
    manifest["ranks"] = size + 1
    for each in manifest["parts"]:
        each["place"] = with_more_ranks(each["place"], size)
    path.write_text(json.dumps(manifest))


def with_more_ranks(place, size):
    def more(value):
        return value * (size + 1) // size

    taken, elements = place["taken"], place["elements in a step"]
    if elements is None:  # A `tf.data.Dataset` may have no place.
        return {**place, "taken": taken and more(taken)}
    return {
        **place,
        "taken": [taken[0], more(taken[1])],
        "steps": place["steps"] * size // (size + 1),
        "elements in a step": more(elements),
    }


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("arrays", {"steps_per_execution": 2}),
        ("dataset", {"steps_per_execution": 2}),
        ("repeated", {}),
        thorough("dataset", {}),
        thorough("dataset", {"jit_compile": True}),
        thorough("batches", {}),
        thorough("endless", {}),
    ],
)
def test_they_take_what_is_left(rank, size, shared_path, kind, options):
    steps = 6
    before = count(kind, shared_path, (0, steps), rank, size, **options)
    done = steps * BATCH * size
    assert before.sum() == done
    tfring.barrier()
    if rank == 0:
        pretend_more_ranks(shared_path, size)
    tfring.barrier()
    after = count(kind, shared_path, (1, 0), rank, size, **options)
    assert after.max() == 1
    left = ROWS - steps * BATCH * (size + 1)
    # Too few for a step of all ranks are left out at the end of an epoch.
    assert left - BATCH * size < after.sum() - done <= left


@pytest.mark.thorough
def test_an_iterator_that_leaves_out_elements_is_not_saved(
    rank, size, shared_path, caplog, several_ranks
):
    """Keras keeps the iterator in later epochs; a later job makes another."""
    count("endless", shared_path, (0, 7), rank, size)
    tfring.barrier()
    if rank == 0:
        pretend_more_ranks(shared_path, size)
    tfring.barrier()
    count("endless", shared_path, (1, 3), rank, size)
    assert ("the first step has fewer rows" in caplog.text) == (rank == 0)
    caplog.clear()
    count("endless", shared_path, (2, 3), rank, size)
    assert "is another than that of the checkpoint" not in caplog.text
    assert ("Dataset are read again" in caplog.text) == (rank == 0)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("own arrays", "data are each rank's own. Pass the data of all ranks"),
        thorough("shuffled", "there is a shuffle after tfring.data.shard"),
    ],
)
def test_they_begin_again_where_no_place_is_known(
    rank, size, shared_path, caplog, kind, why
):
    before = count(kind, shared_path, (0, 3), rank, size)
    tfring.barrier()
    if rank == 0:
        pretend_more_ranks(shared_path, size)
    tfring.barrier()
    after = count(kind, shared_path, (1, 0), rank, size)
    # tfring.data.shard leaves out what is not a row for each rank.
    assert ROWS - size < after.sum() - before.sum() <= ROWS
    assert (why in caplog.text) == (rank == 0)


def test_a_script_that_passes_other_data(
    rank, size, shared_path, caplog, several_ranks
):
    """The place is not taken for one in data of the other kind."""
    before = count("own arrays", shared_path, (0, 3), rank, size)
    after = count("arrays", shared_path, (1, 0), rank, size)
    assert after.sum() > before.sum() + ROWS - BATCH * size
    why = "data are shared out by tfring, and were each rank's own"
    assert (why in caplog.text) == (rank == 0)


def test_too_few_data_of_all_ranks(size, shared_path):
    x = np.ones((BATCH * size - 1, 2), "float32")
    callback = tfring.callbacks.Checkpoint(shared_path, of_all_ranks=True)
    match = f"no step of {size} ranks, of which each takes {BATCH} rows"
    with pytest.raises(ValueError, match=match):
        small_model().fit(x, x[:, :1], BATCH, verbose=0, callbacks=[callback])


def test_of_all_ranks_is_not_for_a_dataset(shared_path):
    x = tf.data.Dataset.from_tensors((np.ones((4, 2)), np.ones((4, 1))))
    callback = tfring.callbacks.Checkpoint(shared_path, of_all_ranks=True)
    with pytest.raises(ValueError, match="of_all_ranks is for arrays"):
        small_model().fit(x, verbose=0, callbacks=[callback])
