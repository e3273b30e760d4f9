"""Whether Keras compiles a step by XLA, with options that refuse XLA."""

import threading

import keras
import numpy as np
import pytest

import tfring
from tfring._keras.compiling import distributing

WITHOUT_XLA = pytest.mark.parametrize(
    "options",
    [{"sync": tfring.Gossip()}, {"offload": tfring.Offload("all")}],
    ids=["sync", "offload"],
)


@pytest.fixture(autouse=True)
def on_a_gpu(initialized, monkeypatch):
    """Has Keras choose XLA by itself, as it does where there is a GPU."""
    monkeypatch.setattr(
        keras.Model, "_resolve_auto_jit_compile", lambda model: True
    )


def compiled(optimizer=None, **options):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer or keras.optimizers.SGD(0.1), "mse", **options)
    return model


def distributed(**options):
    return tfring.DistributedOptimizer(keras.optimizers.SGD(0.1), **options)


@WITHOUT_XLA
def test_keras_does_not_choose_xla(options):
    model = compiled(distributed(**options))
    assert not model.jit_compile
    x = np.ones((4, 2), np.float32)
    model.fit(x, x[:, :1], batch_size=2, verbose=0)


@WITHOUT_XLA
def test_a_loss_scale_does_not_hide_the_option(options):
    scaled = keras.optimizers.LossScaleOptimizer(distributed(**options))
    assert not compiled(scaled).jit_compile


@WITHOUT_XLA
def test_xla_is_refused_by_name(options):
    [argument] = options
    with pytest.raises(NotImplementedError, match=f"{argument}.*jit_compile"):
        compiled(distributed(**options), jit_compile=True)


@pytest.mark.parametrize(
    "optimizer", [None, distributed], ids=["plain", "tfring"]
)
def test_others_are_compiled_by_xla(optimizer):
    assert compiled(optimizer and optimizer()).jit_compile
    assert not compiled(optimizer and optimizer(), run_eagerly=True).jit_compile


def test_a_model_may_have_no_optimizer():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(None, "mse")
    assert model.jit_compile


def test_a_loaded_model_is_compiled_without_xla(tmp_path):
    """The file says that its model was compiled by XLA."""
    compiled().save(tmp_path / "model.keras")
    loaded = tfring.load_model(tmp_path / "model.keras", sync=tfring.Gossip())
    assert not loaded.jit_compile
    assert tfring.load_model(tmp_path / "model.keras").jit_compile


def test_a_thread_that_loads_wraps_no_optimizers_of_another():
    models = []
    with distributing(lambda optimizer: pytest.fail("another thread's")):
        thread = threading.Thread(target=lambda: models.append(compiled()))
        thread.start()
        thread.join(60)
    assert type(models[0].optimizer) is keras.optimizers.SGD
