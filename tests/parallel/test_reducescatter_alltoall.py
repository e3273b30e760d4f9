"""reducescatter, alltoall and barrier against NumPy, on every rank."""

from __future__ import annotations

import functools
import time

import numpy as np
import pytest
import tensorflow as tf
from mpi4py import MPI

import tfring
from tfring._ops import chains
from tfring._ops.reductions import SUPPORTED_DTYPES

DTYPES = sorted(SUPPORTED_DTYPES, key=lambda dtype: dtype.name)
MODES = ["eager", "graph"]


def each_mode(mode, function):
    return function if mode == "eager" else tf.function(function)


def values_of(rank, shape, dtype=tf.float32):
    """A rank's contribution: small whole numbers, exact in any dtype."""
    generator = np.random.default_rng(rank)
    if dtype == tf.bool:
        return generator.integers(0, 2, shape).astype(bool)
    lowest = 1 if dtype.is_unsigned else -3
    return generator.integers(lowest, 4, shape).astype(dtype.as_numpy_dtype)


def rows_of(rank, size, whole):
    """Splits rows as NumPy does: the first parts are the longer ones."""
    return np.array_split(whole, size)[rank]


def test_reducescatter_of_every_dtype_and_op(rank, size):
    for dtype in DTYPES:
        reductions = {
            tfring.Sum: np.any if dtype == tf.bool else np.sum,
            tfring.Min: np.min,
            tfring.Max: np.max,
            tfring.Product: np.prod,
        }
        arrays = [values_of(r, (3 * size + 1, 37), dtype) for r in range(size)]
        stacked = np.stack(arrays)
        if dtype.is_floating:
            stacked = stacked.astype(np.float64)
        for op, reduction in reductions.items():
            result = tfring.reducescatter(tf.constant(arrays[rank]), op=op)
            assert result.dtype == dtype
            expected = reduction(stacked, axis=0).astype(dtype.as_numpy_dtype)
            np.testing.assert_array_equal(
                result, rows_of(rank, size, expected), f"{op} of {dtype}"
            )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [tf.uint8, tf.float16, tf.float64])
def test_reducescatter_averages_and_scales(dtype, mode, rank, size):
    def scatter(tensor):
        return (
            tfring.reducescatter(tensor),
            tfring.reducescatter(
                tensor, op=tfring.Sum, prescale_factor=2, postscale_factor=0.5
            ),
        )

    arrays = [values_of(r, (2 * size, 5), dtype) for r in range(size)]
    total = sum(array.astype(np.float64) for array in arrays)
    own = rows_of(rank, size, total)
    average, scaled = each_mode(mode, scatter)(tf.constant(arrays[rank]))
    expected = np.trunc(own / size) if dtype.is_integer else own / size
    tolerance = 1e-2 if dtype == tf.float16 else 1e-12
    np.testing.assert_allclose(
        average.numpy().astype(np.float64), expected, rtol=tolerance
    )
    np.testing.assert_array_equal(scaled.numpy().astype(np.float64), own)


@pytest.mark.parametrize("mode", MODES)
def test_reducescatter_of_every_number_of_rows(mode, rank, size):
    shapes = [(0,), (0, 3), (3, 0), (786_433,)]
    shapes += [(rows, 2, 3) for rows in range(1, 2 * size + 2)]

    def scatter(*tensors):
        return [tfring.reducescatter(t, op=tfring.Sum) for t in tensors]

    arrays = [[values_of(r, shape) for shape in shapes] for r in range(size)]
    results = each_mode(mode, scatter)(*map(tf.constant, arrays[rank]))
    for i, result in enumerate(results):
        whole = sum(of_rank[i] for of_rank in arrays)
        expected = rows_of(rank, size, whole)
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


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("op", [tfring.Average, tfring.Sum])
def test_gradient_of_reducescatter(op, mode, rank, size):
    rows = 2 * size + 1
    # Every rank's loss weighs its rows with its own weights.
    weights = [
        np.arange(len(own) * 3).reshape(-1, 3) + 10.0 * r
        for r, own in enumerate(np.array_split(np.zeros(rows), size))
    ]

    def gradients(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tfring.reducescatter(
                x, op=op, prescale_factor=2.0, postscale_factor=3.0
            )
            loss = tf.reduce_sum(y * weights[rank])
        return tape.gradient(loss, x)

    expected = 6 * np.concatenate(weights)
    if op is tfring.Sum:
        expected *= size
    result = each_mode(mode, gradients)(tf.ones([rows, 3], tf.float64))
    assert result.shape == [rows, 3]
    np.testing.assert_allclose(result, expected)


@pytest.mark.parametrize("mode", MODES)
def test_gradient_is_that_of_the_allreduce_it_is_half_of(mode, rank, size):
    def gradients(x):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            halves = tfring.allgather(tfring.reducescatter(x**2))
            whole = tfring.allreduce(x**2)
            losses = [
                tf.reduce_sum(y**2) * (rank + 1.0) for y in (halves, whole)
            ]
        return [tape.gradient(loss, x) for loss in losses]

    x = tf.constant(np.arange(size + 1) + rank + 1.0)
    by_halves, at_once = each_mode(mode, gradients)(x)
    np.testing.assert_allclose(by_halves, at_once)


def test_other_reductions_have_no_gradient(size):
    with tf.GradientTape() as tape:
        x = tf.ones([size])
        tape.watch(x)
        y = tfring.reducescatter(x, op=tfring.Max, name="extreme")
    with pytest.raises(NotImplementedError, match=r"'extreme'.*Max"):
        tape.gradient(y, x)


def split_of(sender, receiver):
    """How many rows a rank has for another; some have none."""
    return (sender + 2 * receiver) % 4


def alltoall_case(rank, size, dtype=tf.float32):
    """A rank's rows, their splits, and what it must get."""
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


@pytest.mark.parametrize("mode", MODES)
def test_alltoall_of_every_dtype(mode, rank, size):
    alltoall = each_mode(mode, tfring.alltoall)
    for dtype in DTYPES:
        rows, splits, expected, received = alltoall_case(rank, size, dtype)
        result, counts = alltoall(tf.constant(rows), tf.constant(splits))
        np.testing.assert_array_equal(result, expected)
        assert counts.dtype == tf.int32
        np.testing.assert_array_equal(counts, received)


@pytest.mark.parametrize("mode", MODES)
def test_alltoall_is_even_by_default(mode, rank, size):
    alltoall = each_mode(mode, tfring.alltoall)
    for rows in 0, 1, 3, 50_000:
        whole = np.arange(rows * size * 2).reshape(-1, 2)
        own = whole[rank * rows :][:rows]
        result = alltoall(tf.constant(whole * (rank + 1)))
        expected = np.concatenate([own * (r + 1) for r in range(size)])
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("mode", MODES)
def test_gradient_of_alltoall(mode, rank, size):
    def gradient(x, splits):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y, _ = tfring.alltoall(x, splits)
            loss = tf.reduce_sum(y**2) * (rank + 1.0)
        return tape.gradient(loss, x)

    rows, splits, _, _ = alltoall_case(rank, size, tf.float64)
    result = each_mode(mode, gradient)(tf.constant(rows), tf.constant(splits))
    factors = np.repeat(np.arange(1.0, size + 1), splits)[:, np.newaxis]
    np.testing.assert_allclose(result, 2 * rows * factors)


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


@pytest.mark.parametrize("mode", MODES)
def test_no_rank_passes_a_barrier_before_the_last_has_come(mode, rank, size):
    @functools.partial(each_mode, mode)
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


def test_a_barrier_in_a_graph_of_tensorflow_1():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        assert session.run(tfring.barrier()) is None


def split_badly(first):
    return tfring.alltoall([1.0], [first] + [0] * (tfring.size() - 1))


def test_rows_that_cannot_be_split_evenly(rank, size):
    if rank == 0 and size > 1:
        with pytest.raises(ValueError, match="evenly"):
            tfring.alltoall(tf.ones([size + 1]))


def test_xla_is_refused():
    compiled = tf.function(tfring.reducescatter, jit_compile=True)
    with pytest.raises(NotImplementedError, match="jit_compile"):
        compiled(tf.ones([4]))
    with pytest.raises(NotImplementedError, match="jit_compile"):
        tf.function(tfring.barrier, jit_compile=True)()
    with pytest.raises(NotImplementedError, match="jit_compile"):
        tf.function(tfring.alltoall, jit_compile=True)(tf.ones([tfring.size()]))


@pytest.mark.parametrize(
    ("error", "words", "call"),
    [
        (ValueError, "scalar", lambda: tfring.reducescatter(1.0)),
        (TypeError, "op must", lambda: tfring.reducescatter([1.0], op="sum")),
        (TypeError, "string", lambda: tfring.reducescatter(["a"])),
        (ValueError, "bool", lambda: tfring.reducescatter([True])),
        (TypeError, "name", lambda: tfring.barrier(name="")),
        (ValueError, "scalar", lambda: tfring.alltoall(1.0)),
        (TypeError, "string", lambda: tfring.alltoall(["a"])),
        (TypeError, "integers", lambda: tfring.alltoall([1.0], [1.0])),
        (ValueError, "shape", lambda: tfring.alltoall([1.0], [[1]])),
        (ValueError, "1 in all", lambda: split_badly(2)),
        (
            tf.errors.InvalidArgumentError,
            "shape",
            lambda: tfring.alltoall([1.0], [[1]]),
        ),
        (
            tf.errors.InvalidArgumentError,
            "1 in all",
            lambda: split_badly(2),
        ),
        (ValueError, "negative", lambda: split_badly(-1)),
        (
            TypeError,
            "factor",
            lambda: tfring.reducescatter([1.0], postscale_factor="2"),
        ),
    ],
)
def test_bad_arguments_raise_before_anything_starts(
    error, words, call, rank, size
):
    # On one rank alone: the others do not wait for it.
    if rank == 0:
        with pytest.raises(error, match=words):
            call()
    result = tfring.reducescatter(tf.ones([size]), op=tfring.Max)
    assert result.numpy().tolist() == [1]


def test_shapes_known_only_at_run_time_are_checked_then(rank, size):
    unknown = [tf.TensorSpec(None)]
    scatter = tf.function(tfring.reducescatter, input_signature=unknown)
    alltoall = tf.function(tfring.alltoall, input_signature=unknown)
    if rank == 0:
        for call in scatter, alltoall:
            with pytest.raises(tf.errors.InvalidArgumentError, match="scalar"):
                call(tf.constant(1.0))
        if size > 1:
            with pytest.raises(tf.errors.InvalidArgumentError, match="evenly"):
                alltoall(tf.ones([size + 1]))


@pytest.mark.parametrize("mode", ["eager", "graph", "xla"])
@pytest.mark.parametrize(
    ("dtype", "prescale_factor"), [(tf.float16, 2.0), (tf.int64, 1.0)]
)
def test_in_place(mode, dtype, prescale_factor, rank, size):
    """A rank's share stays where it is in the whole tensor."""
    shapes = [(5 * size + 1, 30), (40_000 * size,), (1,), ()]
    arrays = [
        [values_of(r + 10 * i, shape, dtype) for r in range(size)]
        for i, shape in enumerate(shapes)
    ]
    names = [f"tensor {i}" for i in range(len(shapes))]

    def scatter_and_gather(*tensors):
        buffers, started = chains.start_scatter_in_place(
            tensors,
            request_name="scattered in place",
            tensor_names=names,
            previous=None,
            op=tfring.Sum,
            prescale_factor=prescale_factor,
        )
        scattered = chains.finish(buffers, started)
        buffers, started = chains.start_gather_in_place(
            [2 * tensor for tensor in scattered],
            request_name="gathered in place",
            tensor_names=names,
            previous=None,
        )
        return scattered, chains.finish(buffers, started)

    if mode != "eager":
        scatter_and_gather = tf.function(
            scatter_and_gather, jit_compile=mode == "xla"
        )
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
        # Only what nothing else uses is changed.
        np.testing.assert_array_equal(tensor, of_ranks[rank])
