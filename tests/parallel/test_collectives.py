"""The collectives against NumPy: eagerly, in graphs and under XLA."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import numpy as np
import pytest
import tensorflow as tf
from helpers import DTYPES, MODES, NUMPY_REDUCTIONS, values_of, without_xla
from mpi4py import MPI

import tfring
from tfring._ops import chains

OPS = [op for op in tfring.ReduceOp if op is not tfring.Adasum]


def expected_of(op, arrays):
    stacked = np.stack(arrays)
    if stacked.dtype == bool:
        either = op in (tfring.Sum, tfring.Max)
        return stacked.any(axis=0) if either else stacked.all(axis=0)
    return NUMPY_REDUCTIONS[op](stacked.astype(np.float64), axis=0)


def check(result, op, arrays, part_of=None):
    """Holds a result, or a rank's part of it, against NumPy's."""
    expected = expected_of(op, arrays)
    if part_of is not None:
        expected = part_of(expected)
    result = result.numpy()
    assert result.dtype == arrays[0].dtype
    what = f"{op} of {result.dtype}"
    if op is not tfring.Average:
        np.testing.assert_array_equal(
            result.astype(expected.dtype), expected, what
        )
    elif np.issubdtype(result.dtype, np.integer):
        np.testing.assert_array_equal(result, np.trunc(expected), what)
    else:
        tolerance = 1e-6 if result.dtype.itemsize >= 4 else 1e-2
        np.testing.assert_allclose(
            result.astype(np.float64), expected, tolerance, err_msg=what
        )
    if part_of is None:  # To the bit, whatever the rounding.
        everywhere = MPI.COMM_WORLD.allgather(result.tobytes())
        assert len(set(everywhere)) == 1


@pytest.mark.parametrize(
    ("collective", "mode"),
    [
        *((tfring.allreduce, mode) for mode in MODES),
        *((tfring.reducescatter, mode) for mode in ("eager", "graph")),
    ],
    indirect=["mode"],
)
def test_every_dtype_and_op(collective, mode, rank, size):
    cases = [
        (dtype, op)
        for dtype in DTYPES
        for op in OPS
        if op is not tfring.Average or dtype != tf.bool
    ]

    def reduce(tensors):
        return [collective(tensors[d.name], op=op) for d, op in cases]

    part_of = None
    if collective is tfring.reducescatter:
        part_of = lambda whole: np.array_split(whole, size)[rank]  # noqa: E731
    # No number of ranks shares out the rows evenly.
    arrays = [
        {dtype.name: values_of(r, (size + 1, 37), dtype) for dtype in DTYPES}
        for r in range(size)
    ]
    own = {name: tf.constant(array) for name, array in arrays[rank].items()}
    for (dtype, op), result in zip(cases, mode(reduce)(own), strict=True):
        check(result, op, [of_rank[dtype.name] for of_rank in arrays], part_of)


def test_allreduce_of_every_size(mode, rank, size):
    shapes = [(), (0,), (0, 3), (1,), (2,), (7,), (1000,), (4097,), (786433,)]

    def reduce(*tensors):
        return [tfring.allreduce(tensor) for tensor in tensors]

    arrays = [
        [values_of(r, s, seed=i) for i, s in enumerate(shapes)]
        for r in range(size)
    ]
    results = mode(reduce)(*map(tf.constant, arrays[rank]))
    for i, result in enumerate(results):
        assert result.shape == shapes[i]
        check(result, tfring.Average, [of_rank[i] for of_rank in arrays])


def test_scale_factors_keep_all_64_bits(mode, rank, size):
    before, after = np.nextafter(1 / 3, 1), np.nextafter(1e-300, 1)

    def reduce(tensor):
        return tfring.allreduce(
            tensor,
            op=tfring.Max,
            prescale_factor=before,
            postscale_factor=after,
        )

    result = mode(reduce)(tf.constant([rank + 0.1], tf.float64))
    assert result.numpy()[0] == (size - 1 + 0.1) * before * after


def test_inputs_stay_as_they_are(rank):
    tensor = tf.fill([5], rank + 1.0)
    variable = tf.Variable(tensor)

    @tf.function
    def reduce(argument):
        computed = argument * 2
        summed = tfring.allreduce(computed, op=tfring.Sum)
        return computed, summed, tfring.allreduce(variable, op=tfring.Sum)

    tfring.allreduce(tensor, op=tfring.Sum)
    tfring.broadcast(tensor, 0)
    computed, _, _ = reduce(tensor)
    np.testing.assert_array_equal(tensor, np.full(5, rank + 1.0))
    np.testing.assert_array_equal(variable, np.full(5, rank + 1.0))
    np.testing.assert_array_equal(computed, np.full(5, 2 * (rank + 1.0)))


@without_xla
def test_allgather_of_different_lengths(mode, rank, size):
    # Rank 0 has no rows at all.
    arrays = [values_of(r, (2 * r, 3)) for r in range(size)]
    gather = mode(tfring.allgather)
    result = gather(tf.constant(arrays[rank]))
    np.testing.assert_array_equal(result, np.concatenate(arrays))


def test_allgather_knows_its_shape_but_for_the_rows():
    @tf.function
    def gather(tensor):
        gathered = tfring.allgather(tensor)
        assert gathered.shape.as_list() == [None, 3]
        return gathered

    gather(tf.ones([2, 3]))


def test_broadcast_of_every_dtype_from_every_root(mode, rank, size):
    def broadcast(*tensors):
        return [
            [tfring.broadcast(tensor, root) for tensor in tensors]
            for root in range(size)
        ]

    arrays = [
        [values_of(r, (2, 5), dtype) for dtype in DTYPES] for r in range(size)
    ]
    results = mode(broadcast)(*map(tf.constant, arrays[rank]))
    for of_root, expected in zip(results, arrays, strict=True):
        for result, array in zip(of_root, expected, strict=True):
            assert result.dtype == array.dtype
            np.testing.assert_array_equal(result, array)


@pytest.mark.parametrize("op", [tfring.Average, tfring.Sum])
def test_allreduce_of_indexed_slices(mode, op, rank, size):
    def reduce(values, indices):
        slices = tf.IndexedSlices(values, indices, tf.constant([10, 4]))
        reduced = tfring.allreduce(slices, op=op, prescale_factor=0.5)
        # Dense under XLA, where shapes are static.
        is_dense = mode is MODES["xla"]
        assert isinstance(reduced, tf.IndexedSlices) != is_dense
        return tf.convert_to_tensor(reduced)

    def slices_of(r):
        return values_of(r, (r + 1, 4)), np.arange(r + 1) * 2

    dense = np.zeros((10, 4), np.float32)
    for r in range(size):
        values, indices = slices_of(r)
        np.add.at(dense, indices, values * 0.5)
    if op is tfring.Average:
        dense /= size
    result = mode(reduce)(*map(tf.constant, slices_of(rank)))
    np.testing.assert_allclose(result, dense, rtol=1e-6)


def test_calls_from_threads_in_any_order(rank, size):
    count = 24
    order = random.Random(rank).sample(range(count), count)

    def reduce(i):
        tensor = tf.constant([i, rank])
        return i, tfring.allreduce(tensor, op=tfring.Sum, name=f"threads/{i}")

    # A call blocks until all ranks have made it, so each name has a thread.
    with ThreadPoolExecutor(count) as pool:
        for i, result in pool.map(reduce, order):
            assert result.numpy().tolist() == [i * size, sum(range(size))]


def test_failure_leaves_nothing_of_its_chain_in_flight(
    mode, several_ranks, rank, size
):
    # With a dozen collectives, XLA does not run them in sequence.
    def step(first):
        started = None
        in_flight = []
        for i in range(12):
            started = chains.start_allreduce(
                [first if i == 0 else tf.fill([100_000 + i], first[0])],
                request_name=f"failing_chain/{i}",
                tensor_names=[f"failing_chain/{i}"],
                previous=started,
                op=tfring.Sum,
                last=i == 11,
            )
            in_flight.append(started)
        return [chains.finish(started)[0] for started in in_flight]

    step = mode(step)
    for _ in range(5):
        with pytest.raises(
            tf.errors.FailedPreconditionError, match="'failing_chain/0'"
        ):
            step(tf.ones([3 + rank]))
        for result in step(tf.ones([2])):
            assert np.all(result == size)


def split_badly(first):
    return tfring.alltoall([1.0], [first] + [0] * (tfring.size() - 1))


OF_ROWS = tfring.allgather, tfring.reducescatter, tfring.alltoall
SLICES = tf.IndexedSlices([[1, 2]], [0])
COMPLEX = tf.ones(2, tf.complex64)


@pytest.mark.parametrize(
    ("error", "words", "call"),
    [
        (TypeError, "complex64", lambda: tfring.allreduce(COMPLEX)),
        (TypeError, "string", lambda: tfring.broadcast(tf.constant("a"), 0)),
        *(
            (TypeError, "string", lambda call=call: call(tf.constant(["a"])))
            for call in OF_ROWS
        ),
        *(
            (ValueError, "scalar", lambda call=call: call(1.0))
            for call in OF_ROWS
        ),
        *(
            (error, words, lambda call=call, given=given: call([1.0], **given))
            for call in (tfring.allreduce, tfring.reducescatter)
            for error, words, given in (
                (TypeError, "tfring.Average", {"op": "sum"}),
                (TypeError, "factor", {"prescale_factor": "2"}),
                (TypeError, "factor", {"postscale_factor": Decimal(1)}),
                (TypeError, "name", {"name": 3}),
                (TypeError, "name", {"name": ""}),
            )
        ),
        (TypeError, "name", lambda: tfring.barrier(name="")),
        (TypeError, "root_rank", lambda: tfring.broadcast(1.0, 0.0)),
        (ValueError, "root_rank", lambda: tfring.broadcast(1.0, -1)),
        (ValueError, "root_rank", lambda: tfring.broadcast(1.0, tfring.size())),
        (TypeError, "list", lambda: tfring.grouped_allreduce(tf.ones(2))),
        (TypeError, "list", lambda: tfring.grouped_allgather(tf.ones(2))),
        (ValueError, "scalar", lambda: tfring.grouped_allgather([[1.0], 1.0])),
        (
            ValueError,
            "only one",
            lambda: tfring.allreduce(1.0, average=False, op=tfring.Sum),
        ),
        (ValueError, "bool", lambda: tfring.allreduce(tf.constant(True))),
        (ValueError, "bool", lambda: tfring.reducescatter([True])),
        (TypeError, "integers", lambda: tfring.alltoall([1.0], [1.0])),
        (ValueError, "negative", lambda: split_badly(-1)),
        *(
            (error, words, call)
            for error in (ValueError, tf.errors.InvalidArgumentError)
            for words, call in (
                ("shape", lambda: tfring.alltoall([1.0], [[1]])),
                ("1 in all", lambda: split_badly(2)),
            )
        ),
        *(
            (
                NotImplementedError,
                "IndexedSlices",
                lambda op=op, call=call: call(op=op),
            )
            for op in (tfring.Adasum, tfring.Max)
            for call in (
                lambda op: tfring.allreduce(SLICES, op=op),
                lambda op: tfring.grouped_allreduce([SLICES], op=op),
            )
        ),
    ],
)
def test_bad_arguments_raise_before_anything_starts(
    error, words, call, rank, size
):
    # Only rank 0 calls it: no rank waits for the call, and it does not count as
    # a call without a name.
    if rank == 0:
        with pytest.raises(error, match=words):
            call()
    assert tfring.allreduce(size, op=tfring.Max) == size


def test_automatic_names_do_not_depend_on_the_number_of_traces(rank, size):
    def step(tensor):
        return tfring.allreduce(tensor, op=tfring.Sum) + tfring.allreduce(
            tensor * 2, op=tfring.Sum
        )

    traced = tf.function(step)
    if rank == 0:
        for length in range(1, 4):
            traced.get_concrete_function(tf.TensorSpec([length]))
    assert traced(tf.ones([5])).numpy().tolist() == [3.0 * size] * 5
