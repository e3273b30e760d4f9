"""Optimizers, callbacks, states and layers of Keras 2, the package tf_keras."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import (
    assert_all_differ,
    assert_each_close,
    assert_each_equal,
    assert_same_on_all_ranks,
    jit_compile_is_thorough,
)

import tfring

tf_keras = pytest.importorskip("tf_keras")

from tfring.horovod.keras2 import callbacks, elastic, layers  # noqa: E402
from tfring.horovod.keras2.loading import load_model  # noqa: E402

BATCH, STEPS = 12, 6  # of all ranks together; 1, 2, 3 and 4 ranks share it
LEGACY = tf_keras.optimizers.legacy

OPTIMIZERS = {
    "sgd": lambda: tf_keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: tf_keras.optimizers.Adam(0.01, global_clipnorm=0.5),
    "legacy sgd": lambda: LEGACY.SGD(0.1, momentum=0.9),
    "legacy adam": lambda: LEGACY.Adam(0.01, clipnorm=0.5),
    "scaled": lambda: tf_keras.mixed_precision.LossScaleOptimizer(
        tf_keras.optimizers.SGD(0.1)
    ),
    "legacy scaled": lambda: tf_keras.mixed_precision.LossScaleOptimizer(
        LEGACY.SGD(0.1)
    ),
}
each_sgd = pytest.mark.parametrize(
    "optimizer", [tf_keras.optimizers.SGD, LEGACY.SGD]
)


def model_of(optimizer, seed=1, **options):
    tf_keras.utils.set_random_seed(seed)
    model = tf_keras.Sequential(
        [
            tf_keras.layers.Dense(8, activation="tanh", input_shape=(3,)),
            tf_keras.layers.Dense(1),
        ]
    )
    model.compile(optimizer, "mse", **options)
    return model


def distributed_model(name, seed=1):
    optimizer = tfring.DistributedOptimizer(OPTIMIZERS[name]())
    return model_of(optimizer, seed)


def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(STEPS * BATCH, 3)).astype("float32")
    return x, np.sin(x.sum(1, keepdims=True))


def own_rows(array, rank, size):
    batches = array.reshape(STEPS, BATCH, -1)[:, rank::size]
    return batches.reshape(-1, array.shape[1])


def fit_share(model, rank, size, **options):
    x, y = (own_rows(each, rank, size) for each in data())
    return model.fit(
        x, y, BATCH // size, shuffle=False, verbose=0, **options
    ).history


def variables_of(model):
    return [*model.variables, *model.optimizer.variables()]


@pytest.mark.parametrize("name", OPTIMIZERS)
@jit_compile_is_thorough
def test_fit_trains_as_one_process_does(name, jit_compile, rank, size):
    alone = model_of(OPTIMIZERS[name](), jit_compile=jit_compile)
    alone.fit(*data(), BATCH, epochs=2, shuffle=False, verbose=0)
    optimizer = OPTIMIZERS[name]()
    assert tfring.DistributedOptimizer(optimizer) is optimizer
    model = model_of(optimizer, jit_compile=jit_compile)
    fit_share(model, rank, size, epochs=2)
    assert_each_close(
        model.get_weights(), alone.get_weights(), rtol=1e-4, atol=1e-5
    )
    assert_same_on_all_ranks(variables_of(model))
    assert int(optimizer.iterations) == 2 * STEPS


@each_sgd
def test_minimize_averages_and_apply_gradients_does_not(
    optimizer, mode, rank, size
):
    variable = tf.Variable([2.0])
    mean = (size - 1) / 2
    distributed = tfring.DistributedOptimizer(optimizer(1.0))

    @mode
    def minimize():
        distributed.minimize(lambda: variable * float(rank), [variable])

    @mode
    def compute_and_apply():
        with tf.GradientTape() as tape:
            loss = variable * float(rank)
        pairs = distributed.compute_gradients(loss, [variable], tape=tape)
        distributed.apply_gradients(pairs)

    minimize()
    np.testing.assert_allclose(variable, [2 - mean])
    compute_and_apply()
    np.testing.assert_allclose(variable, [2 - 2 * mean])


@each_sgd
def test_a_distributed_tape_has_scaled_local_gradients(
    optimizer, mode, rank, size
):
    own = tf.Variable([2.0])
    distributed = tfring.DistributedOptimizer(optimizer(1.0))
    distributed.register_local_var(own)

    @mode
    def minimize():
        tape = tfring.DistributedGradientTape(tf.GradientTape())
        tape.register_local_source(own)
        with tape:
            loss = own * (rank + 1.0)
        pairs = distributed.compute_gradients(loss, [own], tape=tape)
        distributed.apply_gradients(pairs)

    minimize()
    np.testing.assert_allclose(own, [2 - (rank + 1) / size])


@each_sgd
@pytest.mark.parametrize("average", [False, True])
def test_passes(optimizer, average, mode, rank, size):
    variable = tf.Variable([1.0])
    distributed = tfring.DistributedOptimizer(
        optimizer(1.0),
        backward_passes_per_step=2,
        average_aggregated_gradients=average,
    )
    assert int(distributed.iterations) == 0  # made outside of the function

    @mode
    def step():
        distributed.minimize(lambda: variable * float(rank), [variable])

    values = []
    for _ in range(5):
        step()
        values.append(variable.numpy()[0])
    update = (size - 1) / 2 * (1 if average else 2)
    expected = [1, *[1 - update] * 2, *[1 - 2 * update] * 2]
    np.testing.assert_allclose(values, expected)
    # As in Horovod, the optimizer counts batches.
    assert int(distributed.iterations) == 5
    assert int(distributed._agg_helper.counter) == 1


def test_a_graph_of_tensorflow_1(session, rank, size):
    variable = tf.compat.v1.get_variable("v", initializer=[2.0])
    optimizer = tfring.DistributedOptimizer(LEGACY.SGD(1.0))
    [update] = optimizer.get_updates(variable * float(rank), [variable])
    session.run(tf.compat.v1.global_variables_initializer())
    session.run(update)
    np.testing.assert_allclose(session.run(variable), [2 - (size - 1) / 2])


@pytest.mark.parametrize("sparse_as_dense", [False, True])
def test_options_are_those_of_every_optimizer(sparse_as_dense, rank, size):
    table = tf.Variable(tf.zeros([5, 1]))
    own = tf.Variable([0.0])
    optimizer = tfring.DistributedOptimizer(
        tf_keras.optimizers.SGD(1.0),
        op=tfring.Sum,
        sparse_as_dense=sparse_as_dense,
        scale_local_gradients=False,
        compression=tfring.Compression.fp16,
    )
    optimizer.register_local_var(own)
    pairs = optimizer.compute_gradients(
        lambda: tf.reduce_sum(tf.gather(table, [0, rank + 1])) + own * rank,
        [table, own],
    )
    assert isinstance(pairs[0][0], tf.Tensor) is sparse_as_dense
    optimizer.apply_gradients(pairs)
    expected = -np.ones([5, 1])
    expected[0] = -size
    expected[size + 1 :] = 0
    np.testing.assert_allclose(table, expected)
    np.testing.assert_allclose(own, [-rank])


def test_layers_stay_local(rank):
    model = model_of("sgd")
    optimizer = tfring.PartialDistributedOptimizer(
        tf_keras.optimizers.SGD(0.1), local_layers=model.layers[0]
    )
    model.compile(optimizer, "mse")
    x = np.full([4, 3], 1.0 + rank, np.float32)
    broadcast = callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(x, x[:, :1], 2, callbacks=[broadcast], verbose=0)
    assert_all_differ([model.layers[0].kernel])
    assert_same_on_all_ranks(model.layers[1].variables)


def test_a_copy_reduces_in_the_same_way(rank, size):
    optimizer = tfring.DistributedOptimizer(
        tf_keras.optimizers.SGD(1.0), op=tfring.Sum
    )
    config = optimizer.get_config()
    assert config == tf_keras.optimizers.SGD(1.0).get_config()
    variable = tf.Variable([0.0])
    copy = optimizer.from_config(config)
    copy.minimize(lambda: variable * float(rank), [variable])
    np.testing.assert_allclose(variable, [-size * (size - 1) / 2])


def test_what_cannot_be_says_so():
    sgd = tf_keras.optimizers.SGD
    with pytest.raises(ValueError, match="backward_passes_per_step"):
        tfring.DistributedOptimizer(sgd(), backward_passes_per_step=0)
    passes = tfring.DistributedOptimizer(sgd(), backward_passes_per_step=2)
    with pytest.raises(ValueError, match="has computed nothing"):
        passes.apply_gradients([(tf.ones([1]), tf.Variable([1.0]))])
    once = tfring.DistributedOptimizer(sgd())
    around = tf_keras.mixed_precision.LossScaleOptimizer(once)
    for optimizer in once, around:
        with pytest.raises(ValueError, match="distributed already"):
            tfring.DistributedOptimizer(optimizer)


def test_half_precision(rank, size):
    """One rank's infinity has all ranks leave out the step."""
    tf_keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        optimizer = tfring.DistributedOptimizer(tf_keras.optimizers.SGD(0.1))
        model = model_of(optimizer)
        before = model.get_weights()
        x = np.ones([2, 3], np.float32)
        y = np.full([2, 1], 1e30 if rank == size - 1 else 1.0, np.float32)
        model.train_on_batch(x, y)
        assert_each_equal(model.get_weights(), before)
        model.train_on_batch(x, np.ones([2, 1]))
        assert_same_on_all_ranks(variables_of(model))
        assert not np.array_equal(model.get_weights()[0], before[0])
    finally:
        tf_keras.mixed_precision.set_global_policy("float32")


@pytest.mark.parametrize("name", ["sgd", "adam", "legacy sgd", "scaled"])
def test_callbacks(name, rank, size, tmp_path):
    rate = 0.1 * size
    model = distributed_model(name, seed=1 + rank)
    best = tmp_path / "best.keras"
    given = [
        callbacks.BroadcastGlobalVariablesCallback(0),
        callbacks.MetricAverageCallback(),
        callbacks.LearningRateWarmupCallback(rate, warmup_epochs=2),
        callbacks.LearningRateScheduleCallback(rate, 0.5, start_epoch=2),
        callbacks.BestModelCheckpoint(best, monitor="loss"),
    ]
    history = fit_share(model, rank, size, epochs=4, callbacks=given)
    assert_same_on_all_ranks(variables_of(model))
    assert_same_on_all_ranks(history["loss"])
    np.testing.assert_allclose(
        history["lr"], [rate * (1 + size) / 2 / size, rate, rate, rate / 2]
    )
    assert best.exists() == (rank == 0)


@each_sgd
def test_velocities_follow_the_learning_rate(optimizer):
    model = model_of(optimizer(0.1, momentum=0.9))
    model.fit(*data(), BATCH, verbose=0)
    callback = callbacks.LearningRateScheduleCallback(0.1, 0.5)
    callback.set_model(model)
    velocities = callback._velocities(model.optimizer)
    assert len(velocities) == 4
    before = velocities[0].numpy()
    callback.on_train_begin()
    callback.on_epoch_begin(1)
    callback.on_train_batch_begin(0)
    np.testing.assert_allclose(velocities[0], before / 2, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "suffix"),
    [("adam", ".keras"), ("adam", ".h5"), ("legacy sgd", ".h5")],
)
def test_load_model(name, suffix, rank, size, tmp_path):
    model = distributed_model(name)
    fit_share(model, rank, size)
    path = str(tmp_path / f"model{suffix}")
    model.save(path)
    plain = tf_keras.models.load_model(path)
    assert type(plain.optimizer) is type(OPTIMIZERS[name]())
    again = load_model(path)
    for each in model, again:
        fit_share(each, rank, size)
    assert_same_on_all_ranks(variables_of(again))
    assert_each_equal(variables_of(again), variables_of(model))


@pytest.mark.parametrize("name", ["adam", "legacy sgd"])
def test_elastic_state(name, rank, size):
    model = distributed_model(name, seed=1 + rank)
    state = elastic.KerasState(model, batch=rank, epoch=7 + rank)
    state.sync()
    assert (state.batch, state.epoch) == (0, 7)
    counts = [
        elastic.UpdateBatchStateCallback(state),
        elastic.UpdateEpochStateCallback(state),
        elastic.CommitStateCallback(state, 2),
    ]
    fit_share(model, rank, size, epochs=2, callbacks=counts)
    assert (state.batch, state.epoch) == (0, 9)
    committed = [v.numpy() for v in variables_of(model)]
    assert_same_on_all_ranks(committed)
    fit_share(model, rank, size)
    state.epoch = 20
    state.restore()
    assert state.epoch == 9
    assert_each_equal(variables_of(model), committed)


@pytest.mark.parametrize("name", ["a model", "an optimizer"])
def test_elastic_state_needs_what_it_keeps(name):
    model = tf_keras.Sequential([tf_keras.layers.Dense(1)])
    if name == "an optimizer":
        model.build((None, 2))
    with pytest.raises(ValueError, match=r"must be built|no optimizer"):
        elastic.TensorFlowKerasState(model)


@pytest.mark.parametrize("shape", [(3,), (4, 3), (2, 2, 3)])
def test_batch_normalization_of_all_ranks(shape, mode, rank, size):
    rng = np.random.default_rng(0)
    x = rng.normal(5, 3, size=(4 * size, *shape)).astype("float32")
    alone = tf_keras.layers.BatchNormalization()
    layer = layers.SyncBatchNormalization()
    expected = alone(x, training=True)[4 * rank : 4 * rank + 4]
    own = tf.constant(x[4 * rank : 4 * rank + 4])
    layer.build(own.shape)
    normalized = mode(lambda: layer(own, training=True))()
    np.testing.assert_allclose(normalized, expected, rtol=1e-4, atol=1e-4)
    assert_same_on_all_ranks(layer.variables)
    np.testing.assert_allclose(layer.moving_mean, alone.moving_mean, rtol=1e-4)


def test_batch_normalization_is_not_fused():
    with pytest.raises(ValueError, match="fused must be False"):
        layers.SyncBatchNormalization(fused=True)
