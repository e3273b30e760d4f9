"""Starts reductions early, so that they overlap with backpropagation.

Note [Backward order]: the gradients of the last layers are ready first. Reduced
in that order, each travels while the ones before it in the model are still
being computed. TensorFlow runs stateful operations of a graph in the order in
which they were traced, so a reduction traced too early holds up all after it.

Note [Control dependencies on starts]: a layer has two gradients, that of its
weights, and that of its input, from which the layer before it goes on.
TensorFlow takes what is ready in the order it likes; with one thread between
operations it put the weights of all layers off until there was nothing else to
do. Starts that were to overlap then come at the end. Therefore an operation
that no start so far needs, and that uses a tensor which one of them needed,
waits for the last of them.

This cannot create a cycle. A start needs the operations that lead to it, the
starts before it and, as stateful operations run in order, all these that were
traced before it, with what leads to them; none of these waits for it. Loops of
TensorFlow 1 cannot be looked through: a graph with such is left alone. Under
XLA on a GPU it is the same, and on the CPU nothing waits: Note [What waits for
a start under XLA] in tfring_ops/xla/lowering.cc.

Note [Waiting by data]: nor can an optimization close a cycle later. A control
edge from the start would not be safe: TensorFlow drops it where another path
says the same, and then merges operations without looking for paths. So oneDNN's
layout pass makes one node of BiasAddGrad and Conv2DBackpropFilter, which have
their gradient in common; the first led to a start, the second waited for it
through its constant shape. TfringAfterStart therefore stands in the way of the
data: it passes a tensor on, once the start has run. No optimization knows it,
so that none merges operations on both sides of it, and those that wait have no
gradient in common with those that do not. Activations go past it where they
lead to another input as well: what uses both the activation and that input
comes after the start anyway. Neither constants nor operations on shapes wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfring._ops import chains
from tfring._ops.ordering import Started

_FLOATS = (tf.float16, tf.bfloat16, tf.float32, tf.float64)


class Backpropagation:
    """The operations traced so far in this graph; none when eager."""

    def __init__(self) -> None:
        self._graph = tf.compat.v1.get_default_graph()
        self._operations: list[tf.Operation] = (
            [] if tf.executing_eagerly() else self._graph.get_operations()
        )

    def order(self, gradients: Sequence[Any]) -> list[int]:
        """Indices of the gradients that exist; see Note [Backward order]."""
        last_first = [
            i
            for i in reversed(range(len(gradients)))
            if gradients[i] is not None
        ]
        position_of = {
            operation.name: position
            for position, operation in enumerate(self._operations)
        }

        def position(index: int) -> int:
            gradient = gradients[index]
            if isinstance(gradient, tf.IndexedSlices):
                gradient = gradient.values
            if (
                not tf.is_symbolic_tensor(gradient)
                or gradient.graph is not self._graph
            ):
                return -1  # It comes from outside, and is ready at once.
            return position_of[gradient.op.name]

        return sorted(last_first, key=position)

    def wait_for(self, starts: Sequence[Started]) -> None:
        """Makes backpropagation go on after each start.

        See Note [Control dependencies on starts].

        Args:
            starts: One chain.
        """
        if not self._graph.building_function or any(
            o.type == "NextIteration" for o in self._operations
        ):
            return
        needed_by = self._needed_by(starts)
        # Each operation that may have to wait, its number, and the inputs that
        # an earlier start needs.
        waiting: list[tuple[tf.Operation, int, list[int]]] = []
        for operation in self._operations:
            number = needed_by.get(operation.name, len(starts))
            early = [
                i
                for i, tensor in enumerate(operation.inputs)
                if tensor.dtype in _FLOATS
                and tensor.op.type != "Const"
                and needed_by.get(tensor.op.name, number) < number
            ]
            if early and any(t.dtype in _FLOATS for t in operation.outputs):
                waiting.append((operation, number, early))
        leads_to = self._leads_to(
            {
                operation.inputs[i].op.name
                for operation, _, early in waiting
                for i in early
            }
        )
        passed: dict[tuple[str, int], tf.Tensor] = {}
        for operation, number, early in waiting:
            inputs = list(operation.inputs)
            for i in early:
                if any(
                    leads_to(inputs[i].op, tensor.op)
                    for tensor in inputs
                    if tensor.dtype in _FLOATS
                ):
                    continue
                key = inputs[i].name, number
                if key not in passed:
                    # Where it is, and after nothing else.
                    with (
                        tf.control_dependencies(None),
                        tf.device(inputs[i].device or None),
                    ):
                        passed[key] = chains.after_start(
                            inputs[i], starts[number - 1]
                        )
                # Not public, but what TensorFlow's own control flow uses.
                operation._update_input(i, passed[key])

    def _needed_by(self, starts: Sequence[Started]) -> dict[str, int]:
        """The number of the first start that needs an operation, by its name.

        Operations that no start needs are left out.
        """
        types = {operation.type: operation for operation in self._operations}
        is_stateful = {
            name: operation.op_def.is_stateful
            for name, operation in types.items()
        }
        needed = [o for o in self._operations if is_stateful[o.type]]
        needed_by: dict[str, int] = {}
        for number, start in enumerate(starts):
            needed.append(start.handle.op)
            while needed:
                operation = needed.pop()
                if operation.name not in needed_by:
                    needed_by[operation.name] = number
                    needed.extend(tensor.op for tensor in operation.inputs)
                    needed.extend(operation.control_inputs)
        return needed_by

    def _leads_to(
        self, names: Iterable[str]
    ) -> Callable[[tf.Operation, tf.Operation], bool]:
        """Returns a predicate: a named operation leads to another operation."""
        bit_of = {name: 1 << i for i, name in enumerate(names)}
        before: dict[str, int] = {}  # the bits of what leads to an operation
        for operation in self._operations:
            bits = 0
            for other in (
                *(tensor.op for tensor in operation.inputs),
                *operation.control_inputs,
            ):
                bits |= before.get(other.name, 0) | bit_of.get(other.name, 0)
            before[operation.name] = bits
        return lambda first, then: bool(
            before.get(then.name, 0) & bit_of[first.name]
        )
