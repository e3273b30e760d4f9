"""Where other ranks go on in batches that tfring.data.shard has shared out."""

import itertools
import random

import pytest
import tensorflow as tf

import tfring
from tfring._core import runtime
from tfring._core.job import Topology
from tfring._keras.shared_batches import Cut, SharedBatches, shared_batches
from tfring.data import sharding


@pytest.fixture
def shard(monkeypatch):
    """Returns `tfring.data.shard` of a rank of a job."""
    monkeypatch.setattr(
        sharding, "gather_same", lambda function, arguments, more: [more]
    )

    def shard(dataset, rank=0, size=1, **options):
        place = Topology.of_nodes(rank, range(size))
        monkeypatch.setattr(runtime, "place", lambda: place)
        return tfring.data.shard(dataset, **options)

    return shard


def taken_by(own, shared, place, rank, size, steps):
    """Returns the elements of the next steps, as lists."""
    first, cut = shared.find(*place, rank, size)
    batches = own if cut is None else cut.apply(own)
    rest = itertools.islice(batches, first, first + steps)
    return first, [batch.numpy().tolist() for batch in rest]


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_each_element_is_taken_once(shard, repeats, seed):
    chance = random.Random(seed)
    rows = chance.randrange(60, 90)
    place, taken, lost = (0, 0), [], 0
    while True:
        size, batch_size = chance.randrange(1, 5), chance.randrange(1, 6)
        steps = chance.randrange(1, 4)
        firsts, of_ranks = set(), []
        for rank in range(size):
            own = shard(tf.data.Dataset.range(rows), rank, size, seed=7)
            own = own.batch(batch_size)
            per_epoch = int(own.cardinality())
            own = own.repeat() if repeats else own
            shared = shared_batches(own)
            first, batches = taken_by(own, shared, place, rank, size, steps)
            firsts.add(first)
            of_ranks.append([len(batch) for batch in batches])
            if first < per_epoch:
                taken += itertools.chain(*batches[: per_epoch - first])
        [first] = firsts
        for step in zip(*of_ranks, strict=True):
            assert max(step) - min(step) <= 1
            assert min(step) > 0
        if first >= per_epoch or first + steps >= per_epoch:
            break
        place = shared.taken(first + steps, size)
        # A step that would not have had one element for each rank is left out.
        lost += size - 1
    counts = [taken.count(row) for row in range(rows)]
    assert max(counts) == 1
    assert sum(counts) >= rows - lost - size - batch_size * size


def test_other_batches_are_counted_in_elements():
    shared = SharedBatches(batch_size=24, elements=120, batches=None)
    place = shared.taken(3, size=2)
    assert place == (0, 144)
    # A step of three ranks takes as many elements as one of two, so nothing is
    # left out.
    assert SharedBatches(16, 80, None).find(*place, 0, 3) == (3, None)
    number, cut = SharedBatches(10, 240, None).find(*place, 0, 1)
    assert (number, cut.batch, cut.count) == (14, 14, 4)


@pytest.mark.parametrize(
    "structure", [lambda x: x, lambda x: (x,), lambda x: (x, {"y": x})]
)
def test_a_batch_keeps_its_structure(structure):
    whole = tf.data.Dataset.range(6).map(structure).batch(2)
    _, second, third = Cut(1, 1).apply(whole)
    tf.nest.assert_same_structure(second, [*whole][1])
    assert tf.nest.flatten(second)[-1].numpy().tolist() == [3]
    assert tf.nest.flatten(third)[-1].numpy().tolist() == [4, 5]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda rows: rows.batch(4), "is not made by tfring.data.shard"),
        (lambda rows: tf.data.Dataset.zip(rows, rows), "is not made by"),
    ],
)
def test_of_a_dataset_of_other_make(make, why):
    assert why in shared_batches(make(tf.data.Dataset.range(8)))


@pytest.mark.parametrize(
    ("make", "options", "why"),
    [
        (lambda own: own.shuffle(4).batch(2), {}, "is a shuffle after"),
        (lambda own: own.cache().batch(2), {}, "is a cache after"),
        (lambda own: own.batch(2).batch(2), {}, "is a batch after"),
        (lambda own: own.repeat(2).batch(2), {}, "is a repeat after"),
        (lambda own: own, {}, "is not batched"),
        (lambda own: own.batch(2), {"remainder": "keep"}, "='keep' gives"),
        (lambda own: own.batch(2), {"skip": 2}, "has a skip"),
        (
            lambda own: own.map(abs, 2, deterministic=False).batch(2),
            {},
            "is a parallelmap after",
        ),
        (
            lambda own: own.batch(2).map(tf.sparse.from_dense),
            {},
            "not all of its components",
        ),
    ],
)
def test_what_other_ranks_cannot_go_on_with(shard, make, options, why):
    own = shard(tf.data.Dataset.range(8), seed=0, **options)
    assert why in shared_batches(make(own))


def test_what_keeps_the_order(shard):
    own = shard(tf.data.Dataset.range(8), seed=0)
    own = own.map(abs, tf.data.AUTOTUNE).batch(2).map(abs).prefetch(2)
    assert shared_batches(own) == SharedBatches(2, 8, None)
    endless = shard(tf.data.Dataset.range(8).repeat(), seed=None)
    assert shared_batches(endless.batch(2)) == SharedBatches(2, None, None)
    unknown = tf.data.Dataset.range(8).filter(lambda row: True)
    unknown = shard(unknown, seed=0, buffer_size=8)
    assert "elements is not known" in shared_batches(unknown.batch(2))
