"""LocalSGD and DiLoCo: ranks train apart, and meet at the end of a round."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_alike, assert_same_on_all_ranks

import tfring

LOSS = keras.losses.MeanSquaredError()


def batches_of(rank, count, rows=8):
    rng = np.random.default_rng([7, rank])
    x = rng.normal(size=(count, rows, 3)).astype(np.float32)
    return x, np.sin(x.sum(2, keepdims=True))


def built_model():
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.Dense(1),
        ]
    )


def fitted(optimizer, rank, count, epochs=1, **options):
    """Trains on the first `count` batches of a rank."""
    model = built_model()
    model.compile(optimizer, LOSS, **options)
    x, y = batches_of(rank, count)
    model.fit(
        x.reshape(-1, 3),
        y.reshape(-1, 1),
        batch_size=8,
        epochs=epochs,
        shuffle=False,
        verbose=0,
    )
    return model


def inner():
    return keras.optimizers.SGD(0.05, momentum=0.5)


def in_one_process(size, rounds, every, outer):
    """The weights after rounds of `size` ranks, by Keras and NumPy alone.

    Args:
        size: The number of ranks.
        rounds: The number of rounds.
        every: The steps of a round.
        outer: A function of the weights and the mean change.
    """
    base = [np.asarray(v) for v in built_model().trainable_variables]
    optimizers = [inner() for _ in range(size)]
    models = [built_model() for _ in range(size)]
    for number in range(rounds):
        changes = []
        for rank in range(size):
            x, y = batches_of(rank, rounds * every)
            variables = models[rank].trainable_variables
            for variable, value in zip(variables, base, strict=True):
                variable.assign(value)
            for i in range(number * every, (number + 1) * every):
                with tf.GradientTape() as tape:
                    loss = LOSS(y[i], models[rank](x[i]))
                optimizers[rank].apply(
                    tape.gradient(loss, variables), variables
                )
            ends = [np.asarray(v) for v in variables]
            changes.append([b - e for b, e in zip(base, ends, strict=True)])
        means = [np.mean(each, 0) for each in zip(*changes, strict=True)]
        base = [outer(i, b, means[i]) for i, b in enumerate(base)]
    return base


def plain(i, weights, change):
    return weights - change


def nesterov():
    velocity = {}

    def update(i, weights, change):
        velocity[i] = 0.6 * velocity.get(i, 0) - 0.8 * change
        return weights + 0.6 * velocity[i] - 0.8 * change

    return update


def assert_close(model, expected, rtol=1e-4):
    for variable, value in zip(
        model.trainable_variables, expected, strict=True
    ):
        np.testing.assert_allclose(variable, value, rtol=rtol, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "steps"),
    [({"jit_compile": True}, 1), ({"jit_compile": False}, 7)],
)
def test_rounds_are_those_of_one_process(options, steps, rank, size):
    for sync, outer in (
        (tfring.LocalSGD(5), plain),
        (tfring.DiLoCo(5), nesterov()),
    ):
        optimizer = tfring.DistributedOptimizer(inner(), sync=sync)
        model = fitted(
            optimizer, rank, 20, **options, steps_per_execution=steps
        )
        assert_same_on_all_ranks(model.trainable_variables)
        assert_close(model, in_one_process(size, 4, 5, outer))


@pytest.mark.parametrize(
    "jit_compile", [False, pytest.param(True, marks=pytest.mark.thorough)]
)
def test_rounds_of_one_step_are_synchronous_sgd(jit_compile, rank):
    """And so are steps before the first round, those within a set of all."""
    apart, within, before, together = (
        fitted(
            tfring.DistributedOptimizer(keras.optimizers.SGD(0.1), **options),
            rank,
            6,
            jit_compile=jit_compile,
        )
        for options in (
            {"sync": tfring.LocalSGD(1)},
            {"sync": tfring.LocalSGD(4, within=tfring.global_process_set)},
            {"sync": tfring.LocalSGD(1, start=6)},
            {},
        )
    )
    expected = [np.asarray(v) for v in together.trainable_variables]
    for model in (apart, within, before):
        assert_same_on_all_ranks(model.trainable_variables)
        assert_close(model, expected)


def test_a_short_round_ends_with_the_mean(rank, size):
    """Without the outer momentum; and `meet` does nothing more."""
    optimizer = tfring.DistributedOptimizer(inner(), sync=tfring.DiLoCo(4))
    model = fitted(optimizer, rank, 3)
    assert_close(model, in_one_process(size, 1, 3, plain))
    before = [np.asarray(v) for v in model.trainable_variables]
    optimizer.meet()
    for variable, value in zip(model.trainable_variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)


@pytest.mark.parametrize(
    ("compression", "bytes_of_one"),
    [(tfring.Compression.none, 4), (tfring.Compression.bf16, 2)],
)
def test_a_round_sends_what_a_step_sends(compression, bytes_of_one, size):
    weights = keras.Variable(np.zeros([1000, 1000], np.float32))
    optimizer = tfring.DistributedOptimizer(
        inner(), sync=tfring.DiLoCo(5), compression=compression
    )
    optimizer.build([weights])
    gradients = [tf.ones([1000, 1000])]
    optimizer.apply(gradients, [weights])  # which may compare the weights
    before = tfring.statistics().sent_bytes["allreduce"]
    for _ in range(10):
        optimizer.apply(gradients, [weights])
    sent = tfring.statistics().sent_bytes["allreduce"] - before
    meetings, of_ring = 2, 2 * (size - 1) / size
    assert sent == pytest.approx(
        meetings * of_ring * bytes_of_one * 1e6, rel=0.02
    )


@pytest.mark.parametrize("traced", [False, True])
def test_a_loop_of_ones_own(traced, rank, size):
    model = built_model()
    optimizer = tfring.DistributedOptimizer(inner(), sync=tfring.DiLoCo(2))
    x, y = batches_of(rank, 5)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = LOSS(y, model(x))
        variables = model.trainable_variables
        optimizer.apply_gradients(
            zip(tape.gradient(loss, variables), variables, strict=True)
        )

    if traced:
        step = tf.function(step)
    for i in range(4):
        step(x[i], y[i])
    assert_same_on_all_ranks(model.trainable_variables)
    # The data of two rounds are the first of five batches.
    expected = in_one_process(size, 2, 2, nesterov())
    assert_close(model, expected)
    step(x[4], y[4])
    if size > 1:
        kernels = tfring.allgather_object(model.get_weights()[0].tobytes())
        assert kernels[0] != kernels[1]
    with tfring.shared_weights(model):
        assert_close(model, expected)
    optimizer.meet()
    assert_same_on_all_ranks(model.trainable_variables)


class Seen(keras.callbacks.Callback):
    """The weights that callbacks and validation see."""

    def __init__(self):
        super().__init__()
        self.in_validation, self.at_ends, self.in_batches = [], [], []

    def _weights(self):
        return [np.asarray(v).tobytes() for v in self.model.trainable_variables]

    def on_test_begin(self, logs=None):
        self.in_validation.append(self._weights())

    def on_epoch_end(self, epoch, logs=None):
        self.at_ends.append(self._weights())

    def on_train_batch_end(self, batch, logs=None):
        self.in_batches.append(self._weights())


def test_validation_and_callbacks_see_what_ranks_share(rank, size, tmp_path):
    model = built_model()
    model.compile(
        tfring.DistributedOptimizer(inner(), sync=tfring.DiLoCo(3)), LOSS
    )
    x, y = batches_of(rank, 5)
    seen = Seen()
    path = tmp_path / "{epoch}.weights.h5"
    model.fit(
        x.reshape(-1, 3),
        y.reshape(-1, 1),
        batch_size=8,
        epochs=2,
        shuffle=False,
        verbose=0,
        validation_data=(x[0], y[0]),
        callbacks=[
            seen,
            keras.callbacks.ModelCheckpoint(path, save_weights_only=True),
            tfring.callbacks.ConsistencyCheckCallback(every=1),
            keras.callbacks.EarlyStopping("val_loss"),
        ],
    )
    assert_alike([seen.in_validation, seen.at_ends])
    assert seen.in_validation == seen.at_ends
    # Five batches are a round and two steps, ten are three rounds and one.
    if size > 1:
        fourths = tfring.allgather_object(seen.in_batches[3])
        assert fourths[0] != fourths[1]
    assert seen.at_ends[0] == seen.in_batches[2]
    assert seen.at_ends[1] == seen.in_batches[8]
    assert_same_on_all_ranks(model.trainable_variables)
    if rank == 0:
        model.load_weights(tmp_path / "1.weights.h5")
        saved = [np.asarray(v).tobytes() for v in model.trainable_variables]
        assert saved == seen.at_ends[0]
    model.fit(
        x[0],
        y[0],
        verbose=0,
        callbacks=[tfring.callbacks.BroadcastGlobalVariablesCallback(0)],
    )
    assert_same_on_all_ranks(model.trainable_variables)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_moving_statistics_are_averaged(jit_compile, rank, size):
    keras.utils.set_random_seed(1 + rank)
    norm, noise = keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)
    model = keras.Sequential(
        [keras.Input((3,)), norm, noise, keras.layers.Dense(1)]
    )
    tfring.broadcast_variables(model.variables, root_rank=0)
    optimizer = tfring.DistributedOptimizer(inner(), sync=tfring.LocalSGD(2))
    model.compile(optimizer, LOSS, jit_compile=jit_compile)
    x, y = batches_of(rank, 2)
    for i in range(2):
        model.train_on_batch(x[i] + rank, y[i])
    assert_same_on_all_ranks(norm.variables)
    means = [np.zeros(3)] * size
    for other in range(size):
        for batch in batches_of(other, 2)[0]:
            means[other] = 0.99 * means[other] + 0.01 * (batch + other).mean(0)
    np.testing.assert_allclose(norm.moving_mean, np.mean(means, 0), rtol=1e-5)
    if size > 1:
        seeds = tfring.allgather_object(noise.variables[0].numpy().tolist())
        assert seeds[0] != seeds[1]


def test_a_rank_may_skip_a_step_alone(rank):
    """By its loss scale, which is its own."""
    model = built_model()
    optimizer = tfring.DistributedOptimizer(
        keras.optimizers.LossScaleOptimizer(inner()), sync=tfring.LocalSGD(3)
    )
    model.compile(optimizer, LOSS, jit_compile=False)
    x, y = batches_of(rank, 6)
    if rank == 0:
        y[1] = np.inf
    for i in range(6):
        model.train_on_batch(x[i], y[i])
    assert_same_on_all_ranks(model.trainable_variables)
    skipped = tfring.allgather_object(int(optimizer.inner_optimizer.iterations))
    assert skipped == [5] + [6] * (tfring.size() - 1)


def test_rounds_count_updates(rank):
    """An update takes several batches, with accumulation."""
    model = built_model()
    optimizer = tfring.DistributedOptimizer(
        inner(), backward_passes_per_step=2, sync=tfring.LocalSGD(2, start=1)
    )
    model.compile(optimizer, LOSS)
    x, y = batches_of(rank, 6)
    met = []
    for i in range(6):
        model.train_on_batch(x[i], y[i])
        kernels = tfring.allgather_object(
            model.trainable_variables[0].numpy().tobytes()
        )
        met.append(len(set(kernels)) == 1)
    if tfring.size() > 1:
        assert met == [True, True, True, False, False, True]


def test_a_continued_training_does_not_begin_anew(rank, size):
    """The steps before the first round are those that a file has counted."""
    model = built_model()
    optimizer = tfring.DistributedOptimizer(
        inner(), sync=tfring.LocalSGD(2, start=3)
    )
    optimizer.build(model.trainable_variables)
    if rank == 0:
        optimizer.iterations.assign(3)
    tfring.broadcast_variables([*model.variables, *optimizer.variables])
    model.compile(optimizer, LOSS)
    x, y = batches_of(rank, 1)
    model.train_on_batch(x[0], y[0])
    kernels = tfring.allgather_object(model.get_weights()[0].tobytes())
    assert len(set(kernels)) == size


def test_local_variables_stay_each_ranks_own(rank, size):
    model = built_model()
    optimizer = tfring.DistributedOptimizer(inner(), sync=tfring.LocalSGD(2))
    own = model.layers[0].kernel
    optimizer.register_local_var(own)
    model.compile(optimizer, LOSS)
    x, y = batches_of(rank, 4)
    for i in range(4):
        model.train_on_batch(x[i], y[i])
    assert_same_on_all_ranks(model.trainable_variables[1:])
    if size > 1:
        kernels = tfring.allgather_object(own.numpy().tobytes())
        assert kernels[0] != kernels[1]


def test_within_a_set_every_step_is_common(rank, size):
    """The last rank trains apart until all meet."""
    others = list(range(size - 1)) or [0]
    sets = [tfring.ProcessSet(others), tfring.ProcessSet([size - 1])]
    sets = [
        tfring.add_process_set(each)
        if each.ranks != list(range(size))
        else tfring.global_process_set
        for each in sets[: min(size, 2)]
    ]
    mine = sets[-1] if rank == size - 1 else sets[0]
    optimizer = tfring.DistributedOptimizer(
        inner(), sync=tfring.LocalSGD(3, within=mine)
    )
    model = built_model()
    model.compile(optimizer, LOSS)
    x, y = batches_of(rank, 3)
    for i in range(2):
        model.train_on_batch(x[i], y[i])
    kernels = tfring.allgather_object(
        model.trainable_variables[0].numpy().tobytes()
    )
    assert len(set(kernels[: size - 1])) <= 1
    assert size == 1 or kernels[0] != kernels[-1]
    model.train_on_batch(x[2], y[2])
    assert_same_on_all_ranks(model.trainable_variables)
    for each in sets:
        tfring.remove_process_set(each)


def test_within_a_host_is_within_its_ranks(rank):
    """All ranks of the tests are on one."""
    together = fitted(tfring.DistributedOptimizer(inner()), rank, 4)
    optimizer = tfring.DistributedOptimizer(
        inner(), sync=tfring.LocalSGD(2, within="host")
    )
    model = fitted(optimizer, rank, 4)
    assert_close(model, [np.asarray(v) for v in together.trainable_variables])


@pytest.mark.parametrize("jit_compile", [False, True])
def test_embeddings_keep_their_rows(jit_compile, rank, size):
    """Sparse gradients before the first round, and in it."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((2,), dtype="int32"),
            keras.layers.Embedding(10, 4),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )
    optimizer = tfring.DistributedOptimizer(
        keras.optimizers.Adagrad(0.1), sync=tfring.LocalSGD(2, start=2)
    )
    model.compile(optimizer, LOSS, jit_compile=jit_compile)
    rng = np.random.default_rng(rank)
    for _ in range(6):
        model.train_on_batch(
            rng.integers(0, 10, (8, 2)), rng.normal(size=(8, 1))
        )
    assert_same_on_all_ranks(model.trainable_variables)


class FailsOnce(keras.callbacks.Callback):
    """Fails in the middle of a round, like a lost rank."""

    failed = False

    def on_train_batch_end(self, batch, logs=None):
        if batch == 4 and not self.failed:
            self.failed = True
            raise tfring.elastic.HorovodInternalError("a test")


def test_a_lost_rank_costs_the_steps_since_the_last_meeting(rank, size):
    x, y = batches_of(0, 6 * size)
    weights = []
    for callbacks in ([], [FailsOnce()]):
        model = built_model()
        optimizer = tfring.DistributedOptimizer(inner(), sync=tfring.DiLoCo(3))
        model.compile(optimizer, LOSS)
        tfring.elastic.fit(
            model,
            x.reshape(-1, 3),
            y.reshape(-1, 1),
            batch_size=8,
            epochs=2,
            callbacks=callbacks,
            verbose=0,
            same_seeds=True,
        )
        assert_same_on_all_ranks(model.trainable_variables)
        weights.append(model.get_weights())
    # But for the momenta of the ranks, which all continue with rank 0's.
    for undisturbed, failed in zip(*weights, strict=True):
        np.testing.assert_allclose(failed, undisturbed, atol=0.02)


def gossip_model(topology, rank, every=1, **options):
    optimizer = tfring.DistributedOptimizer(
        inner(), sync=tfring.Gossip(topology, every=every)
    )
    return fitted(optimizer, rank, 4, jit_compile=False, **options)


@pytest.mark.parametrize("topology", ["exponential", "ring"])
def test_gossip_keeps_the_mean(topology, rank, size):
    """Ranks that stand still come to it; one round does so for two ranks."""
    model = built_model()
    optimizer = tfring.DistributedOptimizer(
        keras.optimizers.SGD(0.0), sync=tfring.Gossip(topology)
    )
    variables = model.trainable_variables
    for variable in variables:
        variable.assign(np.random.default_rng(rank).normal(size=variable.shape))
    means = [
        tfring.allreduce(np.asarray(variable)).numpy() for variable in variables
    ]
    gradients = [tf.zeros(variable.shape) for variable in variables]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tfring.NotBroadcastWarning)
        optimizer.apply(gradients, variables)
    first = optimizer.consensus_distance()
    assert_alike(first)
    # One series of rounds gives a power of two the exact mean.
    for _ in range((size - 1).bit_length()):
        optimizer.apply(gradients, variables)
    if topology == "exponential" and size in (1, 2, 4):
        assert_close(model, means, 1e-5)
    for _ in range(40):
        optimizer.apply(gradients, variables)
    assert_close(model, means, 1e-5)
    assert optimizer.consensus_distance() <= min(first, 1e-6)


def test_gossip_of_two_ranks_is_local_sgd(rank, size):
    """And one rank's is plain; a function may give the neighbours."""
    if size > 2:
        return
    model = gossip_model(lambda size, number: [1 + 2 * number], rank)
    assert_same_on_all_ranks(model.trainable_variables)
    assert_close(model, in_one_process(size, 4, 1, plain))


def test_gossip_in_fit(rank, size):
    """All see the mean at its end, and its distance in the logs."""
    model = gossip_model(
        lambda size, number: [] if number % 2 else [1], rank, epochs=2
    )
    assert_same_on_all_ranks(model.trainable_variables)
    distances = model.history.history["consensus_distance"]
    assert_alike(distances)
    assert len(distances) == 2
    assert all(0 < each < 1 for each in distances) or size == 1


def test_gossip_is_not_for_xla(rank):
    optimizer = tfring.DistributedOptimizer(inner(), sync=tfring.Gossip())
    with pytest.raises(NotImplementedError, match="jit_compile=False"):
        fitted(optimizer, rank, 1, jit_compile=True)
