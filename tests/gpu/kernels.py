"""Each kernel on a GPU, against NumPy.  One rank, without TensorFlow."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import bare_gpu

FLOATS = ("float16", "bfloat16", "float32", "float64")
HALVES = ("float16", "bfloat16")
# None, one, less than a vector of 16 bytes, and more than all threads at once.
COUNTS = (0, 1, 3, 1000, 600_001)
# Two of the three operands begin in the middle of such a vector.
OFFSETS = (0, 1, 3)


def numpy_dtype(dtype: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def some(dtype: str, count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    kind = numpy_dtype(dtype)
    if dtype == "bool":
        return rng.integers(0, 2, count).astype(kind)
    if dtype in FLOATS:
        return rng.normal(size=count).astype(kind)
    limits = np.iinfo(kind)
    return rng.integers(limits.min, limits.max, count, kind, endpoint=True)


def bits(array: np.ndarray) -> np.ndarray:
    return array.view(f"u{array.itemsize}")


def place(gpu: bare_gpu.Gpu, array: np.ndarray, offset: int):
    """Returns memory, and where in it `array` is: after `offset` elements."""
    skipped = offset * array.itemsize
    memory = gpu.memory(skipped + array.nbytes)
    memory.put(array, skipped)
    return memory, memory.address + skipped


def reduced(a: np.ndarray, b: np.ndarray, dtype: str, op: str) -> np.ndarray:
    if dtype == "bool":
        return a & b if op in ("min", "product") else a | b
    function = {
        "average": np.add,
        "sum": np.add,
        "min": np.minimum,
        "max": np.maximum,
        "product": np.multiply,
    }[op]
    if dtype in HALVES:
        wide = function(a.astype(np.float32), b.astype(np.float32))
        return wide.astype(a.dtype)
    return function(a, b)


@pytest.mark.parametrize("op", bare_gpu.OPS)
@pytest.mark.parametrize("dtype", bare_gpu.DTYPES)
def test_reduce(gpu, dtype, op):
    for count in COUNTS:
        a, b = some(dtype, count, 1), some(dtype, count, 2)
        (_x, at_a), (_y, at_b), (to, at_dst) = (
            place(gpu, array, offset)
            for array, offset in zip((a, b, a), OFFSETS, strict=True)
        )
        gpu.reduce(at_dst, at_a, at_b, count, dtype, op)
        result = to.get(a, OFFSETS[2] * a.itemsize)
        expected = reduced(a, b, dtype, op)
        np.testing.assert_array_equal(bits(result), bits(expected))


@pytest.mark.parametrize("dtype", bare_gpu.DTYPES)
def test_reduce_in_place(gpu, dtype):
    a, b = some(dtype, 1000, 1), some(dtype, 1000, 2)
    x, y = gpu.array(a), gpu.array(b)
    gpu.reduce(x.address, x.address, y.address, a.size, dtype, "sum")
    np.testing.assert_array_equal(
        bits(x.get(a)), bits(reduced(a, b, dtype, "sum"))
    )


def scaled(a: np.ndarray, dtype: str, factor: float) -> np.ndarray:
    if dtype == "bool":
        return a
    if dtype in HALVES:  # by way of float, as everywhere
        wide = a.astype(np.float64) * factor
        return wide.astype(np.float32).astype(a.dtype)
    wide = a.astype(np.float64) * factor
    if dtype in FLOATS:
        return wide.astype(a.dtype)
    limits = np.iinfo(a.dtype)
    # The ends of the range as doubles may be beyond it.
    whole = [int(value) for value in np.trunc(wide)]
    return np.array(
        [min(max(value, limits.min), limits.max) for value in whole], a.dtype
    )


@pytest.mark.parametrize("factor", [0.25, -3.0, 1 / 3])
@pytest.mark.parametrize("dtype", bare_gpu.DTYPES)
def test_scale(gpu, dtype, factor):
    for count in COUNTS[:-1]:
        a = some(dtype, count, 1)
        (_x, at_a), (to, at_dst) = place(gpu, a, 1), place(gpu, a, 0)
        gpu.scale(at_dst, at_a, count, dtype, factor)
        np.testing.assert_array_equal(
            bits(to.get(a)), bits(scaled(a, dtype, factor))
        )


def test_copy(gpu):
    for count in COUNTS:
        a = some("uint8", count, 1)
        (_x, at_a), (to, at_dst) = place(gpu, a, 1), place(gpu, a, 3)
        gpu.copy(at_dst, at_a, a.nbytes)
        np.testing.assert_array_equal(to.get(a, 3), a)


@pytest.mark.parametrize("dtype", bare_gpu.DTYPES)
def test_pack_and_unpack(gpu, dtype):
    counts = [1 + 37 * (i % 11) for i in range(120)]
    a = some(dtype, sum(counts), 1)
    begins = np.cumsum([0, *counts[:-1]])
    pieces = [gpu.array(piece) for piece in np.split(a, begins[1:])]
    scattered = [piece.address for piece in pieces]
    packed = gpu.memory(a.nbytes)
    places = [packed.address + int(begin) * a.itemsize for begin in begins]
    gpu.copy_pieces(places, scattered, counts, dtype)
    np.testing.assert_array_equal(bits(packed.get(a)), bits(a))
    packed.put(a[::-1])
    gpu.copy_pieces(scattered, places, counts, dtype)
    for piece, expected in zip(
        pieces, np.split(a[::-1].copy(), begins[1:]), strict=True
    ):
        np.testing.assert_array_equal(bits(piece.get(expected)), bits(expected))


@pytest.mark.parametrize("dtype", FLOATS)
def test_adasum(gpu, dtype):
    a, b = some(dtype, 5000, 1), some(dtype, 5000, 2)
    x, y = gpu.array(a), gpu.array(b)
    gpu.adasum(x.address, x.address, y.address, a.size, dtype)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    dot = wide_a @ wide_b
    expected = (1 - dot / (2 * wide_a @ wide_a)) * wide_a
    expected += (1 - dot / (2 * wide_b @ wide_b)) * wide_b
    np.testing.assert_allclose(
        x.get(a).astype(np.float64),
        expected,
        rtol=2 * float(ml_dtypes.finfo(a.dtype).eps),
        atol=1e-6 if dtype != "float64" else 1e-12,
    )


def test_memory_that_there_is_not_is_an_error(gpu):
    with pytest.raises(bare_gpu.GpuError, match=r"OUT_OF_MEMORY|INVALID_VALUE"):
        gpu.memory(1 << 50)
    a = np.arange(10, dtype=np.float32)
    np.testing.assert_array_equal(gpu.array(a).get(a), a)


def test_an_unknown_gpu_is_an_error():
    handle = bare_gpu.ctypes.c_void_p()
    sentence = bare_gpu.library().tfring_gpu_open(
        1000, bare_gpu.ctypes.byref(handle)
    )
    assert b"no GPU 1000" in sentence
