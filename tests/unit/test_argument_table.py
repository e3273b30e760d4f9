"""The table of arguments by roads says what DistributedOptimizer does."""

import inspect
import re
from pathlib import Path

import keras
import pytest
import tensorflow as tf
import tf_keras

import tfring
from tfring._core import runtime

pytestmark = pytest.mark.usefixtures("initialized")

PAGE = Path(__file__).parents[2] / "docs/api/training.md"
VARIABLE = keras.Variable([0.0])
ROADS = {
    "every step": {},
    "rounds": {"sync": tfring.LocalSGD(2)},
    "low rank": {"compression": tfring.PowerSGD()},
    "sharded": {"shard_states": True},
    "parameters": {"shard_states": True},
    "TensorFlow 1": {"optimizer": tf.compat.v1.train.GradientDescentOptimizer},
    "Keras 2": {"optimizer": tf_keras.optimizers.SGD},
}
# The value of each argument that is not its default, and the field of the
# options that it becomes.
VALUES = {
    "name": ("other", None),
    "use_locking": (True, None),
    "device_dense": ("/cpu:0", "device_dense"),
    "device_sparse": ("/cpu:0", "device_sparse"),
    "compression=Compression.bf16": (tfring.Compression.bf16, "compression"),
    "compression=PowerSGD": (tfring.PowerSGD(), None),
    "sparse_as_dense": (True, "sparse_as_dense"),
    "backward_passes_per_step": (2, None),
    "average_aggregated_gradients": (True, None),
    "op=Sum": (tfring.Sum, "op"),
    "op=Adasum": (tfring.Adasum, "op"),
    "gradient_predivide_factor": (2.0, "predivide_factor"),
    "num_groups": (2, "groups"),
    "groups": ([[VARIABLE]], "groups"),
    "process_set": (tfring.global_process_set, "process_set"),
    "scale_local_gradients": (False, "scale_local_gradients"),
    "offload": (tfring.Offload(), "offload"),
    "shard_states": (True, "shard_states"),
    "sync": (tfring.LocalSGD(2), "sync"),
}


def cells():
    """(argument, road, what the table says), in the table's order."""
    section = PAGE.read_text().split("{ #arguments-by-roads }")[1]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("|")
    ]
    head, _, *rest = rows
    for argument, *of_roads in rest:
        for road, says in zip(head[1:], of_roads, strict=True):
            yield argument.strip("`"), road, says


def options_of(optimizer):
    for name in ("_tfring_options", "_computed", "_agg_helper"):
        found = getattr(optimizer, name, None)
        if found is not None:
            return getattr(found, "options", found)
    raise AssertionError("an optimizer without options")


def test_the_table_has_every_argument():
    parameters = inspect.signature(tfring.DistributedOptimizer).parameters
    named = {argument.partition("=")[0] for argument, _, _ in cells()}
    assert named == set(parameters) - {"optimizer"}
    assert {argument for argument, _, _ in cells()} == VALUES.keys()
    assert {road for _, road, _ in cells()} == ROADS.keys()


@pytest.fixture
def make_optimizer(road, monkeypatch):
    """Makes an optimizer, and builds it for a sharded parameter on its road."""
    if road != "parameters":
        return tfring.DistributedOptimizer
    # A single rank shards parameters only if others may join.
    monkeypatch.setattr(runtime, "may_grow", lambda: True)
    with tfring.shard_parameters(min_elements=1):
        layer = keras.layers.Dense(4)
        layer.build((1, 4))

    def make(*args, **given):
        optimizer = tfring.DistributedOptimizer(*args, **given)
        optimizer.build([layer.kernel])
        return optimizer

    return make


@pytest.mark.parametrize(("argument", "road", "says"), list(cells()))
def test_it_is_honoured_or_refused_by_name(
    argument, road, says, make_optimizer
):
    assert says in ("yes", "refused", "instead")
    given = dict(ROADS[road])
    make = given.pop("optimizer", keras.optimizers.SGD)
    parameter = argument.partition("=")[0]
    value, field = VALUES[argument]
    if says == "instead":
        assert parameter in given
        return
    given[parameter] = value
    if says == "refused":
        with pytest.raises(
            (NotImplementedError, ValueError),
            match=f"{parameter}|{re.escape(argument.partition('=')[2]) or '-'}",
        ):
            make_optimizer(make(0.1), **given)
        return
    optimizer = make_optimizer(make(0.1), **given)
    if field is not None:
        assert getattr(options_of(optimizer), field) == value
