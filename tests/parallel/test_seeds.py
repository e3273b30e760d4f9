"""Each rank draws noise of its own, and the same again when it is resumed."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import (
    assert_all_differ,
    assert_same_on_all_ranks,
    bits_of,
    compiled,
    state_bits,
    thorough,
    without_xla,
)

import tfring
from tfring import elastic
from tfring._state.seeds import folded, is_seed


def noisy():
    """Its output in training is all of the noise that it draws."""
    return compiled(
        tfring.DistributedOptimizer(keras.optimizers.Adam(0.01)),
        keras.Input((8,)),
        keras.layers.GaussianNoise(1.0),
        keras.layers.Dense(1),
        keras.layers.Dropout(0.5),
    )


def seeds_of(model):
    return [v for v in model.variables if is_seed(v)]


def fit(model, epochs=1, **arguments):
    callbacks = [tfring.callbacks.BroadcastGlobalVariablesCallback(**arguments)]
    x, y = np.zeros((4, 8)), np.zeros((4, 1))
    model.fit(x, y, 2, epochs, verbose=0, callbacks=callbacks)


@pytest.mark.parametrize("of_rank", [lambda rank: 0, lambda rank: rank])
def test_fit_draws_noise_of_its_own(of_rank, rank, size):
    keras.utils.set_random_seed(1000 + of_rank(rank))
    model = noisy()
    before = [v.numpy() for v in seeds_of(model)]
    assert len(before) == 2
    fit(model)
    assert_all_differ(seeds_of(model))
    drawn = model.layers[0](np.zeros((1, 8)), training=True)
    assert_all_differ([drawn])
    # Two batches; rank 0's seeds are as they were.
    for seed, first in zip(seeds_of(model), before, strict=True):
        assert seed.numpy()[1] >= 2
        if rank == 0:
            assert seed.numpy()[0] == first[0]


def test_fit_with_the_same_noise_if_asked_for(rank):
    keras.utils.set_random_seed(1000 + rank)
    model = noisy()
    fit(model, same_seeds=True)
    assert_same_on_all_ranks(seeds_of(model))


@without_xla
def test_a_loop_of_ones_own(mode, rank, size):
    keras.utils.set_random_seed(7)
    model = noisy()

    @mode
    def first():
        tfring.broadcast_variables(model.variables)

    @mode
    def from_the_last():
        tfring.broadcast_(model.variables, size - 1, name="seeds")

    @mode
    def with_the_same():
        tfring.broadcast_variables(model.variables, same_seeds=True)

    first()
    assert_all_differ(seeds_of(model))
    own = bits_of(seeds_of(model))
    # From any rank, and any number of times, a rank's are the same.
    from_the_last()
    first()
    assert bits_of(seeds_of(model)) == own
    if rank == 1:  # as if it had drawn less
        for seed in seeds_of(model):
            seed.assign([3, 0])
    first()
    assert bits_of(seeds_of(model)) == own
    with_the_same()
    assert_same_on_all_ranks(seeds_of(model))


def test_elastic_states(rank):
    keras.utils.set_random_seed(rank)
    model = noisy()
    state = elastic.KerasState(model, epoch=0)
    state.sync()
    assert_all_differ(seeds_of(model))
    own = bits_of(seeds_of(model))
    for seed in seeds_of(model):
        seed.assign_add([0, 5])
    state.restore()
    state.sync()
    assert bits_of(seeds_of(model)) == own
    elastic.KerasState(model, same_seeds=True).sync()
    assert_same_on_all_ranks(seeds_of(model))
    generator = keras.random.SeedGenerator(rank)
    elastic.TensorFlowState([generator.state]).sync()
    assert_all_differ([generator.state])
    elastic.TensorFlowState([generator.state], same_seeds=True).sync()
    assert_same_on_all_ranks([generator.state])


def states_of(model):
    """The bits on all ranks, by rank."""
    return tfring.allgather_object(state_bits(model))


def test_a_run_that_is_resumed_draws_what_it_would_have_drawn(rank, tmp_path):
    keras.utils.set_random_seed(50 + rank)
    model = noisy()
    fit(model, epochs=1)
    if rank == 0:
        model.save(tmp_path / "last.keras")
        # Keras saves no seeds.
        seeds = [v.numpy() for v in seeds_of(model)]
    fit(model, epochs=2)
    expected = states_of(model)

    keras.utils.set_random_seed(90 + rank)  # other processes
    resumed = noisy()
    if rank == 0:  # which alone has the files
        resumed = tfring.load_model(tmp_path / "last.keras")
        for variable, value in zip(seeds_of(resumed), seeds, strict=True):
            variable.assign(value)
    fit(resumed, epochs=2)
    assert states_of(resumed) == expected


def test_ranks_far_from_each_other():
    states = [
        folded(tf.constant([2**31 - 5, 9], tf.int64), r) for r in range(9)
    ]
    seeds = [int(state[0]) for state in states]
    assert seeds[0] == 2**31 - 5
    assert len(set(seeds)) == 9
    assert all(0 <= seed < 2**31 - 2 or seed == seeds[0] for seed in seeds)
    assert all(int(state[1]) == 9 for state in states)


def noise_of_tensorflow(x):
    return x + tf.random.normal([8])


def noise_in_a_branch(x):
    return tf.cond(x[0] < 1, lambda: x + tf.random.uniform([8]), lambda: x)


def noise_of_keras():
    layer = keras.layers.GaussianNoise(1.0)
    return lambda x: layer(x, training=True)


@pytest.mark.parametrize(
    "noise",
    [
        thorough(lambda: noise_of_tensorflow),
        lambda: noise_in_a_branch,
        noise_of_keras,
    ],
)
def test_datasets_that_draw_alike_are_noticed(noise, rank, size, recwarn):
    def fit_noisy(seed):
        keras.utils.set_random_seed(seed)
        rows = tf.data.Dataset.from_tensor_slices(np.zeros((4, 8), np.float32))
        dataset = rows.shuffle(4).map(noise()).map(lambda x: (x, x[:1]))
        callback = tfring.callbacks.BroadcastGlobalVariablesCallback()
        noisy().fit(dataset.batch(2), verbose=0, callbacks=[callback])
        found = [
            w for w in recwarn.list if w.category is tfring.SameDrawsWarning
        ]
        recwarn.clear()
        return found

    assert not fit_noisy(42 + rank)
    found = fit_noisy(42)
    assert len(found) == (size > 1 and rank == 0)
    for warning in found:
        assert "draw the same random numbers" in str(warning.message)
