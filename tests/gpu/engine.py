"""The engine on GPU memory, several ranks on one GPU, without TensorFlow.

validate.py runs it with IPC between the GPUs, and without: in pinned host
memory.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import bare_gpu

COUNTS = (1, 7, 1000, 20_000_003)  # the last in several segments of every rank


def parts(world, count: int, dtype: np.dtype, seed: int = 0) -> list:
    """Each rank's tensor: small whole numbers, so that all sums are exact."""
    return [
        np.random.default_rng([seed, rank]).integers(0, 8, count).astype(dtype)
        for rank in range(world.size)
    ]


@pytest.mark.parametrize("dtype", bare_gpu.DTYPES)
def test_sum_of_each_dtype(gpu, world, dtype):
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    every = parts(world, 5000, kind)
    memory = gpu.array(every[world.rank])
    gpu.allreduce(f"of {dtype}", [memory.address], [5000], dtype)
    total = np.sum([part.astype(np.float64) for part in every], axis=0)
    expected = total.astype(kind)
    np.testing.assert_array_equal(memory.get(every[0]), expected)


@pytest.mark.parametrize(
    ("op", "of_all"),
    [
        ("average", np.mean),
        ("min", np.min),
        ("max", np.max),
        ("product", np.prod),
    ],
)
def test_each_operation(gpu, world, op, of_all):
    every = parts(world, 5000, np.float64)
    memory = gpu.array(every[world.rank])
    gpu.allreduce(f"by {op}", [memory.address], [5000], "float64", op)
    np.testing.assert_allclose(
        memory.get(every[0]), of_all(every, axis=0), rtol=1e-15
    )


@pytest.mark.parametrize("count", COUNTS)
def test_each_size_again_and_again(gpu, world, count):
    for step in range(5):
        every = parts(world, count, np.float32, step)
        memory = gpu.array(every[world.rank])
        gpu.allreduce(f"of {count}", [memory.address], [count])
        np.testing.assert_array_equal(memory.get(every[0]), sum(every))


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_many_tensors_are_packed(gpu, world, factor):
    counts = [1 + 37 * (i % 11) for i in range(120)]
    every = parts(world, sum(counts), np.float32)
    pieces = np.split(every[world.rank], np.cumsum(counts)[:-1])
    memory = [gpu.array(piece) for piece in pieces]
    gpu.allreduce(
        f"packed by {factor}",
        [tensor.address for tensor in memory],
        counts,
        prescale_factor=factor,
    )
    results = [
        tensor.get(piece) for tensor, piece in zip(memory, pieces, strict=True)
    ]
    np.testing.assert_array_equal(np.concatenate(results), factor * sum(every))


def test_ranks_that_disagree_are_told_and_go_on(gpu, world):
    if world.size == 1:
        return
    count = 10 + world.rank
    memory = gpu.array(np.zeros(count, np.float32))
    with pytest.raises(bare_gpu.GpuError, match="shapes differ"):
        gpu.allreduce("unequal", [memory.address], [count])
    test_each_size_again_and_again(gpu, world, 1000)
