"""A user's scripts do the same on several ranks as on one.

Models and data are from `user_scripts`, which does not use tfring. This file
has the lines that a user adds, and tests the promises: all ranks have the same
bits; with equal noise, the weights equal the weights of one process with the
global batch; each rank has its own noise; and plain Keras loads the files.
"""

from __future__ import annotations

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
import user_scripts
from helpers import (
    assert_alike,
    assert_all_differ,
    assert_each_close,
    bits_of,
    compiled,
)

import tfring

_BATCH = 8  # of a rank

# The reference trains on each rank alone on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::tfring.NotDistributedWarning")


def start_from_rank_0():
    return tfring.callbacks.BroadcastGlobalVariablesCallback(0)


@pytest.fixture(autouse=True)
def _seeds(rank):
    # Each rank has different seeds, because a new user sets none.
    keras.utils.set_random_seed(100 + rank)
    yield
    keras.utils.set_random_seed(0)
    keras.backend.clear_session()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Saves a model with an output of it, for the last test."""
    folder = tmp_path_factory.mktemp("saved")

    def save(name, model, given):
        if tfring.rank() == 0:
            model.save(folder / f"{name}.keras")
            output = model(given, training=False)
            if not isinstance(given, dict):
                given = {"": given}
            given = {f"in_{key}": value for key, value in given.items()}
            np.savez(folder / f"{name}.npz", output=output.numpy(), **given)

    save.folder = folder
    return save


def assert_same_on_all_ranks(*models):
    own = [v.numpy() for m in models for v in m.trainable_variables]
    assert_alike(bits_of(own))
    assert all(np.isfinite(v).all() for v in own)


def of_dense_gradients(optimizer):
    """Keras squares each row of a sparse one by itself; tfring their sum."""
    apply = optimizer.apply

    def apply_dense(gradients, variables=None):
        apply([tf.convert_to_tensor(g) for g in gradients], variables)

    optimizer.apply = apply_dense
    return optimizer


def assert_as_alone(model, alone):
    assert_each_close(
        *(model.trainable_variables, alone.trainable_variables),
        rtol=1e-4,
        atol=2e-6,
    )


def give_weights_of_rank_0(model, source):
    """Gives `model`, of the same layers, the weights that rank 0 has."""
    model.set_weights(tfring.broadcast_object(source.get_weights(), 0))


def test_cnn_with_augmentation(rank, size, saved, shared_path):
    """With all of Keras's callbacks, as one has them in the list."""
    x, y = user_scripts.images(64)
    x, y = x[rank::size], y[rank::size]
    model = user_scripts.cnn()
    model.compile(
        tfring.DistributedOptimizer("adam"),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    history = model.fit(
        *(x, y),
        batch_size=_BATCH,
        epochs=3,
        verbose=0,
        validation_data=(x, y),
        callbacks=[
            start_from_rank_0(),
            keras.callbacks.EarlyStopping(patience=2),
            keras.callbacks.ReduceLROnPlateau("val_loss", patience=0),
            keras.callbacks.ModelCheckpoint(
                shared_path / "best.keras", save_best_only=True
            ),
            keras.callbacks.CSVLogger(shared_path / "log.csv"),
            keras.callbacks.BackupAndRestore(shared_path / "backup"),
            keras.callbacks.TerminateOnNaN(),
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate),
            keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: None),
        ],
    ).history
    assert_same_on_all_ranks(model)
    # Whatever it gives with noise is each rank's own.
    assert_all_differ([model(np.tile(x[:1], (16, 1, 1, 1)), training=True)])
    assert_alike(history)
    best = keras.saving.load_model(shared_path / "best.keras")
    together = tfring.metrics.evaluate(best, x, y, verbose=0)
    np.testing.assert_allclose(
        together["loss"], min(history["val_loss"]), rtol=1e-5
    )
    assert len((shared_path / "log.csv").read_text().splitlines()) == 1 + len(
        history["loss"]
    )
    saved("cnn", model, x[:4])


def language_model(make, adam, data, size, **how):
    """Trains on all ranks, and on one; returns the model of all ranks."""
    model, alone = make(), make()
    give_weights_of_rank_0(alone, model)
    rows = tf.data.Dataset.from_tensor_slices(data)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tfring.DistributedOptimizer(adam()), loss)
    mine = tfring.data.shard(rows, seed=None).batch(_BATCH)
    model.fit(mine, verbose=0, callbacks=[start_from_rank_0()], **how)
    assert_same_on_all_ranks(model)
    alone.compile(of_dense_gradients(adam()), loss)
    alone.fit(rows.batch(_BATCH * size), verbose=0, **how)
    assert_as_alone(model, alone)
    return model


@pytest.mark.thorough
def test_gpt(size, saved):
    def adam():
        return keras.optimizers.AdamW(0.01, global_clipnorm=1.0, epsilon=1e-3)

    data = user_scripts.texts(64)
    model = language_model(user_scripts.gpt, adam, data, size, epochs=2)
    saved("gpt", model, data[0][:4])


def build_optimizers(wgan, loads):
    """And gives them states, as from a checkpoint, if it `loads` one."""
    for network, optimizer in (
        (wgan.critic, wgan.c_optimizer),
        (wgan.generator, wgan.g_optimizer),
    ):
        optimizer.build(network.trainable_variables)
        for momentum in optimizer.variables[2:] if loads else ():
            momentum.assign(keras.ops.full(momentum.shape, 0.5))


@pytest.mark.thorough
def test_wgan_gp(rank, size, saved):
    def make():
        return user_scripts.WGANGP(
            user_scripts.discriminator(), user_scripts.generator()
        )

    def adam():
        return keras.optimizers.Adam(0.002, beta_1=0.5, epsilon=1e-3)

    rng = np.random.default_rng(2)
    x, _ = user_scripts.images(48)
    noise = rng.normal(size=(48, 3, user_scripts.LATENT)).astype(np.float32)
    alpha = rng.random((48, 2)).astype(np.float32)
    rows = tf.data.Dataset.from_tensor_slices(((x, noise, alpha),))
    rows = rows.map(lambda row: row)
    wgan, alone = make(), make()
    give_weights_of_rank_0(alone.critic, wgan.critic)
    give_weights_of_rank_0(alone.generator, wgan.generator)
    wgan.compile(
        tfring.DistributedOptimizer(adam()), tfring.DistributedOptimizer(adam())
    )
    build_optimizers(wgan, loads=rank == 0)
    mine = tfring.data.shard(rows, seed=None).batch(_BATCH)
    wgan.fit(mine, epochs=2, verbose=0, callbacks=[start_from_rank_0()])
    assert_same_on_all_ranks(wgan.critic, wgan.generator)
    alone.compile(adam(), adam())
    build_optimizers(alone, loads=True)
    alone.fit(rows.batch(_BATCH * size), epochs=2, verbose=0)
    assert_as_alone(wgan, alone)
    saved("wgan", wgan.critic, x[:2])


@pytest.mark.thorough
def test_keras_tuner(rank, size, tmp_path):
    """Each rank's tuner has a folder of its own, and they choose alike."""
    import keras_tuner

    x, y = user_scripts.images(32)
    x, y = x[rank::size], y[rank::size]

    def build(hp):
        width = hp.Int("width", 2, 16)
        rate = hp.Float("rate", 1e-4, 1e-1, sampling="log")
        return compiled(
            tfring.DistributedOptimizer(keras.optimizers.Adam(rate)),
            keras.Input((user_scripts.PIXELS, user_scripts.PIXELS, 1)),
            keras.layers.Flatten(),
            keras.layers.Dense(width, "relu"),
            keras.layers.Dense(2, "softmax"),
            loss="sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )

    tuner = keras_tuner.BayesianOptimization(
        build,
        objective="val_loss",
        max_trials=3,
        num_initial_points=2,
        seed=3,
        directory=tmp_path / str(rank),
        project_name="bars",
    )
    tuner.search(
        *(x, y),
        validation_data=(x, y),
        batch_size=_BATCH,
        epochs=2,
        verbose=0,
        callbacks=[
            start_from_rank_0(),
            tfring.callbacks.MetricAverageCallback(),
            keras.callbacks.EarlyStopping("val_loss", patience=1),
        ],
    )
    trials = sorted(
        (trial_id, trial.score, sorted(trial.hyperparameters.values.items()))
        for trial_id, trial in tuner.oracle.trials.items()
    )
    assert len(trials) == 3
    assert_alike(trials)
    [best] = tuner.get_best_models()
    assert_same_on_all_ranks(best)
    together = tfring.metrics.evaluate(best, x, y, verbose=0)
    best_score = min(score for _, score, _ in trials)
    np.testing.assert_allclose(together["loss"], best_score, rtol=1e-5)


def make_classifier(width):
    return compiled(
        tfring.DistributedOptimizer(keras.optimizers.Adam(0.01)),
        keras.Input((user_scripts.PIXELS**2,)),
        keras.layers.Dense(width, "relu"),
        keras.layers.Dense(2, "softmax"),
        loss="sparse_categorical_crossentropy",
    )


@pytest.mark.thorough
def test_scikeras(rank, size):
    import pickle

    from scikeras.wrappers import KerasClassifier
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, y = user_scripts.images(64)
    x = x.reshape(64, -1)
    classifier = KerasClassifier(
        make_classifier,
        model__width=4,
        batch_size=_BATCH,
        epochs=2,
        verbose=0,
        callbacks=[start_from_rank_0()],
    )
    pipeline = make_pipeline(StandardScaler(), classifier)
    # All folds on all ranks, of their own part each.
    search = GridSearchCV(
        pipeline,
        {"kerasclassifier__model__width": [2, 8]},
        cv=2,
        scoring=lambda estimator, x, y: float(
            tfring.allreduce(estimator.score(x, y), op=tfring.Average)
        ),
    )
    search.fit(x[rank::size], y[rank::size])
    scores = search.cv_results_["mean_test_score"].tolist()
    assert_alike((search.best_params_, scores))
    fitted = search.best_estimator_[-1]
    assert_same_on_all_ranks(fitted.model_)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(
        again.predict_proba(x), fitted.predict_proba(x)
    )


@pytest.mark.thorough
@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="keras_hub needs Python 3.11"
)
def test_keras_hub(size, saved):
    import keras_hub

    def make():
        backbone = keras_hub.models.GPT2Backbone(
            vocabulary_size=user_scripts.LETTERS,
            num_layers=1,
            num_heads=2,
            hidden_dim=16,
            intermediate_dim=32,
            dropout=0.0,
            max_sequence_length=user_scripts.LENGTH,
        )
        return keras_hub.models.GPT2CausalLM(
            backbone=backbone, preprocessor=None
        )

    def adam():
        return keras.optimizers.Adam(0.01, epsilon=1e-3)

    given, expected = user_scripts.texts(64)
    given = {"token_ids": given, "padding_mask": np.ones_like(given)}
    model = language_model(make, adam, (given, expected), size)
    saved("keras_hub", model, {key: value[:2] for key, value in given.items()})


@pytest.mark.thorough
def test_files_load_in_plain_keras(rank, saved):
    # The last one, in one process for all files.
    if rank == 0:
        files = sorted(map(str, saved.folder.glob("*.keras")))
        assert len(files) >= 3  # not keras_hub's everywhere
        result = subprocess.run(
            [sys.executable, user_scripts.__file__, *files],
            capture_output=True,
            check=False,
            text=True,
            timeout=250,
            env={
                key: value
                for key, value in os.environ.items()
                if not key.startswith(("OMPI_", "PMI", "PRTE"))
            },
        )
        assert f"{len(files)} files, largest difference 0.0\n" in (
            result.stdout
        ), result.stderr
    tfring.barrier()
