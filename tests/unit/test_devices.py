"""Which devices collectives can be told to run on, and that they do."""

import pytest
import tensorflow as tf

import tfring

BOTH = "device_dense", "device_sparse"
# Each call that takes a device, and by which names.
CALLS = {
    "allreduce": (BOTH, lambda **how: tfring.allreduce([1.0], **how)),
    "grouped_allreduce": (
        BOTH,
        lambda **how: tfring.grouped_allreduce([[1.0]], **how),
    ),
    "reducescatter": (
        BOTH[:1],
        lambda **how: tfring.reducescatter([1.0], **how),
    ),
    "grouped_reducescatter": (
        BOTH[:1],
        lambda **how: tfring.grouped_reducescatter([[1.0]], **how),
    ),
    "DistributedOptimizer": (
        BOTH,
        lambda **how: tfring.DistributedOptimizer("sgd", **how),
    ),
    "DistributedGradientTape": (
        BOTH,
        lambda **how: tfring.DistributedGradientTape(tf.GradientTape(), **how),
    ),
    "BroadcastGlobalVariablesHook": (
        ["device"],
        lambda **how: tfring.BroadcastGlobalVariablesHook(0, **how),
    ),
    "BroadcastGlobalVariablesCallback": (
        ["device"],
        tfring.callbacks.BroadcastGlobalVariablesCallback,
    ),
    "MetricAverageCallback": (
        ["device"],
        tfring.callbacks.MetricAverageCallback,
    ),
}
EACH = pytest.mark.parametrize(
    ("function", "argument", "call"),
    [
        (function, argument, call)
        for function, (arguments, call) in CALLS.items()
        for argument in arguments
    ],
)


@pytest.fixture(autouse=True)
def initialized():
    tfring.init()


@EACH
def test_devices_that_exist(function, argument, call):
    for device in (
        "",
        "/cpu:0",
        "CPU:0",
        "/device:CPU:0",
        "/CPU:*",
        "/job:localhost/replica:0/task:0/device:CPU:0",
        "/job:localhost",
    ):
        call(**{argument: device})


@EACH
def test_what_is_no_device(function, argument, call):
    cpu_0 = r"but .*/device:CPU:0"
    for error, device, words in (
        (TypeError, None, "must be the name of a device.*None"),
        (ValueError, "/cpux:0", "'/cpux:0' is no name of a device"),
        (ValueError, "/cpu:77", f"'/cpu:77': .*no such device.*{cpu_0}"),
        (ValueError, "/tpu:0", f"'/tpu:0': .*no such device.*{cpu_0}"),
    ):
        with pytest.raises(error, match=f"^{function}: {argument}.*{words}"):
            call(**{argument: device})


@EACH
def test_devices_without_kernels(function, argument, call, monkeypatch):
    devices = [
        *tf.config.list_logical_devices(),
        tf.config.LogicalDevice("/device:ODD:0", "ODD"),
    ]
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda: devices)
    with pytest.raises(NotImplementedError, match=f"^{function}: .*for a ODD"):
        call(**{argument: "/device:ODD:0"})


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
    assert devices == {
        f"Tfring{kind}": {"/device:CPU:0"}
        for kind in (
            "AllreduceStart",
            "ReducescatterStart",
            "Done",
            "AllgatherStart",
            "AllgatherDone",
        )
    }
    # XLA places all that it compiles on one device.
    compiled = tf.function(
        lambda x: tfring.allreduce(x, device_dense="/cpu:0"), jit_compile=True
    )
    devices = placed(compiled.get_concrete_function(spec).graph)
    assert devices == {"TfringAllreduceStart": {""}, "TfringDone": {""}}
