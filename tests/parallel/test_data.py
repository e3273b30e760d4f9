"""`shard`: parts that do not overlap, of one length, new in every epoch."""

from __future__ import annotations

import collections

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import compiled, warnings_of

import tfring


def everyones(elements):
    """Each rank's elements as a row; fails unless ranks have equally many."""
    return tfring.allgather(np.array([elements], np.int64)).numpy()


def unknown_cardinality(dataset):
    return dataset.filter(lambda x: True)


@pytest.fixture(params=["known", "unknown"])
def count(request):
    """A function that makes a dataset of the numbers below its argument."""
    if request.param == "known":
        return tf.data.Dataset.range
    return lambda n: unknown_cardinality(tf.data.Dataset.range(n))


@pytest.mark.parametrize("left_over", [1, 2])
@pytest.mark.parametrize("remainder", ["drop", "pad", "keep"])
def test_the_remainder(left_over, remainder, count, size):
    left_over %= size
    n = 5 * size + left_over
    dataset = count(n)
    mine = tfring.data.shard(
        dataset, seed=7, buffer_size=n, remainder=remainder
    )
    more = {
        "drop": [0] * size,
        "pad": [left_over > 0] * size,
        "keep": [r < left_over for r in range(size)],
    }[remainder]
    seen = set()
    for _ in range(3):
        [*own] = mine.as_numpy_iterator()
        parts = tfring.allgather_object([int(i) for i in own])
        assert [len(part) for part in parts] == [5 + m for m in more]
        whole = [i for part in parts for i in part]
        first = [i for part in parts for i in part[:5]]
        assert len(set(first)) == 5 * size  # no repeats but the last
        if remainder == "drop":
            assert set(whole) <= set(range(n))
        else:
            assert set(whole) == set(range(n))
        assert remainder == "pad" or len(set(whole)) == len(whole)
        seen.add(tuple(whole))
    assert len(seen) == 3  # reshuffled in every epoch
    if remainder != "keep" and dataset.cardinality() == n:
        assert mine.cardinality() == len(own)


@pytest.mark.parametrize(
    ("skip", "remainder"),
    [(0, "pad"), (3, "drop"), (3, "pad"), (3, "keep"), (40, "pad")],
)
def test_what_was_taken_is_skipped(count, size, skip, remainder):
    n = 5 * size + 1
    # All ranks shuffle in the same order, here put together from the shards.
    [*order] = tfring.data.shard(
        count(n), seed=3, buffer_size=n, remainder="keep"
    ).as_numpy_iterator()
    parts = tfring.allgather_object(order)
    whole = [parts[i % size][i // size] for i in range(n)]
    rest = whole[skip:]
    mine = tfring.data.shard(
        count(n), seed=3, buffer_size=n, remainder=remainder, skip=skip
    )
    [*own] = mine.as_numpy_iterator()
    assert mine.cardinality() in (len(own), tf.data.UNKNOWN_CARDINALITY)
    parts = tfring.allgather_object(own)
    longest = max(map(len, parts))
    seen = [part[i] for i in range(longest) for part in parts if i < len(part)]
    if remainder == "drop":
        assert seen == rest[: len(rest) // size * size]
    else:
        assert seen[: len(rest)] == rest


def test_without_a_seed_the_order_stays(rank, size, count):
    mine = tfring.data.shard(count(4 * size), seed=None)
    for _ in range(2):
        expected = list(range(rank, 4 * size, size))
        assert list(mine.as_numpy_iterator()) == expected


def test_the_order_is_that_of_the_seed_alone(rank, size):
    tf.random.set_seed(None)
    one_order = tf.data.Dataset.range(4 * size).shuffle(4 * size, seed=3)
    expected = np.array(list(one_order.as_numpy_iterator()))
    keras.utils.set_random_seed(rank)  # as is usual, for dropout
    mine = tfring.data.shard(tf.data.Dataset.range(4 * size), seed=3)
    parts = everyones(list(mine.as_numpy_iterator()))
    np.testing.assert_array_equal(parts.T.ravel(), expected)
    tf.random.set_seed(None)


def test_infinite(size):
    dataset = tf.data.Dataset.range(2 * size).repeat()
    mine = tfring.data.shard(dataset, seed=0, buffer_size=size)
    assert mine.cardinality() == tf.data.INFINITE_CARDINALITY
    assert everyones(list(mine.take(9).as_numpy_iterator())).shape == (size, 9)


Pair = collections.namedtuple("Pair", "first second")


@pytest.mark.parametrize(
    "element",
    [
        lambda x: (x,),
        lambda x: Pair(x, -x),
        lambda x: (Pair((x,), Pair(x, x)), {"label": Pair(x, x)}),
        lambda x: (x, None, {"weight": x}),
        lambda x: Pair(tf.sparse.from_dense([x, 0]), tf.ragged.range([x, 1])),
        lambda x: (x, {"label": -x}),
        lambda x: {"image": tf.fill([x], x), "name": tf.strings.as_string(x)},
        lambda x: tf.RaggedTensor.from_row_lengths(tf.range(x), [x, 0]),
    ],
)
def test_every_kind_of_element(element, rank, size):
    dataset = tf.data.Dataset.range(2 * size + 1).map(element)
    for mine in (
        tfring.data.shard(dataset, seed=0),
        tfring.data.shard(dataset, seed=None, remainder="pad"),
    ):
        assert mine.element_spec == dataset.element_spec
        assert type(mine.element_spec) is type(dataset.element_spec)
        assert len(list(mine)) >= 2
    if size > 1:
        # The element that is left over, which every rank has.
        last = list(mine)[-1]
        want = list(dataset)[-1]
        tf.nest.map_structure(
            lambda a, b: np.testing.assert_array_equal(a, b),
            tf.nest.flatten(last, expand_composites=True),
            tf.nest.flatten(want, expand_composites=True),
        )


def test_ranks_that_differ_are_an_error_on_all(rank, several_ranks):
    dataset = tf.data.Dataset.range(8)
    with pytest.raises(ValueError, match=r"rank 1 has .*'seed': 1"):
        tfring.data.shard(dataset, seed=rank)
    dataset = tf.data.Dataset.range(8 + rank)
    with pytest.raises(ValueError, match=r"'cardinality': 8.*'cardinality': 9"):
        tfring.data.shard(dataset, seed=None)


@pytest.fixture
def files(shared_path, rank):
    """A pattern of the names of 32 files."""
    if rank == 0:
        for i in range(32):
            (shared_path / f"{i:02}").touch()
    tfring.barrier()
    return str(shared_path / "*")


@pytest.fixture(autouse=True)
def _no_global_seed():
    tf.random.set_seed(None)
    yield
    tf.random.set_seed(None)


def interleaved(dataset, **how):
    return dataset.interleave(
        tf.data.Dataset.from_tensors, 2, num_parallel_calls=2, **how
    )


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("shuffle", lambda rows, files: rows.shuffle(8)),
        ("shuffle", lambda rows, files: rows.shuffle(8).cache().repeat(2)),
        ("shuffle", lambda rows, files: rows.zip(rows.shuffle(8))),
        ("list_files", lambda rows, files: rows.list_files(files)),
        (
            "list_files",
            lambda rows, files: tf.data.TFRecordDataset(
                rows.list_files(files), num_parallel_reads=2
            ),
        ),
        (
            "sample_from_datasets",
            lambda rows, files: rows.sample_from_datasets([rows, rows]),
        ),
        (
            "shuffle, in the function of interleave",
            lambda rows, files: rows.interleave(lambda _: rows.shuffle(8)),
        ),
        (
            "shuffle, in the function of flat_map",
            lambda rows, files: rows.flat_map(
                lambda _: rows.flat_map(lambda _: rows.shuffle(8))
            ),
        ),
    ],
)
def test_an_order_of_each_ranks_own_is_refused(
    name, made, files, several_ranks
):
    dataset = made(tf.data.Dataset.range(8), files)
    with pytest.raises(ValueError, match=f"has '{name}' without a seed"):
        tfring.data.shard(dataset, seed=1, buffer_size=8)


def test_orders_of_different_seeds_are_refused(rank, several_ranks):
    rows = tf.data.Dataset.range(8)
    different = "shuffled by different seeds"
    with pytest.raises(ValueError, match=rf"{different}.*'shuffle', .*, 1\]"):
        tfring.data.shard(rows.shuffle(8, seed=rank), seed=None)
    tf.random.set_seed(rank)
    with pytest.raises(ValueError, match=different):
        tfring.data.shard(rows.shuffle(8), seed=None)
    with pytest.raises(ValueError, match=different):
        tfring.data.shard(rows.shuffle(8, seed=3), seed=None)


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize(
    "made",
    [
        lambda rows: rows.shuffle(32, seed=3),
        lambda rows: rows.shuffle(32, seed=3, reshuffle_each_iteration=False),
        lambda rows: rows.shuffle(1),
        lambda rows: interleaved(rows.shuffle(9, seed=0)).prefetch(2),
        lambda rows: rows.batch(8).flat_map(
            lambda eight: rows.from_tensor_slices(eight).shuffle(8, seed=1)
        ),
    ],
)
def test_an_order_of_all_ranks_is_accepted(made, seed, size, recwarn):
    mine = tfring.data.shard(
        made(tf.data.Dataset.range(32)), seed=seed, buffer_size=32
    )
    for _ in range(2):
        rows = everyones(list(mine.as_numpy_iterator())).ravel().tolist()
        assert len(set(rows)) == len(rows) == 32 // size * size
    assert recwarn.list == []


def test_the_same_global_seed_is_accepted(size):
    tf.random.set_seed(11)
    rows = tf.data.Dataset.range(8 * size).shuffle(8 * size)
    mine = tfring.data.shard(rows, seed=None)
    rows = everyones(list(mine.as_numpy_iterator())).ravel()
    assert set(rows.tolist()) == set(range(8 * size))


@pytest.mark.parametrize("how", [{"shuffle": False}, {"seed": 3}])
def test_files_in_one_order(how, files, size, recwarn):
    names = tf.data.Dataset.list_files(files, **how)
    mine = tfring.data.shard(names, seed=1)
    parts = tfring.allgather_object(list(mine.as_numpy_iterator()))
    taken = [name for part in parts for name in part]
    assert len(set(taken)) == len(taken) == 32 // size * size
    assert recwarn.list == []


def without_order(dataset):
    options = tf.data.Options()
    options.deterministic = False
    return dataset.with_options(options)


@pytest.mark.parametrize(
    ("name", "made"),
    [
        (
            "map",
            lambda rows: rows.map(
                lambda x: x, num_parallel_calls=2, deterministic=False
            ),
        ),
        ("interleave", lambda rows: interleaved(rows, deterministic=False)),
        ("interleave", lambda rows: without_order(interleaved(rows)).take(9)),
        (
            "interleave",
            lambda rows: without_order(
                tf.data.TFRecordDataset(
                    ["a", "b"], num_parallel_reads=tf.data.AUTOTUNE
                )
            ),
        ),
        (None, without_order),
        (
            None,
            lambda rows: without_order(interleaved(rows, deterministic=True)),
        ),
    ],
)
def test_the_speed_of_threads_is_no_order(name, made, rank, size):
    dataset = made(tf.data.Dataset.range(8))
    texts = warnings_of(
        tfring.DifferentOrdersWarning,
        lambda: tfring.data.shard(dataset, seed=None),
    )
    assert len(texts) == (name is not None and size > 1 and rank == 0)
    assert all(f"'{name}' is not deterministic" in text for text in texts)


@pytest.mark.parametrize(
    ("warns", "array"),
    [
        (True, lambda rank: np.roll(np.arange(9.0), rank)),
        (True, lambda rank: np.roll(["a", "b", "c"], rank)),
        (False, lambda rank: np.arange(9)),
        (False, lambda rank: [f"/disk{rank}/{i}.png" for i in range(9)]),
    ],
)
def test_arrays_in_orders_of_their_own(warns, array, rank, size):
    arrays = array(rank), tf.zeros([len(array(0))])
    rows = tf.data.Dataset.from_tensor_slices(arrays).map(lambda x, _: x)
    texts = warnings_of(
        tfring.DifferentOrdersWarning,
        lambda: tfring.data.shard(rows, seed=0),
    )
    assert len(texts) == (warns and size > 1 and rank == 0)
    assert all("are others on rank 1 than on rank 0" in t for t in texts)


@pytest.mark.parametrize(
    ("problem", "made"),
    [
        (
            "'shuffle' without a seed",
            lambda rows, r, s: rows.shuffle(8).shard(s, r),
        ),
        (
            "'shuffle' with another seed",
            lambda rows, r, s: rows.shuffle(8, seed=r).shard(s, r),
        ),
        (None, lambda rows, r, s: rows.shard(s, r).shuffle(8)),
        (None, lambda rows, r, s: rows.shuffle(8, seed=3).shard(s, r)),
        (None, lambda rows, r, s: tfring.data.shard(rows, seed=0)),
    ],
)
def test_what_fit_says_of_tensorflows_shard(problem, made, rank, size):
    optimizer = tfring.DistributedOptimizer("sgd")
    model = compiled(optimizer, keras.Input((1,)), keras.layers.Dense(1))
    rows = made(tf.data.Dataset.range(8), rank, size).take(2).batch(2)
    rows = rows.map(lambda x: (x[:, tf.newaxis], x))
    callbacks = [tfring.callbacks.BroadcastGlobalVariablesCallback(0)]
    texts = warnings_of(
        tfring.DifferentOrdersWarning,
        lambda: model.fit(rows, verbose=0, callbacks=callbacks),
    )
    assert len(texts) == (problem is not None and size > 1 and rank == 0)
    assert all(problem in text for text in texts)


@pytest.mark.parametrize(
    ("error", "match", "arguments"),
    [
        (ValueError, "skip must not be negative", {"skip": -1}),
        (TypeError, r"takes a tf.data.Dataset, got .* list", {"dataset": [1]}),
        (TypeError, "seed must be an integer or None", {"seed": 0.5}),
        (ValueError, "'pad' or 'keep', got 'cut'", {"remainder": "cut"}),
        (ValueError, "must be positive, got 0", {"buffer_size": 0}),
        (
            ValueError,
            "Pass buffer_size=",
            {"dataset": unknown_cardinality(tf.data.Dataset.range(1))},
        ),
    ],
)
def test_bad_arguments(error, match, arguments):
    good = {"dataset": tf.data.Dataset.range(4), "seed": 0}
    with pytest.raises(error, match=match):
        tfring.data.shard(**{**good, **arguments})


def test_not_in_a_function():
    with pytest.raises(RuntimeError, match="Call it eagerly"):
        tf.function(
            lambda: tfring.data.shard(tf.data.Dataset.range(4), seed=0) and 0
        )()
