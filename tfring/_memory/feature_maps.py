"""Finds the tensors of the forward pass that backpropagation needs.

Note [Views]: some operations give another shape to the same memory. If a
feature map were moved while a view of it stays, no memory would be released. So
the tensor behind a view is moved, and the view is made again from the fetched
tensor.

Note [Constants]: values that depend on shapes alone, such as `tf.ones_like`,
stay. TensorFlow optimizes a product with such a value away, which it could not
do with a fetched value. Values that are computed only from gathered parameters
stay, too: backpropagation computes them from a second gather.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tfring._memory.gathers import gathered_operations
from tfring._memory.offload_options import FeatureMap, Offload
from tfring._memory.schedule import Schedule

# Operations with an output in the memory of their first input.
_VIEWS = {"ExpandDims", "Identity", "Reshape", "Squeeze", "StopGradient"}
# Operations that read only a shape may run at any time.
_SHAPE_READERS = {"OnesLike", "Rank", "Shape", "ShapeN", "Size", "ZerosLike"}
# Operations whose results are in another tensor's memory, which moving them
# would not release.
_NOT_OURS = {"Const", "Placeholder", "ReadVariableOp", "VarHandleOp"}
# Calls of traced functions, each of which is one operation here.
_CALLS = {"PartitionedCall", "StatefulPartitionedCall"}
# The policy "conv" moves the inputs of these operations.
_HEAVY = {
    *("Conv2D", "Conv3D", "DepthwiseConv2dNative", "Conv2DBackpropInput"),
    *("Conv3DBackpropInputV2", "MatMul", "BatchMatMul", "BatchMatMulV2"),
    *("BatchMatMulV3", "Einsum"),
}
_OPAQUE = {tf.resource, tf.string, tf.variant}
_OURS = "Tfring"


@dataclasses.dataclass(frozen=True)
class Use:
    """An input of an operation of backpropagation."""

    operation: tf.Operation
    number: int  # the number of the input
    views: tuple[tf.Operation, ...]  # from the feature map to the input


@dataclasses.dataclass(frozen=True)
class Found:
    """A feature map, and its uses in backpropagation, in order."""

    tensor: tf.Tensor
    uses: list[Use]


def find(
    graph: tf.Graph, schedule: Schedule, offload: Offload
) -> tuple[list[Found], list[str]]:
    """Returns the feature maps that the options choose.

    The feature maps are in the order of the forward pass. The strings say which
    tensors stay, and why.
    """
    constants = _constants(schedule, gathered_operations(graph))
    maps: dict[str, Found] = {}  # by the tensor's name
    loops, calls = set(), set()
    for operation in schedule.operations:
        if (
            not schedule.is_backward(operation)
            or operation.type in _SHAPE_READERS
            or operation.type.startswith(_OURS)
        ):
            continue
        for number, tensor in enumerate(operation.inputs):
            if schedule.is_backward(tensor.op):
                continue
            if tensor.dtype == tf.variant:
                loops.add(tensor.name)
            tensor, views = _without_views(tensor)
            if tensor.op.type in _NOT_OURS or tensor.op.type.startswith(_OURS):
                continue
            if tensor.op.name in constants:
                continue
            if tensor.dtype in _OPAQUE or _bytes(tensor) < offload.min_bytes:
                continue
            if operation.type in _CALLS:
                calls.add(tensor.name)
            found = maps.setdefault(tensor.name, Found(tensor, []))
            found.uses.append(Use(operation, number, views))
    moved = [
        found
        for name, found in maps.items()
        if name not in calls and _chosen(schedule, offload, found)
    ]
    moved.sort(key=lambda found: schedule.position_of(found.tensor.op))
    notes = []
    if loops:
        notes.append(
            f"{len(loops)} stacks of a loop's iterations (tf.while_loop) are "
            "left alone."
        )
    if calls:
        notes.append(
            f"{len(calls)} feature maps between calls of a tf.function inside "
            "of the step are left alone: call the Python function instead."
        )
    return moved, notes


def forward_uses(
    schedule: Schedule, tensor: tf.Tensor
) -> list[tuple[tf.Operation, int]]:
    """Returns the forward pass's uses of a tensor's values."""
    return [
        (operation, number)
        for operation, number in schedule.consumers.get(tensor.name, ())
        if not schedule.is_backward(operation)
        and operation.type not in _SHAPE_READERS
    ]


def _constants(schedule: Schedule, gathered: set[str]) -> set[str]:
    """Returns the names of constant operations; see Note [Constants].

    Args:
        schedule: The operations.
        gathered: The names of those whose results are whole parameters.
    """
    constants = set(gathered)
    for operation in schedule.operations:
        if (
            operation.type == "Const"
            or operation.type in _SHAPE_READERS
            or (
                operation.inputs
                and not operation.type.startswith("StatelessRandom")
                and all(
                    tensor.op.name in constants for tensor in operation.inputs
                )
                and not operation.op_def.is_stateful
            )
        ):
            constants.add(operation.name)
    return constants


def _without_views(
    tensor: tf.Tensor,
) -> tuple[tf.Tensor, tuple[tf.Operation, ...]]:
    """Returns the tensor behind views, and the views; see Note [Views]."""
    views: list[tf.Operation] = []
    while tensor.op.type in _VIEWS:
        views.append(tensor.op)
        tensor = tensor.op.inputs[0]
    return tensor, tuple(reversed(views))


def _bytes(tensor: tf.Tensor) -> float:
    """Returns the bytes; infinity if only the running step knows them."""
    count = tensor.shape.num_elements()
    return float("inf") if count is None else count * tensor.dtype.size


def _chosen(schedule: Schedule, offload: Offload, found: Found) -> bool:
    if offload.policy in ("all", "auto"):
        return True
    tensor = found.tensor
    types = tuple(sorted(_types_of_users(schedule, tensor)))
    if offload.policy == "conv":
        return not _HEAVY.isdisjoint(types)
    assert callable(offload.policy)
    return bool(
        offload.policy(
            FeatureMap(
                name=tensor.name,
                op_type=tensor.op.type,
                shape=tensor.shape,
                dtype=tensor.dtype,
                forward_uses=types,
                backward_uses=tuple(
                    sorted({use.operation.type for use in found.uses})
                ),
            )
        )
    )


def _types_of_users(schedule: Schedule, tensor: tf.Tensor) -> set[str]:
    types = set()
    for operation, _ in forward_uses(schedule, tensor):
        if operation.type in _VIEWS or operation.type == "Cast":
            types |= _types_of_users(schedule, operation.outputs[0])
        else:
            types.add(operation.type)
    return types
