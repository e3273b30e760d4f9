"""Finds the operations that use a gathered parameter, and replaces it there.

A layer may use a parameter through a view, such as a cast or a reshape.
Backpropagation reads the same view, so each view is made a second time from the
second tensor.
"""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

# Operations that are repeated on the second tensor. Their gradients read
# neither the tensor nor the result.
_VIEWS = {"Cast", "ExpandDims", "Identity", "Reshape", "Squeeze"}
# Operations that TensorFlow may merge with the product before them.
_MERGED = {"Add", "AddV2", "BiasAdd", "Relu", "Reshape"}
# Operations whose gradients do not read the table.
_LOOKUPS = {"GatherV2", "Shape"}


def is_read_by_gradients(tensor: tf.Tensor) -> bool:
    """Tells whether gradients of a tensor's users may read the tensor."""
    return any(user.type not in _LOOKUPS for user in _users(tensor))


def _users(tensor: tf.Tensor) -> list[tf.Operation]:
    """Returns the operations that read a tensor or a view of it."""
    users = []
    for operation in tensor.consumers():
        if operation.type in _VIEWS:
            users += _users(operation.outputs[0])
        else:
            users.append(operation)
    return users


def last_users(wholes: Iterable[tf.Tensor]) -> list[tf.Operation]:
    """Returns the operations after which nothing reads the tensors.

    A control edge from a product would keep TensorFlow from merging it with the
    operations behind it, so the edge leaves the last of them.
    """
    last = []
    for whole in wholes:
        for operation in _users(whole):
            while operation.outputs:
                users = operation.outputs[0].consumers()
                if len(users) != 1 or users[0].type not in _MERGED:
                    break
                operation = users[0]
            if operation.outputs:
                last.append(operation)
    return last


def replace_behind(
    first: tf.Tensor, second: tf.Tensor, place: dict[str, int], begin: int
) -> None:
    """Replaces a tensor in operations that were traced after its gather."""
    for operation in first.consumers():
        number = place.get(operation.name, -1)
        if number > begin:
            for i, tensor in enumerate(operation.inputs):
                if tensor is first:
                    # The function is private, but TensorFlow's own control flow
                    # uses it.
                    operation._update_input(i, second)
        elif operation.type in _VIEWS:
            view = operation.outputs[0]
            if any(place.get(c.name, -1) > begin for c in view.consumers()):
                replace_behind(
                    view, _same_view(operation, second), place, begin
                )


def _same_view(operation: tf.Operation, tensor: tf.Tensor) -> tf.Tensor:
    with tf.control_dependencies(None):
        return operation.graph.create_op(
            operation.type,
            [tensor, *list(operation.inputs)[1:]],
            [output.dtype for output in operation.outputs],
            attrs=dict(operation.node_def.attr),
            op_def=operation.op_def,
            name=f"{operation.name}/again",
        ).outputs[0]
