"""ShardedEmbedding is keras.layers.Embedding of one process."""

from __future__ import annotations

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import (
    all_thorough_but,
    assert_alike,
    assert_each_close,
    assert_each_equal,
    assert_same_on_all_ranks,
    bits_of,
    compiled,
    state_bits,
    thorough,
    with_loss_scale,
    without_xla,
)
from sharded_tables import (
    BATCH,
    OPTIMIZERS,
    ROWS,
    STEPS,
    TABLE,
    WIDTH,
    batches_of,
    fit,
    make_model,
    model_with,
    with_table,
)

import tfring
from tfring._state.records import notes_on
from tfring.layers import ShardedEmbedding, sharded_embedding


def batches_of_all(size):
    """Batches of one process: each has a batch of every rank."""
    of_ranks = [batches_of(rank) for rank in range(size)]
    return [
        np.concatenate(
            [part.reshape(STEPS, BATCH, -1) for part in parts], axis=1
        ).reshape(STEPS * size * BATCH, -1)
        for parts in zip(*of_ranks, strict=True)
    ]


def trained_alone(name, size, passes=1):
    """The model of one process, with dense gradients."""
    accumulation = {"gradient_accumulation_steps": passes} if passes > 1 else {}
    model = model_with(
        OPTIMIZERS[name](**accumulation), keras.layers.Embedding(ROWS, WIDTH)
    )
    model.layers[0].set_weights([TABLE])
    ids, y = batches_of_all(size)
    for begin in range(0, len(ids), size * BATCH):
        part = slice(begin, begin + size * BATCH)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(ids[part]) - y[part]) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply(
            [tf.convert_to_tensor(each) for each in gradients],
            model.trainable_variables,
        )
    return model


def assert_trained(model, expected):
    [embedding, _, dense] = model.layers
    found = [embedding.table(), *dense.variables]
    assert_each_close(found, expected.variables, rtol=0, atol=1e-6)
    assert_same_on_all_ranks(dense.variables)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fit(name, rank, size):
    callbacks = [
        tfring.callbacks.BroadcastGlobalVariablesCallback(0),
        tfring.callbacks.ConsistencyCheckCallback(1),
    ]
    model = fit(make_model(OPTIMIZERS[name]()), callbacks=callbacks)
    assert not model.jit_compile
    assert_trained(model, trained_alone(name, size))


@without_xla
@pytest.mark.parametrize("by", ["tape", "optimizer"])
def test_loop(by, mode, rank, size):
    """With the variables of Keras, and with TensorFlow's inside them."""
    optimizer = OPTIMIZERS["Adam"]()
    if by == "optimizer":
        tfring.DistributedOptimizer(optimizer)
    model = model_with(optimizer)
    variables = model.trainable_variables
    optimizer.build(variables)
    tfring.broadcast_variables([*model.variables, *optimizer.variables])

    @mode
    def step(ids, y):
        tape = tf.GradientTape()
        if by == "tape":
            tape = tfring.DistributedGradientTape(tape)
        with tape:
            loss = tf.reduce_mean((model(ids) - y) ** 2)
        gradients = tape.gradient(loss, [each.value for each in variables])
        optimizer.apply(gradients, variables)

    ids, y = (tf.constant(each) for each in batches_of(rank))
    for begin in range(0, len(ids), BATCH):
        step(ids[begin : begin + BATCH], tf.cast(y, "float32")[begin:][:BATCH])
    assert_trained(model, trained_alone("Adam", size))


@without_xla
@pytest.mark.parametrize(
    "shape_of", [lambda r: (), lambda r: (r,), lambda r: (2, r, 3)]
)
def test_ids_of_any_shape(shape_of, mode, rank):
    """Rank 0 has none, where the shape has a dimension of its rank."""
    embedding = with_table()
    ids = np.random.default_rng(rank).integers(0, ROWS, shape_of(rank))
    for dtype in ("int32", "int64", "uint8", "float32"):
        rows = mode(embedding)(tf.constant(ids, dtype))
        np.testing.assert_array_equal(rows, TABLE[ids])


def test_ragged_ids_and_masks(rank):
    embedding = with_table(mask_zero=True)
    ids = [[0, 5], [], [7] * (rank + 1)]
    rows = embedding(tf.ragged.constant(ids, tf.int64))
    assert [len(each) for each in rows] == [2, 0, rank + 1]
    np.testing.assert_array_equal(rows.flat_values[1], TABLE[5])
    mask = embedding.compute_mask(np.array([0, 5]))
    assert mask.numpy().tolist() == [False, True]


@pytest.mark.parametrize(("rows", "width"), [(1, 2), (3, 1)])
def test_fewer_rows_than_ranks(rows, width, rank):
    embedding = ShardedEmbedding(rows, width)
    optimizer = tfring.DistributedOptimizer("adam")
    model = compiled(optimizer, keras.Input((1,)), embedding)
    before = embedding.table()
    x = np.full((4, 1), rows - 1)
    model.fit(x, np.ones((4, 1, width)), verbose=0)
    moved = (embedding.table() != before).all(axis=1)
    assert moved.tolist() == [False] * (rows - 1) + [True]


@without_xla
@pytest.mark.parametrize("wrong", [ROWS, -1])
def test_an_id_out_of_range_is_an_error_on_every_rank(wrong, mode, rank, size):
    embedding = ShardedEmbedding(ROWS, WIDTH, name="words")
    embedding.build()
    look_up = mode(embedding)
    ids = [[3, wrong], [4, 4]] if rank == size - 1 else [[5, 6], [1, 2]]
    message = rf"words: rank {size - 1} looks up the id {wrong};.*\[0, {ROWS}"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        look_up(tf.constant(ids))
    assert look_up(tf.constant([[1, 2], [3, 4]])).shape == (2, 2, WIDTH)


def test_distinct_rows_travel(rank, size):
    """A rank sends `size() - 1` of `size()` parts to others, each way."""
    embedding = ShardedEmbedding(ROWS, 16)
    embedding.build()
    before = tfring.statistics().sent_bytes["alltoall"]
    with tf.GradientTape() as tape:
        rows = embedding(tf.constant([0, 1, 2, 1, 0, 5]))
        loss = tf.reduce_sum(rows)
    tape.gradient(loss, embedding.rows.value)
    sent = tfring.statistics().sent_bytes["alltoall"] - before
    counts = np.bincount(np.array([0, 1, 2, 5]) % size, minlength=size)
    own, others = counts[rank], 4 - counts[rank]
    row_bytes = 16 * 4
    assert sent == (
        others * 8 + own * (size - 1) * row_bytes + others * row_bytes
    )


@pytest.mark.parametrize("block", [sharded_embedding._BLOCK_ELEMENTS, 12])
def test_initial_rows_do_not_depend_on_the_number_of_ranks(block, monkeypatch):
    monkeypatch.setattr(sharded_embedding, "_BLOCK_ELEMENTS", block)
    uniform = keras.initializers.RandomUniform(seed=5)
    table = ShardedEmbedding(ROWS, WIDTH, uniform).table()
    first = uniform((min(block // WIDTH, ROWS), WIDTH))
    np.testing.assert_array_equal(table[: len(first)], first)
    assert len({row.tobytes() for row in table}) == ROWS
    assert_alike(table.tobytes())


def check_file(path, name, size):
    """Table and momenta are those of one process."""
    model = trained_alone(name, size)
    expected = [*model.variables, *model.optimizer.variables]
    of_file = []

    def take(key, item):
        if isinstance(item, h5py.Dataset):
            of_file.append(np.array(item))

    with h5py.File(path) as file:
        file.visititems(take)
    for variable in expected:
        assert any(
            value.shape == tuple(variable.shape)
            and np.allclose(value, variable, rtol=1e-5, atol=1e-6)
            for value in of_file
        ), variable.path
    assert len(of_file) == len(expected)


@pytest.mark.parametrize("name", all_thorough_but(["Adam"], OPTIMIZERS))
def test_callbacks_save_the_whole_table(name, rank, size, shared_path):
    saves = keras.callbacks.ModelCheckpoint(f"{shared_path}/all.keras")
    weights = keras.callbacks.ModelCheckpoint(
        f"{shared_path}/all.weights.h5", save_weights_only=True
    )
    model = make_model(OPTIMIZERS[name]())
    fit(model, callbacks=[saves, weights])
    table = model.layers[0].table()
    if rank == 0:
        check_file(f"{shared_path}/all.weights.h5", name, size)
    again = tfring.load_model(f"{shared_path}/all.keras")
    np.testing.assert_array_equal(again.layers[0].table(), table)
    # The loaded model has the momenta, too: both train on alike.
    for each in (again, model):
        fit(each)
    assert state_bits(again) == state_bits(model)


class Deferred(keras.Model):
    """Is built by its first batch, and has a table that is not trained."""

    def __init__(self):
        super().__init__()
        self.words = ShardedEmbedding(ROWS, WIDTH, "random_normal")
        self.fixed = ShardedEmbedding(ROWS, WIDTH, "ones", trainable=False)
        self.top = keras.layers.Dense(1)

    def call(self, ids):
        return self.top(tf.reduce_mean(self.words(ids) + self.fixed(ids), 1))


def test_a_model_that_its_first_batch_builds(rank, shared_path):
    path = f"{shared_path}/deferred.weights.h5"
    model = Deferred()
    model.compile(tfring.DistributedOptimizer("adam"), "mse")
    saves = keras.callbacks.ModelCheckpoint(path, save_weights_only=True)
    broadcast = tfring.callbacks.BroadcastGlobalVariablesCallback(0)
    ids, y = batches_of(rank)
    fit(model, callbacks=[broadcast, saves], validation_data=(ids, y))
    again = Deferred()
    again(ids)
    again.load_weights(path)
    assert bits_of(again.variables) == bits_of(model.variables)
    assert (again.fixed.table() == 1).all()
    assert model.predict(ids, verbose=0).shape == (STEPS * BATCH, 1)


def test_another_root_cannot_share_what_it_has_loaded(several_ranks, rank):
    embedding = ShardedEmbedding(ROWS, WIDTH)
    embedding.build()
    if rank == 1:
        embedding.set_table(TABLE)
    with pytest.raises(RuntimeError, match="Load on rank 0, or on every"):
        tfring.broadcast_variables(embedding.variables, 1)


@pytest.mark.parametrize("scaled", [False, True])
def test_accumulated_gradients(scaled, rank, size, shared_path):
    """A file has their mean, so that they may go on with other ranks."""
    path = f"{shared_path}/model.keras"
    adam = OPTIMIZERS["Adam"](gradient_accumulation_steps=2)
    model = model_with(
        with_loss_scale(adam, inside=True)
        if scaled
        else tfring.DistributedOptimizer(adam)
    )
    fit(model, callbacks=[keras.callbacks.ModelCheckpoint(path)])
    expected = trained_alone("Adam", size, passes=2)
    assert_trained(model, expected)
    plain = keras.models.load_model(path).optimizer
    for state, reference in zip(
        (plain.inner_optimizer if scaled else plain).variables,
        expected.optimizer.variables,
        strict=True,
    ):
        shard = notes_on(state).shard
        state = state.numpy() if shard is None else shard.gather()
        np.testing.assert_allclose(state, reference, rtol=1e-5, atol=1e-6)
    again = tfring.load_model(path).optimizer
    # Accumulators of other variables are each rank's own in memory.
    own = model.optimizer.variables
    for one, other in zip(again.variables, own, strict=True):
        if notes_on(other).shard is not None:
            np.testing.assert_array_equal(one, other)


def test_a_sum_of_accumulated_gradients(rank, size):
    optimizer = keras.optimizers.SGD(
        0.1 / size, momentum=0.9, gradient_accumulation_steps=2
    )
    model = fit(make_model(optimizer, op=tfring.Sum))
    assert_trained(model, trained_alone("SGD", size, passes=2))


@pytest.mark.parametrize("inside", [False, thorough(True)])
def test_loss_scale(inside, rank, size, shared_path):
    path = f"{shared_path}/model.keras"
    optimizer = with_loss_scale(OPTIMIZERS["Adam"](), inside=inside)
    model = model_with(optimizer)
    fit(model, callbacks=[keras.callbacks.ModelCheckpoint(path)])
    assert_trained(model, trained_alone("Adam", size))
    again = tfring.load_model(path)
    assert_each_equal(again.optimizer.variables, optimizer.variables)


def test_mixed_precision(rank, size):
    embedding = with_table(dtype="mixed_bfloat16")
    rows = embedding(tf.constant([2.0, 17.0]))
    assert rows.dtype == tf.bfloat16
    np.testing.assert_array_equal(rows, tf.cast(TABLE[[2, 17]], tf.bfloat16))
    assert embedding.table().dtype == np.float32


def test_to_embedding(rank):
    model = fit(make_model())
    [layer, *_] = model.layers
    embedding = layer.to_embedding()
    served = keras.models.clone_model(
        model,
        clone_function=lambda each: embedding if each is layer else each,
    )
    ids = batches_of(rank)[0]
    np.testing.assert_array_equal(served(ids), model(ids))


def test_a_tree_of_the_states_has_whole_tables(rank):
    trees = []

    class Saver(keras.callbacks.Callback):
        save_freq = "epoch"

        def on_epoch_end(self, epoch, logs=None):
            trees.append(self.model.get_state_tree(value_format="numpy_array"))

    model = make_model()
    fit(model, callbacks=[Saver()])
    leaves = dict(keras.tree.flatten_with_path(trees[-1]))
    tables = [v for v in leaves.values() if np.shape(v) == (ROWS, WIDTH)]
    assert len(tables) == 3  # and two moments
    before = [w.numpy() for w in model.weights]
    tree = trees[-1]
    fit(model)
    model.set_state_tree(tree)
    assert_each_equal(model.weights, before)
