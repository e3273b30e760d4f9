"""LocalSGD and DiLoCo: ranks train apart, and meet at the end of a round."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import (
    FailsOnce,
    assert_alike,
    assert_each_close,
    assert_each_equal,
    assert_same_on_all_ranks,
    bits_of,
    compiled,
    jit_compile_is_thorough,
    thorough,
    without_xla,
)
from trainings_in_rounds import (
    LOSS,
    assert_close,
    batches_of,
    built_model,
    fitted,
    in_one_process,
    inner,
    kernels_after,
    kernels_of,
    model_in_rounds,
    nesterov,
    plain,
    rows_of,
)

import tfring
from tfring._core import runtime
from tfring._state.optimizers import with_inner


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


@jit_compile_is_thorough
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
    assert_each_equal(model.trainable_variables, before)


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


@without_xla
def test_a_loop_of_ones_own(mode, rank, size):
    model = built_model()
    optimizer = tfring.DistributedOptimizer(inner(), sync=tfring.DiLoCo(2))
    x, y = batches_of(rank, 5)

    @mode
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = LOSS(y, model(x))
        variables = model.trainable_variables
        optimizer.apply_gradients(
            zip(tape.gradient(loss, variables), variables, strict=True)
        )

    for i in range(4):
        step(x[i], y[i])
    assert_same_on_all_ranks(model.trainable_variables)
    # The data of two rounds are the first of five batches.
    expected = in_one_process(size, 2, 2, nesterov())
    assert_close(model, expected)
    step(x[4], y[4])
    if size > 1:
        kernels = kernels_of(model)
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

    def on_test_begin(self, logs=None):
        self.in_validation.append(bits_of(self.model.trainable_variables))

    def on_epoch_end(self, epoch, logs=None):
        self.at_ends.append(bits_of(self.model.trainable_variables))

    def on_train_batch_end(self, batch, logs=None):
        self.in_batches.append(bits_of(self.model.trainable_variables))


def test_validation_and_callbacks_see_what_ranks_share(rank, size, tmp_path):
    model = model_in_rounds(tfring.DiLoCo(3))
    x, y = batches_of(rank, 5)
    seen = Seen()
    path = tmp_path / "{epoch}.weights.h5"
    model.fit(
        *rows_of((x, y)),
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
        assert bits_of(model.trainable_variables) == seen.at_ends[0]
    broadcast = tfring.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(x[0], y[0], verbose=0, callbacks=[broadcast])
    assert_same_on_all_ranks(model.trainable_variables)


def test_an_error_of_a_callback_leaves_the_ranks_own_weights(rank, size):
    model = model_in_rounds(tfring.DiLoCo(3))
    weights = []

    def look(batch, logs):
        weights.append(model.get_weights())

    def fail(epoch, logs):
        weights.append(model.get_weights())
        raise RuntimeError("a test")

    fails = keras.callbacks.LambdaCallback(
        on_train_batch_end=look, on_epoch_end=fail
    )
    x, y = rows_of(batches_of(rank, 5))
    with pytest.raises(RuntimeError, match="a test"):
        model.fit(x, y, batch_size=8, callbacks=[fails], verbose=0)
    *_, own, shown = weights
    assert_same_on_all_ranks(shown)
    assert_each_equal(model.get_weights(), own)
    assert all((a != b).any() for a, b in zip(own, shown, strict=True))


@jit_compile_is_thorough
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
    sync = tfring.LocalSGD(2, start=1)
    model = model_in_rounds(sync, backward_passes_per_step=2)
    met = []
    for x, y in zip(*batches_of(rank, 6), strict=True):
        model.train_on_batch(x, y)
        met.append(len(set(kernels_of(model))) == 1)
    if tfring.size() > 1:
        assert met == [True, True, True, False, False, True]


def test_a_continued_training_does_not_begin_anew(rank, size):
    """The steps before the first round are those that a file has counted."""
    model = model_in_rounds(tfring.LocalSGD(2, start=3))
    optimizer = model.optimizer
    optimizer.build(model.trainable_variables)
    if rank == 0:
        optimizer.iterations.assign(3)
    tfring.broadcast_variables([*model.variables, *optimizer.variables])
    assert len(set(kernels_after(model, rank, 1))) == size


@pytest.mark.parametrize("scaled", [thorough(False), True])
def test_a_file_has_the_outer_optimizers_state(scaled, rank, size, tmp_path):
    """Two trainings of two rounds are one of four, whoever loads the file."""

    def sync():
        outer = keras.optimizers.Adam(0.01)  # iterations and two momenta
        return {"sync": tfring.DiLoCo(2, outer=outer)}

    def new():
        model = built_model()
        optimizer = keras.optimizers.SGD(0.05)
        if scaled:
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        model.compile(tfring.DistributedOptimizer(optimizer, **sync()), LOSS)
        return model

    x, y = rows_of(batches_of(rank, 8))

    def fit(model, rows):
        model.fit(x[rows], y[rows], batch_size=8, shuffle=False, verbose=0)

    first_half, second_half = slice(32), slice(32, None)
    whole, first = new(), new()
    fit(whole, slice(None))
    fit(first, first_half)
    path = tmp_path / "model.keras"
    first.save(path)
    restored = new()
    restored.optimizer.build(restored.trainable_variables)
    restored.load_weights(path)
    loaded = tfring.load_model(path, **sync())
    for model in (restored, loaded):
        *_, in_rounds = with_inner(model.optimizer)
        assert in_rounds.outer_optimizer.iterations == 2
        fit(model, second_half)
        assert_close(model, whole.trainable_variables, 1e-6)


def test_local_variables_stay_each_ranks_own(rank, size):
    model = model_in_rounds(tfring.LocalSGD(2))
    model.optimizer.register_local_var(model.layers[0].kernel)
    kernels = kernels_after(model, rank, 4)
    assert_same_on_all_ranks(model.trainable_variables[1:])
    assert size == 1 or kernels[0] != kernels[1]


def test_within_a_set_every_step_is_common(sets, rank, size):
    """The last rank trains apart until all meet."""
    mine = tfring.global_process_set
    if size > 1:
        others, last = sets(range(size - 1), [size - 1])
        mine = last if rank == size - 1 else others
    model = model_in_rounds(tfring.LocalSGD(3, within=mine))
    kernels = kernels_after(model, rank, 2)
    assert len(set(kernels[: size - 1])) <= 1
    assert size == 1 or kernels[0] != kernels[-1]
    assert len(set(kernels_after(model, rank, 1))) == 1
    assert_same_on_all_ranks(model.trainable_variables)


def test_within_a_host_is_within_its_ranks(rank):
    """All ranks of the tests are on one."""
    together = fitted(tfring.DistributedOptimizer(inner()), rank, 4)
    optimizer = tfring.DistributedOptimizer(
        inner(), sync=tfring.LocalSGD(2, within="host")
    )
    model = fitted(optimizer, rank, 4)
    assert_close(model, [np.asarray(v) for v in together.trainable_variables])


def test_within_a_host_whose_set_is_known(
    rank, several_ranks, sets, size, monkeypatch
):
    """Rank 0 is a host of its own, and the program has added the others'."""
    nodes = [0, *[1] * (size - 1)]
    monkeypatch.setattr(type(runtime.job()), "nodes", lambda job: nodes)
    sets(range(1, size))
    model = model_in_rounds(tfring.LocalSGD(3, within="host"))
    kernels = kernels_after(model, rank, 2)
    assert len(set(kernels[1:])) == 1
    assert kernels[0] != kernels[1]


@jit_compile_is_thorough
def test_embeddings_keep_their_rows(jit_compile, rank, size):
    """Sparse gradients before the first round, and in it."""
    keras.utils.set_random_seed(1)
    optimizer = tfring.DistributedOptimizer(
        keras.optimizers.Adagrad(0.1), sync=tfring.LocalSGD(2, start=2)
    )
    model = compiled(
        optimizer,
        keras.Input((2,), dtype="int32"),
        keras.layers.Embedding(10, 4),
        keras.layers.Flatten(),
        keras.layers.Dense(1),
        jit_compile=jit_compile,
    )
    rng = np.random.default_rng(rank)
    for _ in range(6):
        model.train_on_batch(
            rng.integers(0, 10, (8, 2)), rng.normal(size=(8, 1))
        )
    assert_same_on_all_ranks(model.trainable_variables)


def test_a_lost_rank_costs_the_steps_since_the_last_meeting(rank, size):
    x, y = rows_of(batches_of(0, 6 * size))
    weights = []
    for callbacks in ([], [FailsOnce(0, 5)]):  # in the middle of a round
        model = model_in_rounds(tfring.DiLoCo(3))
        tfring.elastic.fit(
            *(model, x, y),
            batch_size=8,
            epochs=2,
            callbacks=callbacks,
            verbose=0,
            same_seeds=True,
        )
        assert_same_on_all_ranks(model.trainable_variables)
        weights.append(model.get_weights())
    # The weights differ a little, because all ranks continue with the momenta
    # of rank 0.
    undisturbed, failed = weights
    assert_each_close(failed, undisturbed, atol=0.02)
