"""Feature maps of a GPU that are moved away and back; see on_gpu.py."""

from __future__ import annotations

import threading
import time

import fake_driver
import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_each_equal

import tfring
from tfring._core import native
from tfring._memory import offload_options

LAYERS = 12
WIDTH = 32


def make_step(offload, layers=LAYERS):
    """A step of SGD, as a function of a batch, and its weights."""
    weights = [
        tf.Variable(tf.random.stateless_normal([WIDTH, WIDTH], [0, i]) / 4)
        for i in range(layers)
    ]

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            x = tf.cast(x, tf.float32)
            for weight in weights:
                x = tf.nn.relu(x @ weight)
            loss = tf.reduce_mean(x * x)
        gradients = tape.gradient(loss, weights)
        if offload is not None:
            tfring.offload_activations(gradients, offload)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.assign_sub(0.01 * gradient)
        return loss

    return step, weights


def batch_of(rows, dtype=tf.float32):
    batch = tf.random.stateless_normal([rows, WIDTH], [7, 7])
    return tf.cast(3 * batch, dtype)


def trained(offload, rows=8, steps=4, dtype=tf.float32):
    """The weights after some steps, and the most bytes of the last one."""
    step, weights = make_step(offload)
    batch = batch_of(rows, dtype)
    for number in range(steps):
        if number == steps - 1:
            tf.config.experimental.reset_memory_stats("GPU:0")
        step(batch)
    peak = tf.config.experimental.get_memory_info("GPU:0")["peak"]
    return [weight.numpy() for weight in weights], peak


@pytest.mark.parametrize("ahead", [1, 2, 4])
def test_bits(slow_streams, ahead):
    plain, _ = trained(None)
    for _ in range(3):
        offload = tfring.Offload(min_bytes=0, ahead=ahead)
        moved, _ = trained(offload)
        assert_each_equal(moved, plain)
        statistics = offload.statistics()
        assert statistics.moved >= LAYERS
        assert statistics.tier_bytes == 0


def test_the_peak_is_lower(slow_streams):
    rows = 4096
    # Memory of earlier tests.
    others = tf.config.experimental.get_memory_info("GPU:0")["current"]
    plain, plain_peak = trained(None, rows)
    offload = tfring.Offload(min_bytes=rows * WIDTH * 4, ahead=1)
    moved, peak = trained(offload, rows)
    assert_each_equal(moved, plain)
    statistics = offload.statistics()
    assert statistics.moved_bytes >= LAYERS * rows * WIDTH * 4
    assert statistics.tier_peak_bytes >= statistics.moved_bytes
    assert peak - others < (plain_peak - others) / 2


# TensorFlow has int32 tensors on the host, and shows the GPU's allocator.
@pytest.mark.parametrize("dtype", [tf.float32, tf.int32])
def test_a_budget_is_held(slow_streams, dtype):
    rows = 2048
    ballast = tf.identity(tf.zeros([1 << 22]))  # of the GPU alone
    assert "GPU:0" in ballast.device
    plain, _ = trained(None, rows, dtype=dtype)
    offload = tfring.Offload(min_bytes=0, ahead=1)
    _, least = trained(offload, rows, dtype=dtype)
    feature_map = rows * WIDTH * 4
    budget = 5 * feature_map
    offload = tfring.Offload("auto", budget_bytes=budget, min_bytes=0, ahead=1)
    moved, peak = trained(offload, rows, dtype=dtype)
    assert_each_equal(moved, plain)
    statistics = offload.statistics()
    assert 0 < statistics.kept_bytes <= budget
    assert statistics.peak_bytes == peak
    # The tensors in flight differ from step to step.
    assert peak <= least + budget + 3 * feature_map


def fitted(offload):
    keras.utils.clear_session()
    keras.utils.set_random_seed(5)
    # A GPU adds up the gradient of a bias in another order each time.
    model = keras.Sequential(
        [keras.Input((8,))]
        + [keras.layers.Dense(16, "relu", use_bias=False) for _ in range(4)]
        + [keras.layers.Dense(1, use_bias=False)]
    )
    optimizer = tfring.DistributedOptimizer(
        keras.optimizers.SGD(0.05), offload=offload
    )
    model.compile(optimizer, "mse", jit_compile=False)
    rng = np.random.default_rng(tfring.rank())
    x = rng.normal(size=(32, 8)).astype(np.float32)
    y = np.sum(x, axis=1, keepdims=True)
    model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()


def test_bits_of_a_fit(slow_streams):
    offload = tfring.Offload(min_bytes=0)
    assert_each_equal(fitted(offload), fitted(None))
    assert offload.statistics().moved >= 4
    assert offload.statistics().tier_bytes == 0


@pytest.mark.parametrize(
    "dtype",
    [
        *(tf.float16, tf.bfloat16, tf.float32, tf.float64),
        *(tf.int8, tf.int16, tf.int64, tf.uint8, tf.uint16, tf.uint32),
        *(tf.uint64, tf.bool, tf.complex64, tf.complex128),
    ],
)
def test_dtypes(slow_streams, dtype):
    host = (np.arange(1001) % 2).astype(dtype.as_numpy_dtype)
    tensor = tf.identity(tf.constant(host))
    ops = native.ops()
    plan = next(offload_options._plans)

    @tf.function
    def there_and_back(x):
        execution = ops.tfring_offload_begin(
            x=x, plan=plan, items=1, min_bytes=0
        )
        handle = ops.tfring_stash(x=x, execution=execution, item=0)
        token = ops.tfring_computed(x=x)
        held = ops.tfring_after_stash(x=x, handle=[handle])
        fetched = ops.tfring_fetch(
            *(handle, [token], []), T=dtype, shape=x.shape, item=0
        )
        return held, fetched

    for result in there_and_back(tensor):
        assert "GPU:0" in result.device
        np.testing.assert_array_equal(result.numpy(), host)


@pytest.fixture
def as_traced():
    """Graphs run without TensorFlow's optimizations."""
    tf.config.optimizer.set_experimental_options(
        {"disable_meta_optimizer": True}
    )
    yield
    tf.config.optimizer.set_experimental_options(
        {"disable_meta_optimizer": False}
    )


def test_a_sum_is_not_rounded_otherwise_once_a_copy_is_made(
    slow_streams, as_traced
):
    # A sum of three begins with the first that nobody else holds.
    weight = tf.Variable(tf.eye(16))
    offload = tfring.Offload(min_bytes=0)

    def traced_sum(offload):
        @tf.function
        def step(x, big, minus_big):
            with tf.GradientTape() as tape:
                moved = tf.nn.relu(weight @ x)
                late = moved
                for _ in range(20):  # so that the copy has been made
                    with tf.device("CPU:0"):
                        late = tf.tanh(late)
                    late = late @ x
                with tf.control_dependencies([late]):
                    total = tf.raw_ops.AddN(inputs=[big, minus_big, moved])
                loss = tf.reduce_sum(total * total)
            gradients = tape.gradient(loss, [weight])
            if offload is not None:
                tfring.offload_activations(gradients, offload)
            return total, *gradients

        return step

    plain, moving = traced_sum(None), traced_sum(offload)
    # On the GPU, so that they are held beyond the step.
    big = [tf.identity(tf.fill([16, 16], sign * 1e8)) for sign in (1, -1)]
    for number in range(1, 4):
        batch = tf.identity(tf.fill([16, 16], 0.1 * number)), *big
        assert_each_equal(moving(*batch), plain(*batch))
    assert offload.statistics().moved > 0


def test_a_failed_step_leaves_nothing_behind(slow_streams):
    offload = tfring.Offload(min_bytes=0)
    weights = [tf.Variable(tf.eye(WIDTH)) for _ in range(4)]

    @tf.function
    def step(x, bound):
        with tf.GradientTape() as tape:
            for weight in weights:
                x = tf.nn.relu(x @ weight)
            tf.debugging.assert_less(tf.reduce_max(x), bound)
            loss = tf.reduce_mean(x)
        gradients = tape.gradient(loss, weights)
        tfring.offload_activations(gradients, offload)
        return gradients

    step(batch_of(8), 1e9)
    for _ in range(5):
        with pytest.raises(tf.errors.InvalidArgumentError):
            step(batch_of(8), -1.0)
        until_nothing_is_left(offload)
    step(batch_of(8), 1e9)


def test_a_cancelled_step_ends_when_its_copies_have(slow_streams):
    from tensorflow.python.eager import cancellation

    if slow_streams is None:
        pytest.skip("a real driver's streams cannot be held")
    offload = tfring.Offload(min_bytes=0)
    step, _ = make_step(offload)
    batch = batch_of(8)
    step(batch)
    manager = cancellation.CancellationManager()
    cancelled = manager.get_cancelable_function(
        step.get_concrete_function(batch)
    )
    results = []

    def run():
        try:
            cancelled(batch)
            results.append("succeeded")
        except tf.errors.CancelledError:
            results.append("cancelled")

    thread = threading.Thread(target=run)
    slow_streams.held = fake_driver.OTHER_STREAMS
    thread.start()
    while offload.statistics().tier_bytes == 0:
        time.sleep(0.01)
    manager.start_cancel()
    slow_streams.held = 0
    thread.join(timeout=60)
    assert results == ["cancelled"]
    until_nothing_is_left(offload)
    step(batch)


def until_nothing_is_left(offload):
    """Waits for the end of a step that did not end well."""
    while offload.statistics().tier_bytes > 0:
        time.sleep(0.01)
