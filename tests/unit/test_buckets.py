"""Buckets: equal on all ranks, of one dtype, no larger than they may be."""

import pytest
import tensorflow as tf

from tfring._gradients.buckets import (
    bucket_limits,
    cut_by_groups,
    cut_into_buckets,
)


def floats(*counts, dtype=tf.float32):
    return [tf.zeros([count], dtype) for count in counts]


@pytest.mark.parametrize(
    ("tensors", "limit", "buckets"),
    [
        (floats(1, 1, 2, 1), 16, [[0, 1, 2], [3]]),
        # A tensor above the limit travels alone.
        (floats(1, 9, 1, 1), 8, [[0], [1], [2, 3]]),
        (floats(1, 1, 1), 0, [[0], [1], [2]]),
        # Empty tensors need no room.
        (floats(1, 0, 0), 4, [[0, 1, 2]]),
        ([], 100, []),
    ],
)
def test_tensors_share_a_bucket_up_to_the_limit(tensors, limit, buckets):
    assert cut_into_buckets(tensors, limit) == buckets


def test_first_bucket_may_be_smaller():
    buckets = cut_into_buckets(floats(1, 1, 1, 1, 1), 12, first_limit_bytes=4)
    assert buckets == [[0], [1, 2, 3], [4]]


def test_what_counts_is_the_dtype_that_travels():
    tensors = floats(1, 1, 2, 1)
    buckets = cut_into_buckets(tensors, 8, wire_dtype=lambda _: tf.float16)
    assert buckets == [[0, 1, 2], [3]]


def test_a_bucket_has_one_dtype():
    mixed = floats(1, dtype=tf.float16) + floats(1, 1)
    mixed += floats(1, dtype=tf.float16)
    # Ordered by their last tensors: the first bucket waits for the fourth.
    assert cut_into_buckets(mixed, 100) == [[1, 2], [0, 3]]


def test_tensor_of_unknown_shape_travels_alone():
    @tf.function
    def cut(unknown):
        one, other = floats(1, 1)
        buckets = cut_into_buckets([one, unknown, other], 100)
        assert buckets == [[0], [1], [2]]

    cut.get_concrete_function(tf.TensorSpec([None], tf.float32))


def test_no_bucket_is_most_of_the_whole():
    def specs(dtype):
        return [tf.TensorSpec([20 << 20], dtype)] * 2

    assert bucket_limits(specs(tf.float32), 64 << 20) == (1 << 20, 20 << 20)
    assert bucket_limits(specs(tf.float32), 8 << 20) == (1 << 20, 8 << 20)
    assert bucket_limits(specs(tf.float32), 0) == (0, 0)
    assert bucket_limits(floats(1), 64 << 20) == (1 << 20, 4 << 20)
    halves = bucket_limits(
        specs(tf.float32), 64 << 20, wire_dtype=lambda _: tf.float16
    )
    assert halves == (1 << 20, 10 << 20)


def test_groups_travel_together_by_dtype():
    mixed = floats(1, 1, 1) + floats(1, 1, dtype=tf.float16)
    assert cut_by_groups(mixed, [7, 3, 7, 7, 3]) == [[1], [0, 2], [3], [4]]
    assert cut_by_groups([], []) == []
