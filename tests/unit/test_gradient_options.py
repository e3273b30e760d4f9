"""Arguments that DistributedOptimizer and the tape refuse, and the errors."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring


@pytest.fixture(autouse=True)
def initialized():
    tfring.init()


class OwnApply(keras.optimizers.SGD):
    def apply(self, grads, trainable_variables=None):
        pass


WRAPPERS = {
    "DistributedOptimizer": lambda **options: tfring.DistributedOptimizer(
        keras.optimizers.SGD(), **options
    ),
    "DistributedGradientTape": lambda **options: tfring.DistributedGradientTape(
        tf.GradientTape(), **options
    ),
}


@pytest.mark.parametrize("name", WRAPPERS)
@pytest.mark.parametrize("op", [tfring.Min, tfring.Max, tfring.Product])
def test_refuses_other_reductions(name, op):
    with pytest.raises(ValueError, match=f"^{name}: .*Adasum, got {op.name}"):
        WRAPPERS[name](op=op)


@pytest.mark.parametrize("name", WRAPPERS)
def test_refuses_what_is_no_reduction(name):
    with pytest.raises(TypeError, match=f"^{name}: .*Adasum, got 'sum'"):
        WRAPPERS[name](op="sum")


@pytest.mark.parametrize("name", WRAPPERS)
def test_predivides_averages_alone(name):
    with pytest.raises(ValueError, match=f"^{name}: .*op is Sum"):
        WRAPPERS[name](op=tfring.Sum, gradient_predivide_factor=2.0)
    for factor in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(ValueError, match=f"^{name}: .*above 0"):
            WRAPPERS[name](gradient_predivide_factor=factor)
    with pytest.raises(TypeError, match=f"^{name}: .*Python numbers"):
        WRAPPERS[name](gradient_predivide_factor="2")


@pytest.mark.parametrize("passes", [0, -1, None, 2.0, True])
def test_refuses_what_is_no_number_of_passes(passes):
    with pytest.raises(ValueError, match="at least 1, got"):
        tfring.DistributedOptimizer(
            keras.optimizers.SGD(), backward_passes_per_step=passes
        )


def built_sgd():
    sgd = keras.optimizers.SGD()
    sgd.build([keras.Variable([0.0])])
    return sgd


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (
            lambda: keras.optimizers.SGD(gradient_accumulation_steps=3),
            "gradient_accumulation_steps=3",
        ),
        (built_sgd, "is built"),
        (lambda: OwnApply(1.0), "method of its own"),
        (
            lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()),
            "method of its own",
        ),
    ],
)
def test_refuses_to_accumulate(make, problem):
    optimizer = make()
    with pytest.raises(ValueError, match=f"'{optimizer.name}' .*{problem}"):
        tfring.DistributedOptimizer(optimizer, backward_passes_per_step=2)


@pytest.mark.parametrize("name", WRAPPERS)
def test_groups_are_checked(name):
    variable = keras.Variable([0.0])
    for groups in ("ab", 1.5, [variable], [1], True):
        with pytest.raises(TypeError, match=f"^{name}: groups must be"):
            WRAPPERS[name](groups=groups)
    with pytest.raises(ValueError, match=f"^{name}: .*more than once"):
        WRAPPERS[name](groups=[[variable], [variable.value]])
    with pytest.raises(ValueError, match=f"^{name}: .*Leave num_groups out"):
        WRAPPERS[name](groups=1, num_groups=1)
    with pytest.raises(ValueError, match=f"^{name}: .*at least 0"):
        WRAPPERS[name](num_groups=-1)
    WRAPPERS[name](groups=0)


def test_locking_is_refused():
    with pytest.raises(ValueError, match="use_locking"):
        tfring.DistributedOptimizer(keras.optimizers.SGD(), use_locking=True)


def test_refuses_another_compression():
    with pytest.raises(TypeError, match=r"Compression\.none, fp16 and bf16"):
        tfring.DistributedOptimizer(keras.optimizers.SGD(), compression="fp16")


@pytest.mark.parametrize(
    "wrap",
    [
        lambda layers: tfring.PartialDistributedOptimizer(
            keras.optimizers.SGD(), local_layers=layers
        ),
        lambda layers: tfring.PartialDistributedGradientTape(
            tf.GradientTape(), local_layers=layers
        ),
    ],
    ids=["optimizer", "tape"],
)
def test_local_layers_are_layers(wrap):
    for layers in (None, [], keras.layers.Dense(1), [keras.layers.Dense(1)]):
        wrap(layers)
    for layers in ("dense", [keras.layers.Dense(1), 3]):
        with pytest.raises(ValueError, match="local_layers must be Keras"):
            wrap(layers)


@pytest.mark.parametrize("name", WRAPPERS)
def test_process_sets_are_of_the_job(name):
    with pytest.raises(TypeError, match=f"^{name}: process_set must be"):
        WRAPPERS[name](process_set=[0])
    with pytest.raises(ValueError, match="not part of the job"):
        WRAPPERS[name](process_set=tfring.ProcessSet([0]))
