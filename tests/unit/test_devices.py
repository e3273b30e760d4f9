"""Which devices collectives can be told to run on, and that they do."""

import pytest
import tensorflow as tf

import tfring

BOTH = "device_dense", "device_sparse"
# Each call that takes a device, its arguments and its device parameters.
CALLS = (
    (tfring.allreduce, [[1.0]], BOTH),
    (tfring.grouped_allreduce, [[[1.0]]], BOTH),
    (tfring.reducescatter, [[1.0]], BOTH[:1]),
    (tfring.grouped_reducescatter, [[[1.0]]], BOTH[:1]),
    (tfring.DistributedOptimizer, ["sgd"], BOTH),
    (tfring.DistributedGradientTape, [tf.GradientTape()], BOTH),
    (tfring.BroadcastGlobalVariablesHook, [0], ["device"]),
    (tfring.callbacks.BroadcastGlobalVariablesCallback, [0], ["device"]),
    (tfring.callbacks.MetricAverageCallback, [], ["device"]),
)
EACH = pytest.mark.parametrize(
    ("call", "arguments", "argument"),
    [
        (call, arguments, argument)
        for call, arguments, names in CALLS
        for argument in names
    ],
)

pytestmark = pytest.mark.usefixtures("initialized")


@EACH
def test_devices_that_exist(call, arguments, argument):
    for device in (
        "",
        "CPU:0",
        "/device:CPU:0",
        "/CPU:*",
        "/job:localhost/replica:0/task:0/device:CPU:0",
        "/job:localhost",
    ):
        call(*arguments, **{argument: device})


@EACH
def test_what_is_no_device(call, arguments, argument):
    cpu_0 = r"but .*/device:CPU:0"
    for error, device, words in (
        (TypeError, None, "must be the name of a device.*None"),
        (ValueError, "/cpux:0", "'/cpux:0' is no name of a device"),
        (ValueError, "/cpu:77", f"'/cpu:77': .*no such device.*{cpu_0}"),
        (ValueError, "/tpu:0", f"'/tpu:0': .*no such device.*{cpu_0}"),
    ):
        words = f"^{call.__name__}: {argument}.*{words}"
        with pytest.raises(error, match=words):
            call(*arguments, **{argument: device})


@EACH
def test_devices_without_kernels(call, arguments, argument, monkeypatch):
    odd = tf.config.LogicalDevice("/device:ODD:0", "ODD")
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda: [odd])
    words = f"^{call.__name__}: .*for a ODD"
    with pytest.raises(NotImplementedError, match=words):
        call(*arguments, **{argument: odd.name})


def placed(graph):
    """The devices of each kind of operation of tfring's in a graph."""
    devices = {}
    for operation in graph.get_operations():
        if operation.type.startswith("Tfring"):
            devices.setdefault(operation.type, set()).add(operation.device)
    return devices


def test_collectives_are_placed():
    def step(x):
        slices = tf.IndexedSlices(x, tf.range(2), tf.constant([4, 3]))
        return [
            tfring.allreduce(x, device_dense="/cpu:0"),
            tfring.allreduce(slices, device_sparse="/cpu:0").values,
            *tfring.grouped_allreduce(
                [x, slices], device_dense="/cpu:0", device_sparse="/cpu:0"
            )[:1],
            tfring.reducescatter(x, device_dense="/cpu:0"),
            *tfring.grouped_reducescatter([x], device_dense="/cpu:0"),
        ]

    spec = tf.TensorSpec([2, 3])
    devices = placed(tf.function(step).get_concrete_function(spec).graph)
    starts = {f"Tfring{kind}Start" for kind in ("Allreduce", "Reducescatter")}
    gathers = {"TfringAllgatherStart", "TfringAllgatherDone", "TfringDone"}
    assert devices == {each: {"/device:CPU:0"} for each in starts | gathers}
    # XLA places all that it compiles on one device.
    compiled = tf.function(
        lambda x: tfring.allreduce(x, device_dense="/cpu:0"), jit_compile=True
    )
    devices = placed(compiled.get_concrete_function(spec).graph)
    assert devices == {"TfringAllreduceStart": {""}, "TfringDone": {""}}
