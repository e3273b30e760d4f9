"""reducescatter, alltoall and barrier against NumPy, on every rank."""

from __future__ import annotations

import time

import numpy as np
import pytest
import tensorflow as tf
from helpers import DTYPES, values_of, without_xla
from mpi4py import MPI

import tfring
from tfring._ops import chains


@without_xla
def test_reducescatter_of_every_number_of_rows(mode, rank, size):
    shapes = [(0,), (0, 3), (3, 0), (786_433,)]
    shapes += [(rows, 2, 3) for rows in range(1, 2 * size + 2)]

    def scatter(*tensors):
        return [tfring.reducescatter(t, op=tfring.Sum) for t in tensors]

    arrays = [[values_of(r, shape) for shape in shapes] for r in range(size)]
    results = mode(scatter)(*map(tf.constant, arrays[rank]))
    for i, result in enumerate(results):
        whole = sum(of_rank[i] for of_rank in arrays)
        expected = np.array_split(whole, size)[rank]
        assert result.shape == expected.shape
        np.testing.assert_array_equal(result, expected)


def test_reducescatter_knows_its_shape(rank, size):
    rows = 3 if rank == 0 else 2

    @tf.function
    def static(tensor):
        result = tfring.reducescatter(tensor)
        assert result.shape.as_list() == [rows, 3]
        return result

    @tf.function(input_signature=[tf.TensorSpec([None, 3])])
    def dynamic(tensor):
        result = tfring.reducescatter(tensor)
        assert result.shape.as_list() == [None, 3]
        return result

    ones = tf.ones([2 * size + 1, 3])
    assert static(ones).shape == dynamic(ones).shape == [rows, 3]


def split_of(sender, receiver):
    """How many rows a rank has for another; some have none."""
    return (sender + 2 * receiver) % 4


def alltoall_case(rank, size, dtype=tf.float32):
    """Returns a rank's rows, their splits, and its expected result."""
    parts = [
        [
            values_of(s * size + r, (split_of(s, r), 3), dtype)
            for r in range(size)
        ]
        for s in range(size)
    ]
    splits = [split_of(rank, r) for r in range(size)]
    received = [split_of(s, rank) for s in range(size)]
    rows = np.concatenate(parts[rank])
    return rows, splits, np.concatenate([p[rank] for p in parts]), received


@without_xla
def test_alltoall_of_every_dtype(mode, rank, size):
    alltoall = mode(tfring.alltoall)
    for dtype in DTYPES:
        rows, splits, expected, received = alltoall_case(rank, size, dtype)
        result, counts = alltoall(tf.constant(rows), tf.constant(splits))
        np.testing.assert_array_equal(result, expected)
        assert counts.dtype == tf.int32
        np.testing.assert_array_equal(counts, received)


@without_xla
def test_alltoall_is_even_by_default(mode, rank, size):
    alltoall = mode(tfring.alltoall)
    for rows in 0, 1, 3, 50_000:
        whole = np.arange(rows * size * 2).reshape(-1, 2)
        own = whole[rank * rows :][:rows]
        result = alltoall(tf.constant(whole * (rank + 1)))
        expected = np.concatenate([own * (r + 1) for r in range(size)])
        np.testing.assert_array_equal(result, expected)


def test_alltoall_with_splits_known_only_at_run_time(rank, size):
    @tf.function(
        input_signature=[tf.TensorSpec(None), tf.TensorSpec(None, tf.int64)]
    )
    def alltoall(tensor, splits):
        return tfring.alltoall(tensor, splits, name="late")

    if rank == 0:
        for tensor, splits in [
            (1.0, [1] * size),
            ([1.0] * size, [1] * (size + 1)),
            ([1.0] * size, [2] * size),
            ([1.0] * size, [-1] + [2] * (size - 1)),
        ]:
            with pytest.raises(
                tf.errors.InvalidArgumentError, match="alltoall"
            ):
                alltoall(tf.constant(tensor), tf.constant(splits, tf.int64))
    result, _ = alltoall(
        tf.fill([size], float(rank)), tf.ones([size], tf.int64)
    )
    np.testing.assert_array_equal(result, np.arange(size))


@without_xla
def test_no_rank_passes_a_barrier_before_the_last_has_come(mode, rank, size):
    @mode
    def wait():
        tfring.barrier()
        tfring.barrier(name="second")

    for _ in range(50):
        MPI.COMM_WORLD.Barrier()
        # One clock for all processes of a machine.
        came = time.monotonic()
        wait()
        went = time.monotonic()
        times = MPI.COMM_WORLD.allgather((came, went))
        assert min(went for _, went in times) >= max(came for came, _ in times)


def test_a_barrier_in_a_graph_of_tensorflow_1(session):
    assert session.run(tfring.barrier()) is None


@pytest.mark.xla
@pytest.mark.parametrize(
    "collective", [tfring.allgather, tfring.alltoall, tfring.reducescatter]
)
def test_xla_is_refused(collective):
    for call in (
        lambda: collective(tf.ones([tfring.size()])),
        tfring.barrier,
        tfring.join,
    ):
        with pytest.raises(NotImplementedError, match="jit_compile"):
            tf.function(call, jit_compile=True)()


def test_shapes_known_only_at_run_time_are_checked_then(rank, size):
    unknown = [tf.TensorSpec(None)]
    scatter = tf.function(tfring.reducescatter, input_signature=unknown)
    alltoall = tf.function(tfring.alltoall, input_signature=unknown)
    if rank == 0:
        for call in scatter, alltoall:
            with pytest.raises(tf.errors.InvalidArgumentError, match="scalar"):
                call(tf.constant(1.0))
        if size > 1:
            uneven = tf.ones([size + 1])
            with pytest.raises(tf.errors.InvalidArgumentError, match="evenly"):
                alltoall(uneven)
            with pytest.raises(ValueError, match="evenly"):
                tfring.alltoall(uneven)


@pytest.mark.parametrize(
    ("dtype", "prescale_factor"), [(tf.float16, 2.0), (tf.int64, 1.0)]
)
def test_in_place(mode, dtype, prescale_factor, rank, size):
    """A rank's share stays where it is in the whole tensor."""
    shapes = [(5 * size + 1, 30), (40_000 * size,), (1,), ()]
    arrays = [
        [values_of(r, shape, dtype, seed=i) for r in range(size)]
        for i, shape in enumerate(shapes)
    ]
    names = [f"tensor {i}" for i in range(len(shapes))]

    @mode
    def scatter_and_gather(*tensors):
        started = chains.start_scatter_in_place(
            tensors,
            request_name="scattered in place",
            tensor_names=names,
            op=tfring.Sum,
            prescale_factor=prescale_factor,
        )
        scattered = chains.finish(started)
        started = chains.start_gather_in_place(
            [2 * tensor for tensor in scattered],
            request_name="gathered in place",
            tensor_names=names,
        )
        return scattered, chains.finish(started)

    own = [tf.constant(of_ranks[rank]) for of_ranks in arrays]
    scattered, gathered = scatter_and_gather(*own)
    for tensor, of_ranks, part, whole in zip(
        own, arrays, scattered, gathered, strict=True
    ):
        expected = np.sum(of_ranks, 0) * int(prescale_factor)
        share = -(-expected.size // (size * 16)) * 16
        own_share = slice(rank * share, (rank + 1) * share)
        np.testing.assert_array_equal(
            part.numpy().ravel()[own_share], expected.ravel()[own_share]
        )
        np.testing.assert_array_equal(whole, 2 * expected)
        # A tensor with another use is not changed.
        np.testing.assert_array_equal(tensor, of_ranks[rank])
