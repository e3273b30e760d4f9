"""Python objects of all kinds and sizes, and objects that cannot be sent."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tensorflow as tf

import tfring


def object_of(rank):
    return {
        "rank": rank,
        "text": "\u00e9" * (1000 * rank),
        "array": np.arange(rank * 100_000).reshape(rank, -1 if rank else 0),
        "nested": [(None, {rank}, tfring.Average)] * 2,
    }


def check(obj, rank):
    expected = object_of(rank)
    np.testing.assert_array_equal(obj.pop("array"), expected.pop("array"))
    assert obj == expected


@pytest.mark.parametrize("name", [None, "settings"])
def test_broadcast_from_each_rank(name, rank, size):
    for root in range(size):
        own = object_of(rank)
        result = tfring.broadcast_object(own, root, name=name)
        assert (result is own) == (rank == root)
        check(result, root)


def test_broadcast_needs_no_object_elsewhere(rank, size):
    root = size - 1
    unpicklable = threading.Lock()
    result = tfring.broadcast_object(
        "here" if rank == root else unpicklable, root_rank=root
    )
    assert result == "here"


def test_broadcast_object_fn(rank, size):
    from_last = tfring.broadcast_object_fn(root_rank=size - 1, name="last")
    assert from_last(rank) == size - 1
    assert from_last([rank]) == [size - 1]


@pytest.mark.parametrize("name", [None, "settings"])
def test_allgather(name, rank, size):
    results = tfring.allgather_object(object_of(rank), name=name)
    assert len(results) == size
    for r, result in enumerate(results):
        check(result, r)


def test_lambdas(rank, size):
    root = size - 1
    found = tfring.broadcast_object(lambda x: (x, rank), root)
    assert found(3) == (3, root)
    every = tfring.allgather_object(lambda: rank)
    assert [own() for own in every] == list(range(size))


def test_what_cannot_be_pickled_fails_on_every_rank(rank, size):
    root = size - 1
    own = threading.Lock() if rank == root else "fine"
    if rank == root:
        raises = pytest.raises(TypeError, match="pickle")
    else:
        raises = pytest.raises(RuntimeError, match=f": rank {root} could not")
    with raises:
        tfring.broadcast_object(own, root)
    with raises:
        tfring.allgather_object(own)
    # The job continues.
    assert tfring.allgather_object(rank) == list(range(size))


def test_root_rank_is_checked(size):
    for function in (
        tfring.broadcast_object_fn,
        lambda root: tfring.broadcast_object(None, root),
    ):
        for root in (-1, size):
            with pytest.raises(ValueError, match=r"_object.*root_rank"):
                function(root)
        with pytest.raises(TypeError, match=r"_object.*integer"):
            function("0")


def test_a_graph_without_a_session_is_refused():
    for function in (tfring.broadcast_object, tfring.allgather_object):
        with pytest.raises(RuntimeError, match=r"in a graph.* session"):
            tf.function(function)("object")


@pytest.mark.parametrize("name", [None, "settings"])
def test_in_a_session(name, rank, size):
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        for root in range(size):
            result = tfring.broadcast_object(
                object_of(rank), root, session, name
            )
            check(result, root)
        results = tfring.allgather_object(object_of(rank), session, name)
        from_last = tfring.broadcast_object_fn(size - 1, session, name)
        assert from_last(rank) == size - 1
    for r, result in enumerate(results):
        check(result, r)


def test_in_the_default_session(rank, size):
    with tf.Graph().as_default():
        with pytest.raises(RuntimeError, match=r"in a graph.* session"):
            tfring.allgather_object(rank)
        with tf.compat.v1.Session():
            assert tfring.broadcast_object(rank, size - 1) == size - 1
            assert tfring.allgather_object(rank) == list(range(size))


def test_of_a_process_set(several_ranks, sets, rank, size):
    # The last ranks, so that a rank's number and its place in the set differ.
    last = [*range(size // 2, size)]
    [ranks] = sets(last)
    options = {"process_set": ranks}
    if rank in last:
        for root in last:
            check(
                tfring.broadcast_object(object_of(rank), root, **options), root
            )
        assert tfring.broadcast_object_fn(size - 1, **options)(rank) == size - 1
        assert tfring.allgather_object(rank, **options) == last
        own = threading.Lock() if rank == size - 1 else "fine"
        message = "pickle" if rank == size - 1 else f": rank {size - 1} could"
        with pytest.raises((TypeError, RuntimeError), match=message):
            tfring.allgather_object(own, **options)
    else:
        for call in (
            lambda: tfring.broadcast_object(1, size - 1, **options),
            lambda: tfring.broadcast_object_fn(size - 1, **options),
            lambda: tfring.allgather_object(1, **options),
        ):
            with pytest.raises(ValueError, match="is not in"):
                call()
