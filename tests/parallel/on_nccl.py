"""Tensors on GPUs, each rank with its own, by NCCL or by a fake one.

`make gpu` runs it with TFRING_GPU_BACKEND=nccl. The order of streams is
shown by tests/cpp/cuda_nccl_races_test.cc.
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import time
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

import tfring


def _collectives_of_nccl() -> int | None:
    """How many the fake NCCL has done in this process; None for a real one."""
    try:
        find = ctypes.CDLL("libnccl.so.2").FakeNcclOptions
    except (OSError, AttributeError):
        return None
    # The seventh of those in tests/gpu/fake/nccl/fake_nccl.h.
    find.restype = ctypes.POINTER(ctypes.c_int * 7)
    return int(find().contents[6])


def _is_by_nccl(collective: Callable[[], object]) -> bool:
    before = _collectives_of_nccl()
    collective()
    return before is None or _collectives_of_nccl() != before


def _rows(count: int, rank: int, dtype: object = np.float32) -> tf.Tensor:
    values = np.arange(count * 3).reshape(count, 3) + rank
    return tf.identity(tf.constant(values.astype(dtype)))


def test_who_does_what():
    x = _rows(8, 0)
    assert tfring.nccl_built() > 0
    assert _is_by_nccl(lambda: tfring.allreduce(x))
    assert _is_by_nccl(lambda: tfring.grouped_allreduce([x, x]))
    assert _is_by_nccl(lambda: tfring.allgather(x))
    assert _is_by_nccl(lambda: tfring.broadcast(x, 0))
    assert _is_by_nccl(lambda: tfring.reducescatter(x, op=tfring.Sum))
    if _collectives_of_nccl() is not None:
        small = tf.cast(x, tf.int16)
        for collective in (
            lambda: tfring.allreduce(small, op=tfring.Sum),
            lambda: tfring.alltoall(tf.tile(x, [tfring.size(), 1])),
            lambda: tfring.allreduce(x, op=tfring.Adasum),
        ):
            assert not _is_by_nccl(collective)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int64, np.int16])
@pytest.mark.parametrize("mode", ["eager", "function"])
def test_values(dtype, mode, rank, size):
    def collectives(x):
        return (
            tfring.allreduce(x, op=tfring.Sum),
            tfring.allreduce(x, op=tfring.Max),
            tfring.allreduce(x, op=tfring.Average, postscale_factor=2.0),
            tfring.allgather(x[: rank + 1]),  # ragged
            tfring.reducescatter(x, op=tfring.Sum),  # 7 rows: uneven
            tfring.broadcast(x, size - 1),
        )

    run = collectives if mode == "eager" else tf.function(collectives)
    results = [result.numpy() for result in run(_rows(7, rank, dtype))]
    parts = [_rows(7, r, dtype).numpy() for r in range(size)]
    total = sum(part.astype(np.int64) for part in parts)
    lengths = [7 // size + (r < 7 % size) for r in range(size)]
    first = sum(lengths[:rank])
    double = total.astype(np.float64) * 2 / size
    if np.issubdtype(dtype, np.integer):
        double = np.trunc(double)
    expected = [
        total,
        np.max(parts, axis=0),
        double.astype(dtype),
        np.concatenate([part[: r + 1] for r, part in enumerate(parts)]),
        total[first : first + lengths[rank]],
        parts[-1],
    ]
    for result, right in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, right, rtol=1e-3)


def test_process_sets_have_communicators_of_their_own(
    several_ranks, sets_of_one, rank, size
):
    x = _rows(5, rank)
    for _ in range(3):
        total = tfring.allreduce(x, op=tfring.Sum)
        own = tfring.allreduce(x, op=tfring.Sum, process_set=sets_of_one[rank])
        np.testing.assert_array_equal(own, x)
        np.testing.assert_array_equal(
            total, sum(_rows(5, r).numpy() for r in range(size))
        )


def test_process_sets_that_share_gpus_launch_in_one_order(
    several_ranks, sets, rank, size
):
    [most] = sets(range(size - 1))
    x = _rows(5, rank)

    def reduce(name, process_set):
        if not process_set.included():
            return
        total = sum(_rows(5, r).numpy() for r in process_set.ranks)
        # Each rank is late now with this one and now with that.
        pauses = np.random.default_rng([rank, process_set.process_set_id])
        for step in range(10):
            time.sleep(pauses.uniform(0, 0.01))
            result = tfring.allreduce(
                x,
                op=tfring.Sum,
                process_set=process_set,
                name=f"{name} {step}",
            )
            np.testing.assert_array_equal(result, total)

    with concurrent.futures.ThreadPoolExecutor() as threads:
        runs = [
            threads.submit(reduce, "all", tfring.global_process_set),
            threads.submit(reduce, "most", most),
        ]
        for run in runs:
            run.result()


def test_ranks_that_have_joined(rank, size):
    if rank == 0:
        for step in range(3):
            mean = tfring.allreduce(tf.fill([4], np.float32(step)))
            np.testing.assert_array_equal(mean, np.full(4, step))
    assert tfring.join() == (0 if size > 1 else rank)
