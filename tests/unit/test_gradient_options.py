"""Arguments that DistributedOptimizer and the tape refuse, and the errors.

test_argument_table.py has the arguments that do not go together.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring

pytestmark = pytest.mark.usefixtures("initialized")


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


VARIABLE = keras.Variable([0.0])
TWICE = [[VARIABLE], [VARIABLE.value]]
FACTOR = "gradient_predivide_factor"


@pytest.mark.parametrize("name", WRAPPERS)
@pytest.mark.parametrize(
    ("error", "words", "options"),
    [
        (ValueError, "Adasum, got Max", {"op": tfring.Max}),
        (TypeError, "Adasum, got 'sum'", {"op": "sum"}),
        (ValueError, "op is Sum", {"op": tfring.Sum, FACTOR: 2.0}),
        (ValueError, "above 0", {FACTOR: 0.0}),
        (ValueError, "above 0", {FACTOR: np.inf}),
        (TypeError, "Python numbers", {FACTOR: "2"}),
        (TypeError, "groups must be", {"groups": "ab"}),
        (TypeError, "groups must be", {"groups": 1.5}),
        (TypeError, "groups must be", {"groups": True}),
        (TypeError, "groups must be", {"groups": [VARIABLE]}),
        (ValueError, "more than once", {"groups": TWICE}),
        (ValueError, "Leave num_groups out", {"groups": 1, "num_groups": 1}),
        (ValueError, "at least 0", {"num_groups": -1}),
        (TypeError, "got 'fp16'", {"compression": "fp16"}),
        (
            ValueError,
            "PowerSGD adds up",
            {"compression": tfring.PowerSGD(), "op": tfring.Adasum},
        ),
        (TypeError, "process_set must be", {"process_set": [0]}),
    ],
)
def test_refuses(name, error, words, options):
    with pytest.raises(error, match=f"^{name}: .*{words}"):
        WRAPPERS[name](**options)


@pytest.mark.parametrize("name", WRAPPERS)
def test_no_groups_are_none(name):
    WRAPPERS[name](groups=0)
    with pytest.raises(ValueError, match="not part of the job"):
        WRAPPERS[name](process_set=tfring.ProcessSet([0]))


@pytest.mark.parametrize("passes", [0, None, 2.0, True])
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
    ("optimizer", "problem"),
    [
        (
            keras.optimizers.SGD(gradient_accumulation_steps=3),
            "gradient_accumulation_steps=3",
        ),
        (built_sgd(), "is built"),
        (OwnApply(1.0), "method of its own"),
    ],
)
def test_refuses_to_accumulate(optimizer, problem):
    with pytest.raises(ValueError, match=f"'{optimizer.name}' .*{problem}"):
        tfring.DistributedOptimizer(optimizer, backward_passes_per_step=2)


@pytest.mark.parametrize(
    ("partial", "wrapped"),
    [
        (tfring.PartialDistributedOptimizer, "sgd"),
        (tfring.PartialDistributedGradientTape, tf.GradientTape()),
    ],
)
def test_local_layers_are_layers(partial, wrapped):
    for layers in (None, [], keras.layers.Dense(1), [keras.layers.Dense(1)]):
        partial(wrapped, local_layers=layers)
    for layers in ("dense", [keras.layers.Dense(1), 3]):
        with pytest.raises(ValueError, match="local_layers must be Keras"):
            partial(wrapped, local_layers=layers)
