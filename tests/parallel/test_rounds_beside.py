"""Rounds beside what else a training has: files, callbacks, frozen layers."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import (
    assert_each_close,
    assert_each_equal,
    assert_same_on_all_ranks,
    thorough,
)

import tfring
from tfring._state.records import notes_on


def data(rank, shift=0.0):
    x = np.random.default_rng(rank).normal(size=(256, 4)) + shift
    return x.astype("float32"), x.sum(1, keepdims=True).astype("float32")


def distributed(sync, inner=None, **options):
    inner = inner or keras.optimizers.SGD(0.01)
    return tfring.DistributedOptimizer(inner, sync=sync, **options)


def compiled(optimizer, *layers):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((4,)), *layers, keras.layers.Dense(1, name="last")]
    )
    return compile_again(model, optimizer)


def compile_again(model, optimizer, run_eagerly=True):
    """Eagerly, as there are few steps; `test_rounds.py` has graphs."""
    model.compile(optimizer, "mse", run_eagerly=run_eagerly)
    return model


def fit(model, rank, batches=8, shift=0.0, **options):
    x, y = (each[: 32 * batches] for each in data(rank, shift))
    model.fit(x, y, batch_size=32, shuffle=False, verbose=0, **options)


def at_epoch_ends(action):
    return keras.callbacks.LambdaCallback(on_epoch_end=action)


@pytest.mark.parametrize("run_eagerly", [thorough(True), False])
def test_the_first_round_shows_the_statistics_before_it(run_eagerly, rank):
    norm = keras.layers.BatchNormalization(momentum=0.5)
    model = compiled(distributed(tfring.DiLoCo(20, start=6)), norm)
    compile_again(model, model.optimizer, run_eagerly)
    seen = []
    look = at_epoch_ends(lambda *_: seen.append(norm.moving_mean.numpy()))
    fit(model, rank, shift=5.0, callbacks=[look])
    assert np.all(seen[0] > 4)
    assert_same_on_all_ranks(seen)


def test_statistics_are_loaded_between_fits(rank, shared_path):
    path = f"{shared_path}/norm.weights.h5"
    norm = keras.layers.BatchNormalization(momentum=0.5)
    model = compiled(distributed(tfring.LocalSGD(5)), norm)
    fit(model, rank, shift=10.0)
    if rank == 0:
        model.save_weights(path)
    tfring.barrier()
    fit(model, rank, shift=-10.0)
    model.load_weights(path)
    seen = []
    look = at_epoch_ends(lambda *_: seen.append(norm.moving_mean.numpy()))
    fit(model, rank, 3, shift=10.0, callbacks=[look])
    assert np.all(seen[0] > 9)


@pytest.mark.parametrize("run_eagerly", [True, thorough(False)])
def test_outer_momentum_moves_no_frozen_layer(run_eagerly, rank):
    frozen = keras.layers.Dense(3)
    model = compiled(distributed(tfring.DiLoCo(4)), frozen)
    fit(model, rank)
    frozen.trainable = False
    compile_again(model, model.optimizer, run_eagerly)
    before = frozen.get_weights()
    fit(model, rank)
    assert_each_equal(frozen.get_weights(), before)


def test_a_layer_is_frozen_in_a_round(several_ranks, rank):
    frozen = keras.layers.Dense(3)
    model = compiled(distributed(tfring.DiLoCo(4)), frozen)
    x, y = data(rank)
    model.train_on_batch(x, y)
    frozen.trainable = False
    compile_again(model, model.optimizer)
    for _ in range(3):
        model.train_on_batch(x, y)
    assert_same_on_all_ranks(model.weights)


class Scale(keras.layers.Layer):
    def build(self, shape):
        self.factor = self.add_weight(
            shape=(), initializer="ones", trainable=False
        )

    def call(self, x):
        return x * self.factor


def test_a_callback_s_value_stays(rank):
    scale = Scale()
    model = compiled(distributed(tfring.LocalSGD(3)), scale)
    seen = []

    def look(epoch, logs):
        seen.append(float(scale.factor))

    def grow(epoch, logs):
        scale.factor.assign(epoch + 2.0)

    both = keras.callbacks.LambdaCallback(
        on_epoch_begin=look, on_epoch_end=grow
    )
    fit(model, rank, epochs=3, callbacks=[both])
    assert [*seen, float(scale.factor)] == [1, 2, 3, 4]


@pytest.mark.parametrize("before", [True, thorough(False)])
def test_a_checkpoint_has_the_outer_optimizer(before, rank, tmp_path):
    """Restored before the optimizer is built, or after it."""
    model = compiled(distributed(tfring.DiLoCo(4)))
    fit(model, rank)
    saved = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    path = saved.save(tmp_path / "training")
    other = compiled(distributed(tfring.DiLoCo(4)))
    again = tf.train.Checkpoint(model=other, optimizer=other.optimizer)
    if not before:
        other.optimizer.build(other.trainable_variables)
    restored = again.restore(path)
    if before:
        other.optimizer.build(other.trainable_variables)
    restored.assert_consumed()
    assert_each_equal(
        other.optimizer.outer_optimizer.variables,
        model.optimizer.outer_optimizer.variables,
    )


def test_a_round_that_was_left_open_ends(several_ranks, rank):
    model = compiled(distributed(tfring.LocalSGD(100)))
    x, y = data(rank)
    model.train_on_batch(x, y)
    compile_again(model, distributed(None))
    fit(model, rank)
    assert_same_on_all_ranks(model.weights)


@pytest.mark.parametrize(
    "sync", [tfring.LocalSGD(100), thorough(tfring.Gossip())]
)
def test_means_keep_constraints(sync, rank):
    layer = keras.layers.Dense(
        2, kernel_constraint=keras.constraints.UnitNorm(axis=0)
    )
    model = compiled(distributed(sync), layer)
    fit(model, rank)
    norms = np.linalg.norm(layer.get_weights()[0], axis=0)
    np.testing.assert_allclose(norms, 1, rtol=1e-5)


def test_a_multi_optimizer_s_updates_count(several_ranks, rank):
    layers = keras.optimizers.OptimizerMap(
        keras.optimizers.SGD(0.01, gradient_accumulation_steps=2, use_ema=True)
    )
    both = keras.optimizers.MultiOptimizer(layers)
    model = compiled(distributed(tfring.LocalSGD(2), both))
    x, y = data(rank)
    alike = []
    for _ in range(4):
        model.train_on_batch(x, y)
        kernels = tfring.allgather_object(model.get_weights()[0].tobytes())
        alike.append(len(set(kernels)) == 1)
    assert alike[1:] == [False, False, True]
    fit(model, rank)  # Keras takes the averages of weights at its end.


def test_a_file_counts_after_steps_of_another_training(
    several_ranks, rank, shared_path
):
    path = f"{shared_path}/first.weights.h5"

    def new():
        model = compiled(distributed(tfring.LocalSGD(100, start=8)))
        model.optimizer.build(model.trainable_variables)
        return model

    first = new()
    fit(first, rank)
    if rank == 0:
        first.save_weights(path)
    tfring.barrier()
    model = new()
    x, y = data(rank)
    model.train_on_batch(x, y)
    model.load_weights(path)
    model.train_on_batch(x, y)
    assert model.optimizer._tfring_round.is_between_meetings()


def test_a_saver_leaves_each_rank_its_accumulators(rank, tmp_path):
    weights = []
    saves = keras.callbacks.ModelCheckpoint(tmp_path / "a.keras")
    for callbacks in ([], [saves]):
        optimizer = distributed(tfring.LocalSGD(20), backward_passes_per_step=2)
        model = compiled(optimizer)
        fit(model, rank, 3, epochs=2, callbacks=callbacks)
        weights.append(model.get_weights()[0])
    np.testing.assert_array_equal(*weights)


def in_parts(**of_the_last):
    """Two optimizers, one of them for the layer `last`."""
    last = distributed(None, **of_the_last)
    parts = keras.optimizers.OptimizerMap(distributed(None), {"last/.*": last})
    return keras.optimizers.MultiOptimizer(parts)


def test_one_loss_scale_is_for_optimizers_that_reduce_alike(rank):
    scaled = keras.optimizers.LossScaleOptimizer
    x, y = data(rank)
    model = compiled(scaled(in_parts()), keras.layers.Dense(3))
    model.train_on_batch(x, y)
    assert_same_on_all_ranks(model.weights)
    model = compiled(scaled(in_parts(op=tfring.Sum)), keras.layers.Dense(3))
    with pytest.raises(NotImplementedError, match="different ways"):
        model.train_on_batch(x, y)


def test_a_scaled_file_goes_on_with_its_passes(rank, tmp_path):
    inner = distributed(None, backward_passes_per_step=2)
    x, y = data(rank)
    model = compiled(keras.optimizers.LossScaleOptimizer(inner))
    model.train_on_batch(x, y)
    model.train_on_batch(x, y)
    model.save(tmp_path / "scaled.keras")
    again = tfring.load_model(
        tmp_path / "scaled.keras", backward_passes_per_step=2
    )
    for each in (model, again):
        each.train_on_batch(x, y)
        each.train_on_batch(x, y)
    assert_each_close(again.weights, model.weights, rtol=1e-6)


def test_averages_of_shares_leave_a_frozen_layer(rank):
    layer = keras.layers.Dense(3)
    inner = keras.optimizers.SGD(0.01, use_ema=True, ema_momentum=0.9)
    optimizer = distributed(None, inner, shard_states=True)
    model = compiled(optimizer, layer)
    fit(model, rank)
    layer.trainable = False
    layer.set_weights([np.full((4, 3), 7.0), np.full(3, 3.0)])
    compile_again(model, optimizer)
    fit(model, rank)
    assert np.all(layer.get_weights()[0] == 7)


class Holder:
    """An object of a user's, with whatever it is given."""

    def __init__(self, **attributes):
        vars(self).update(attributes)


class Taught(keras.Model):
    """A student, and a teacher that follows it without an optimizer."""

    def __init__(self, teacher_is_frozen=True, optimizer_in=None):
        super().__init__()
        self.student, self.teacher = (keras.layers.Dense(3) for _ in range(2))
        self.constant = keras.layers.Dense(3, trainable=False)
        for layer in (self.student, self.teacher, self.constant):
            layer.build((None, 4))
        self.teacher.set_weights(self.student.get_weights())
        self.teacher.trainable = not teacher_is_frozen
        self.optimizer_in = optimizer_in
        self.built = True

    def call(self, x):
        return self.student(x)

    def train_step(self, batch):
        x, y = batch[:2]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.student(x) - y) ** 2)
        trained = self.student.trainable_variables
        optimizer = self.optimizer_in(self) if self.optimizer_in else None
        (optimizer or self.optimizer).apply(
            tape.gradient(loss, trained), trained
        )
        for own, seen in zip(
            self.teacher.weights, self.student.weights, strict=True
        ):
            own.assign(0.9 * own + 0.1 * seen)
        return {"loss": loss}


def taught(optimizer, run_eagerly=True, **how):
    keras.utils.set_random_seed(0)
    return compile_again(Taught(**how), optimizer, run_eagerly)


@pytest.mark.parametrize(
    "sync",
    [
        tfring.LocalSGD(3),
        thorough(tfring.DiLoCo(3)),
        thorough(tfring.Gossip(every=3)),
    ],
    ids=["LocalSGD", "DiLoCo", "Gossip"],
)
@pytest.mark.parametrize(
    ("is_frozen", "run_eagerly"),
    [(True, False), (False, True), thorough(False, False)],
)
def test_a_teacher_is_the_same_at_the_ends_of_epochs(
    sync, is_frozen, run_eagerly, rank
):
    model = taught(distributed(sync), run_eagerly, teacher_is_frozen=is_frozen)
    constant = model.constant.get_weights()
    seen = []
    look = at_epoch_ends(lambda *_: seen.extend(model.teacher.get_weights()))
    fit(model, rank, 4, epochs=2, callbacks=[look])
    assert_same_on_all_ranks(seen)
    assert_same_on_all_ranks(model.weights)
    assert_each_equal(model.constant.get_weights(), constant)


def test_a_meeting_by_hand_is_for_a_teacher_too(rank):
    model = taught(distributed(tfring.LocalSGD(3)))
    x, _ = data(rank)
    model.train_on_batch(x, np.ones((len(x), 3), "float32"))
    model.optimizer.meet()
    assert_same_on_all_ranks(model.weights)


def layer_with(optimizer):
    layer = keras.layers.Flatten()
    layer.its = optimizer
    return layer


PLACES = {
    "a layer": layer_with,
    "an object": lambda optimizer: Holder(its=optimizer),
    "a list in an object": lambda optimizer: Holder(all=[{"its": optimizer}]),
    "an object in an object": lambda optimizer: Holder(
        deep=Holder(its=optimizer)
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_an_optimizer_of_a_part_is_found(place, rank):
    optimizer = distributed(tfring.LocalSGD(3))
    model = taught(None, optimizer_in=lambda _: optimizer)
    model.part = PLACES[place](optimizer)
    fit(model, rank, 4)
    assert_same_on_all_ranks(model.weights)


def test_fit_refuses_an_optimizer_that_it_does_not_find(rank):
    optimizer = distributed(tfring.LocalSGD(3))
    model = taught(None, optimizer_in=lambda _: optimizer)
    with pytest.raises(RuntimeError, match="make it an attribute"):
        fit(model, rank)


@pytest.mark.parametrize("traced_before", [False, True])
def test_fit_refuses_an_optimizer_that_another_model_has(traced_before, rank):
    """A step that was traced before is seen where the `fit` ends."""
    keras.utils.set_random_seed(0)
    optimizer = distributed(tfring.LocalSGD(3))
    model = Taught(optimizer_in=lambda _: optimizer)
    owner = keras.Sequential([keras.Input((4,)), model.student])
    fit(compile_again(owner, optimizer, run_eagerly=False), rank, 4)
    compile_again(model, None)
    if traced_before:
        model.train_step = tf.function(model.train_step)
        model.train_step([each[:32] for each in data(rank)])
        optimizer.meet()
    with pytest.raises(RuntimeError, match="make it an attribute"):
        fit(model, rank, 4)


def test_statistics_of_all_models_become_means(rank):
    """An optimizer trains two models by turns, which share one layer."""
    keras.utils.set_random_seed(0)
    optimizer = distributed(tfring.LocalSGD(3))
    shared = keras.layers.Dense(1)
    models = [
        keras.Sequential(
            [keras.Input((4,)), keras.layers.BatchNormalization(), shared]
        )
        for _ in range(2)
    ]
    optimizer.build([v for m in models for v in m.trainable_variables])
    x, y = data(rank, shift=float(rank))
    for model in models:
        compile_again(model, optimizer)
    for _ in range(2):
        for model in models:
            model.train_on_batch(x, y)
    optimizer.meet()
    for model in models:
        assert_same_on_all_ranks(model.weights)


def test_models_that_share_a_layer_train_by_turns(rank):
    """With rounds that are open where the other model's training begins."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((4,))
    trunk = keras.layers.Dense(3, "tanh")(inputs)
    models = [
        compile_again(
            keras.Model(inputs, keras.layers.Dense(1)(trunk)),
            distributed(tfring.LocalSGD(3)),
        )
        for _ in range(2)
    ]
    for _ in range(2):
        for model in models:
            fit(model, rank, 4, epochs=2)
            assert_same_on_all_ranks(model.weights)


def test_another_optimizer_takes_over(rank):
    model = compiled(distributed(tfring.LocalSGD(3)))
    fit(model, rank, 4)
    compile_again(model, distributed(tfring.DiLoCo(3)))
    fit(model, rank, 4)
    assert_same_on_all_ranks(model.weights)
    [only] = {each for v in model.weights for each in notes_on(v).rounds}
    assert only is model.optimizer._tfring_round
