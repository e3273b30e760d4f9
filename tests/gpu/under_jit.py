"""The custom calls that TensorFlow's XLA makes, by JAX's, without TensorFlow.

On the CPU, and on the GPU where JAX has one. JAX knows no fake GPU: there the
handlers for CUDA are called by tests/cpp/mpi_cuda_ffi_test.cc alone.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bare_jax

SIZES = (3, 1000, 70_001)


@pytest.fixture(params=bare_jax.PLATFORMS)
def platform(request, world):
    """A platform of JAX; the test computes on its first device."""
    if request.param not in {jax.default_backend(), "cpu"}:
        pytest.skip(f"this JAX has no {request.param}")
    with jax.default_device(jax.devices(request.param)[0]):
        yield request.param


def own(world, size: int) -> np.ndarray:
    """Returns whole numbers, so that sums are exact."""
    numbers = np.random.default_rng([world.rank, size]).integers(0, 8, size)
    return numbers.astype(np.float32)


def every(world, size: int) -> list[np.ndarray]:
    return world.allgather(own(world, size))


@pytest.mark.parametrize("op", ["sum", "max"])
def test_in_a_step(world, platform, op):
    """The step reduces a computed value and computes with the result."""

    @jax.jit
    def step(tensors):
        doubled = [2 * tensor for tensor in tensors]
        [reduced] = bare_jax.allreduce([doubled], f"of {op}", platform, op)
        return [tensor + 1 for tensor in reduced]

    tensors = [own(world, size) for size in SIZES]
    of_all = {"sum": np.sum, "max": np.max}[op]
    for _ in range(5):
        results = step([jnp.asarray(tensor) for tensor in tensors])
        for size, result in zip(SIZES, results, strict=True):
            expected = 2 * of_all(every(world, size), axis=0) + 1
            np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("steps", [1, 30])
def test_in_a_loop(world, platform, steps):
    """Each round starts a chain of three requests, and ends it."""

    @functools.partial(jax.jit, static_argnums=0)
    def train(steps, gradients):
        def step(number, weights):
            scaled = [[number * gradient] for gradient in gradients]
            reduced = bare_jax.allreduce(scaled, f"loop {steps}", platform)
            return [w + r for w, [r] in zip(weights, reduced, strict=True)]

        zeros = [jnp.zeros_like(gradient) for gradient in gradients]
        return jax.lax.fori_loop(0, steps, step, zeros)

    gradients = [jnp.asarray(own(world, size)) for size in SIZES]
    for _ in range(2):
        weights = train(steps, gradients)
        for size, weight in zip(SIZES, weights, strict=True):
            expected = np.sum(every(world, size), axis=0) * sum(range(steps))
            np.testing.assert_array_equal(weight, expected)


def test_an_error_of_all_ranks_is_an_exception(world, platform):
    if world.size == 1:
        return

    @jax.jit
    def step(tensor):
        [[result]] = bare_jax.allreduce([[tensor]], "unequal", platform)
        return result

    with pytest.raises(Exception, match="shapes differ"):
        step(jnp.zeros(10 + world.rank, np.float32)).block_until_ready()
    result = step(jnp.asarray(own(world, 10)))
    np.testing.assert_array_equal(result, np.sum(every(world, 10), axis=0))
