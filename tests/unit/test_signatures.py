"""Arguments have the positions and defaults of Horovod 0.28.1."""

import inspect

import pytest
import tensorflow as tf

import tfring

pytestmark = pytest.mark.usefixtures("initialized")

# Arguments and their defaults, as horovod.tensorflow has them.
HOROVOD = {
    "allreduce": "tensor, average=None, device_dense='', device_sparse='', "
    "compression=none, op=None, prescale_factor=1.0, postscale_factor=1.0, "
    "name=None, process_set=world, ignore_name_scope=False",
    "grouped_allreduce": "tensors, average=None, device_dense='', "
    "device_sparse='', compression=none, op=None, prescale_factor=1.0, "
    "postscale_factor=1.0, process_set=world, ignore_name_scope=False, "
    "name=None",
    "allgather": "tensor, name=None, ignore_name_scope=False, "
    "process_set=world",
    "grouped_allgather": "tensors, name=None, ignore_name_scope=False, "
    "process_set=world",
    "broadcast": "tensor, root_rank, name=None, ignore_name_scope=False, "
    "process_set=world",
    "broadcast_": "variables, root_rank, name=None, process_set=world",
    "barrier": "process_set=world",
    "alltoall": "tensor, splits=None, name=None, ignore_name_scope=False, "
    "process_set=world",
    "reducescatter": "tensor, device_dense='', compression=none, op=average, "
    "name=None, process_set=world, ignore_name_scope=False, "
    "prescale_factor=1.0, postscale_factor=1.0",
    "grouped_reducescatter": "tensors, device_dense='', compression=none, "
    "op=average, process_set=world, prescale_factor=1.0, postscale_factor=1.0",
}
DEFAULTS = {
    "none": tfring.Compression.none,
    "world": tfring.global_process_set,
    "average": tfring.Average,
}


@pytest.mark.parametrize("function", HOROVOD)
def test_positions_and_defaults(function):
    def arguments(signature):
        return [(p.name, p.default) for p in signature.parameters.values()]

    horovods = eval(f"lambda {HOROVOD[function]}: 0", DEFAULTS)
    expected = arguments(inspect.signature(horovods))
    actual = arguments(inspect.signature(getattr(tfring, function)))
    assert actual[: len(expected)] == expected


def test_average_is_deprecated():
    tensor = tf.constant([1.0])
    for average in True, False:
        with pytest.warns(DeprecationWarning, match="op=tfring"):
            assert tfring.allreduce(tensor, average) == 1
        with pytest.warns(DeprecationWarning, match="op=tfring") as warned:
            assert tfring.grouped_allreduce([tensor], average) == [1]
        # Python hides it unless it is attributed to the program.
        assert [each.filename for each in warned] == [__file__]


@pytest.mark.parametrize(("ignored", "prefix"), [(False, "outer/"), (True, "")])
def test_explicit_names_have_the_scope_unless_it_is_ignored(ignored, prefix):
    of_groups = "allreduce", "allgather", "reducescatter"

    @tf.function
    def step(x):
        with tf.name_scope("outer"):
            for name in "explicit", None:
                options = {"name": name, "ignore_name_scope": ignored}
                for kind in of_groups:
                    getattr(tfring, kind)(x, **options)
                    getattr(tfring, f"grouped_{kind}")([x], **options)
                tfring.broadcast(x, 0, **options)
                tfring.alltoall(x, **options)

    graph = step.get_concrete_function(tf.TensorSpec([1])).graph
    names = [
        tf.compat.as_str(operation.get_attr("request_name"))
        for operation in graph.get_operations()
        if operation.type.endswith("Start")
    ]
    assert names[:8] == [f"{prefix}explicit"] * 8
    # Automatic names have no prefix: see `unique_name` in
    # tfring/_ops/ordering.py.
    counted = [kind + end for kind in of_groups for end in ("", "_1")]
    assert names[8:] == [*counted, "broadcast", "alltoall"]
