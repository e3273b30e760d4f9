"""DistributedOptimizer in one process: changed and unchanged behavior."""

import copy
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring
from tfring._optim import optimizer_class

pytestmark = pytest.mark.usefixtures("initialized")


class Averages:
    """In place of reduce_shared_gradients: counts, and keeps the options."""

    def __init__(self):
        self.count = 0

    def __call__(self, gradients, variables, options):
        assert len(gradients) == len(variables)
        self.count += 1
        self.options = dict(vars(options))
        self.local = self.options.pop("local_variables")
        return gradients


@pytest.fixture
def averages(monkeypatch):
    averages = Averages()
    monkeypatch.setattr(optimizer_class, "reduce_shared_gradients", averages)
    # Offload refuses eager steps, which these tests make.
    monkeypatch.setattr(optimizer_class, "offload_step", lambda *_: None)
    return averages


@keras.saving.register_keras_serializable("tfring_test")
class Registered(keras.optimizers.SGD):
    pass


class Unregistered(keras.optimizers.SGD):
    pass


class OwnApply(keras.optimizers.SGD):
    """An optimizer whose `apply` calls none of Keras's hooks."""

    def apply(self, grads, trainable_variables=None):
        for gradient, variable in zip(grads, trainable_variables, strict=True):
            variable.assign_sub(gradient)


def small_model(wrapped, **arguments):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(wrapped, "mse", **arguments)
    model.fit(np.ones((4, 3)), np.ones((4, 2)), verbose=0)
    return model


def test_returns_the_same_optimizer_with_its_settings():
    adamw = keras.optimizers.AdamW(0.1)
    adamw.exclude_from_weight_decay(var_names=["bias"])
    distributed = tfring.DistributedOptimizer(adamw)
    assert distributed is adamw
    assert isinstance(distributed, keras.optimizers.AdamW)
    assert type(distributed).__name__ == "AdamW"
    assert not distributed._use_weight_decay(tf.Variable(1.0, name="bias"))


@pytest.mark.parametrize(
    "identifier",
    ["adamw", keras.optimizers.serialize(keras.optimizers.AdamW(0.5))],
)
def test_takes_what_compile_takes(averages, identifier):
    optimizer = tfring.DistributedOptimizer(identifier, name="of_a_name")
    assert isinstance(optimizer, keras.optimizers.AdamW)
    assert optimizer.name == "of_a_name"
    expected = keras.optimizers.get(identifier)
    assert optimizer.learning_rate == expected.learning_rate
    small_model(optimizer, run_eagerly=True)
    assert averages.count == 1


@pytest.mark.parametrize(
    "identifier",
    ["adamm", {"class_name": "Adamm", "config": {}}, {"adam": 1}],
)
def test_refuses_a_name_that_keras_does_not_know(identifier):
    with pytest.raises(ValueError, match=r"makes no optimizer of .*serialize"):
        tfring.DistributedOptimizer(identifier)


def test_refuses_what_is_no_keras_optimizer():
    for other in (None, object(), OwnApply):
        with pytest.raises(TypeError, match="Keras 3"):
            tfring.DistributedOptimizer(other)


@pytest.mark.parametrize(
    "again",
    [
        lambda distributed: distributed,
        keras.optimizers.LossScaleOptimizer,
        lambda distributed: keras.optimizers.MultiOptimizer(
            keras.optimizers.OptimizerMap(distributed)
        ),
    ],
    ids=["itself", "LossScaleOptimizer", "MultiOptimizer"],
)
def test_refuses_to_wrap_twice(again):
    distributed = tfring.DistributedOptimizer(keras.optimizers.Adam())
    with pytest.raises(ValueError, match="distributed already"):
        tfring.DistributedOptimizer(again(distributed))


def test_needs_init(no_job):
    with pytest.raises(tfring.NotInitializedError, match="not initialized"):
        tfring.DistributedOptimizer(keras.optimizers.Adam())


def test_accumulation_past_keras_hooks_is_averaged_in_apply(averages):
    own = tfring.DistributedOptimizer(
        OwnApply(1.0, gradient_accumulation_steps=2)
    )
    variable = keras.Variable([0.0])
    own.apply([tf.constant([2.0])], [variable])
    assert variable.numpy()[0] == -2.0
    assert averages.count == 1


OFFLOAD = tfring.Offload(ahead=3)
OPTIONS = {
    "device_dense": "/cpu:0",
    "device_sparse": "/device:cpu:0",
    "sparse_as_dense": True,
    "compression": tfring.Compression.bf16,
    "gradient_predivide_factor": 2.0,
    "groups": 2,
    "process_set": tfring.global_process_set,
    "scale_local_gradients": False,
    "offload": OFFLOAD,
}


def test_float8_scales_are_refused():
    sgd = tfring.DistributedOptimizer(keras.optimizers.SGD())
    scale = keras.Variable([1.0], name="scale")
    scale.overwrite_with_gradient = True
    with pytest.raises(ValueError, match=r"'scale'.*float8"):
        sgd.apply([tf.constant([1.0])], [scale])


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.optimizers.SGD(0.1, momentum=0.9),
        lambda: keras.optimizers.AdamW(0.1, gradient_accumulation_steps=2),
        lambda: Registered(0.1, momentum=0.9),
        lambda: Unregistered(0.1, momentum=0.9),
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()),
    ],
    ids=["SGD", "AdamW", "Registered", "Unregistered", "LossScaleOptimizer"],
)
def test_saved_model_loads_as_plain_keras_with_state(make, tmp_path):
    plain_class = type(make())
    model = small_model(tfring.DistributedOptimizer(make()))
    path = tmp_path / "model.keras"
    model.save(path)
    loaded = keras.models.load_model(
        path, custom_objects={"Unregistered": Unregistered}
    )
    assert type(loaded.optimizer) is plain_class
    saved, restored = model.optimizer.variables, loaded.optimizer.variables
    for before, after in zip(saved, restored, strict=True):
        np.testing.assert_array_equal(before.numpy(), after.numpy())
    # Training continues after it is wrapped again.
    tfring.DistributedOptimizer(loaded.optimizer)
    loaded.fit(np.ones((4, 3)), np.ones((4, 2)), verbose=0)


@pytest.mark.parametrize(
    "duplicate",
    [
        lambda distributed: distributed,
        copy.copy,
        copy.deepcopy,
        lambda distributed: pickle.loads(pickle.dumps(distributed)),
    ],
)
def test_options_are_handed_on(averages, duplicate):
    adam = tfring.DistributedOptimizer(
        keras.optimizers.Adam(0.25), "s", **OPTIONS
    )
    same = duplicate(adam)
    assert same.name == "s"
    assert same.get_config() == adam.get_config()
    same.apply([tf.constant([1.0])], [keras.Variable([0.0])])
    assert averages.count == 1
    # A copy of an `Offload` is equal to no other: it counts for itself.
    assert repr(averages.options.pop("offload")) == repr(OFFLOAD)
    expected = {**OPTIONS, "op": tfring.Average, "shard_states": False}
    expected |= {"sync": None, "within": None}
    expected["low_rank"] = None
    expected["predivide_factor"] = expected.pop("gradient_predivide_factor")
    del expected["offload"]
    assert averages.options == expected


def test_groups_of_one_model_are_not_copied():
    variable = keras.Variable([0.0])
    sgd = tfring.DistributedOptimizer(
        keras.optimizers.SGD(), groups=[[variable]]
    )
    with pytest.raises(TypeError, match="are those of one model"):
        copy.deepcopy(sgd)
    sgd.build([variable])
    assert len(sgd.variables) == 2  # and the groups are not its own


def test_local_variables_are_known_by_layer_and_by_name(averages):
    own, late = keras.layers.Dense(2), keras.layers.Dense(2)
    partial = tfring.PartialDistributedOptimizer(
        keras.optimizers.SGD(), local_layers=[own, late]
    )
    model = keras.Sequential([keras.Input((3,)), own, keras.layers.Dense(2)])
    kernel, bias = model.layers[1].trainable_variables
    partial.register_local_var(bias)
    late.build((2,))
    model.compile(partial, "mse")
    model.fit(np.ones((4, 3)), np.ones((4, 2)), verbose=0)
    local = averages.local
    assert all(v in local for v in own.variables + late.variables + [bias])
    assert bias.value in local
    assert kernel not in local
    with pytest.raises(TypeError, match="are those of one model"):
        copy.copy(partial)


def test_local_variables_have_no_global_norm():
    sgd = tfring.DistributedOptimizer(keras.optimizers.SGD(global_clipnorm=1.0))
    variable = keras.Variable([0.0])
    sgd.register_local_var(variable)
    with pytest.raises(ValueError, match=r"global_clipnorm.*Use clipnorm"):
        sgd.apply([tf.constant([1.0])], [variable])


def test_from_config_gives_a_distributed_optimizer(averages):
    adam = tfring.DistributedOptimizer(keras.optimizers.Adam(0.25))
    again = type(adam).from_config(adam.get_config())
    variable = keras.Variable([0.0])
    copied = copy.copy(again)
    copied.apply([tf.constant([1.0])], [variable])
    copied.register_local_var(variable)
    again.apply([tf.constant([1.0])], [variable])
    assert variable not in averages.local
    again.register_local_var(variable)
    again.apply([tf.constant([1.0])], [variable])
    assert averages.count == 3
    assert variable in averages.local
    with pytest.raises(ValueError, match="distributed already"):
        tfring.DistributedOptimizer(again)
