"""`shard`: parts that do not overlap, of one length, new in every epoch."""

from __future__ import annotations

import collections

import keras
import numpy as np
import pytest
import tensorflow as tf

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
        last = list(mine)[-1]  # the one that is left over, on every rank
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
