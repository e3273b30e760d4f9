"""An order of a traced graph's operations, along which edges may be added.

Note [Edges that go forward]: offloading adds edges between operations: a fetch
waits for what runs before it. If all edges, old and new, lead forward in one
order of the operations, there is no cycle. The order is that of tracing, which
is also the order of the program. Operations that an earlier rewrite of the
graph has added late are an exception: they are placed before their first use.
TensorFlow runs stateful operations in the order of tracing. It adds the edges
for that when the trace has ended, so they are assumed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import tensorflow as tf

# Part of the names of operations that tf.GradientTape.gradient traces.
_TAPE_SCOPE = "gradient_tape"
# Operations that return their first input once something has happened.
_WAITING = {"TfringAfterStart", "TfringAfterStash"}


class Schedule:
    """The operations of a graph in a possible order of execution.

    `gradients` are the results of backpropagation. Operations of a tape that
    lead to none of them are left out, as TensorFlow does.

    Attributes:
        operations: The operations, first to last.
        consumers: For each tensor, by its name, the operations that read it, in
            order, each with the number of the input.
    """

    def __init__(self, graph: tf.Graph, gradients: Sequence[tf.Tensor]) -> None:
        traced = graph.get_operations()
        self.operations = _ordered(traced)
        self._position = {
            operation.name: number
            for number, operation in enumerate(self.operations)
        }
        backward = _of_backpropagation(traced)
        used = _used(self.operations, gradients)
        self._backward = backward & used
        unused = backward - used
        self.consumers: dict[str, list[tuple[tf.Operation, int]]] = {}
        for operation in self.operations:
            if operation.name in unused:
                continue
            for number, tensor in enumerate(operation.inputs):
                self.consumers.setdefault(tensor.name, []).append(
                    (operation, number)
                )

    def is_backward(self, operation: tf.Operation) -> bool:
        """Tells whether the operation is a part of backpropagation."""
        return operation.name in self._backward

    def has_backpropagation(self) -> bool:
        """Tells whether any operation is a part of backpropagation."""
        return bool(self._backward)

    def position_of(self, operation: tf.Operation) -> int:
        """Returns the place of the operation in the order."""
        return self._position[operation.name]


def _ordered(operations: Sequence[tf.Operation]) -> list[tf.Operation]:
    """Returns the operations in order; see Note [Edges that go forward]."""
    stateful = stateful_types(operations)
    # The operation that each stateful one follows.
    before: dict[str, tf.Operation] = {}
    last = None
    for operation in operations:
        if operation.type in stateful:
            if last is not None:
                before[operation.name] = last
            last = operation
    ordered: list[tf.Operation] = []
    placed: set[str] = set()
    for root in operations:
        # Depth first, without recursion: the path has each operation with the
        # inputs that are still to be placed.
        path = [] if root.name in placed else [(root, _needs(root, before))]
        on_path = {root.name}
        while path:
            operation, needs = path[-1]
            for need in needs:  # `needs` continues where it stopped
                # A loop of TensorFlow 1 leads back to itself.
                if need.name not in placed and need.name not in on_path:
                    path.append((need, _needs(need, before)))
                    on_path.add(need.name)
                    break
            else:
                path.pop()
                on_path.discard(operation.name)
                placed.add(operation.name)
                ordered.append(operation)
    return ordered


def stateful_types(operations: Sequence[tf.Operation]) -> set[str]:
    """Returns the types of the stateful operations."""
    # Ask once for each type, because it takes long.
    examples = {operation.type: operation for operation in operations}
    return {name for name, o in examples.items() if o.op_def.is_stateful}


def _needs(
    operation: tf.Operation, before: dict[str, tf.Operation]
) -> Iterator[tf.Operation]:
    for tensor in operation.inputs:
        yield tensor.op
    yield from operation.control_inputs
    if operation.name in before:
        yield before[operation.name]


def _of_backpropagation(operations: Sequence[tf.Operation]) -> set[str]:
    """Returns the names of a tape's operations, and of their dependents.

    Dependents are included because gradients of functions, and their sums, have
    names outside of the tape's scope.

    Args:
        operations: All operations, in the order of tracing.
    """
    traced = {operation.name: i for i, operation in enumerate(operations)}
    found: set[str] = set()
    for number, operation in enumerate(operations):
        if _TAPE_SCOPE in operation.name.split("/") or any(
            # The forward pass of a loop reads the stacks of its iterations,
            # which were traced later, together with backpropagation.
            source.name in found and traced[source.name] < number
            for source in map(_before_rewrites, operation.inputs)
        ):
            found.add(operation.name)
    return found


def _before_rewrites(tensor: tf.Tensor) -> tf.Operation:
    """Returns the operation behind a tensor, and behind waiting operations."""
    while tensor.op.type in _WAITING:
        tensor = tensor.op.inputs[0]
    return tensor.op


def _used(
    operations: Sequence[tf.Operation], gradients: Sequence[tf.Tensor]
) -> set[str]:
    """Returns what gradients and stateful operations depend on, by name."""
    stateful = stateful_types(operations)
    needed = [gradient.op for gradient in gradients]
    needed += [o for o in operations if o.type in stateful]
    used: set[str] = set()
    while needed:
        operation = needed.pop()
        if operation.name not in used:
            used.add(operation.name)
            needed.extend(tensor.op for tensor in operation.inputs)
            needed.extend(operation.control_inputs)
    return used
