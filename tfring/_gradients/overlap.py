"""Starts reductions early, so that they overlap with backpropagation.

Note [Backward order]: the gradients of the last layers are ready first. Reduced
in that order, each gradient is sent while the gradients of earlier layers are
still being computed. TensorFlow runs a graph's stateful operations in the order
of their tracing, so a reduction that is traced too early delays all later ones.

Note [Control dependencies on starts]: a layer has two gradients: one for its
weights and one for its input. The previous layer continues from the second one.
TensorFlow runs ready operations in any order. With one inter-op thread it
delayed the weight gradients of all layers until nothing else was left to run,
so the starts ran at the end and overlapped with nothing. Therefore, if an
operation uses a tensor that an earlier start needed, and none of the starts so
far needs the operation itself, it waits for the last of these starts.

This cannot create a cycle. A start needs the operations that lead to it and the
starts before it. Because stateful operations run in order, it also needs all
stateful operations traced before it and the operations that lead to them. None
of these waits for the start. TensorFlow 1 loops cannot be analyzed, so a graph
with such a loop is left unchanged. XLA on a GPU works the same way, and on the
CPU nothing waits: Note [What waits for a start under XLA] in
tfring_ops/xla/lowering.cc.

Note [Waiting by data]: an optimization cannot close a cycle later either. A
control edge from the start would not be safe: TensorFlow drops it if another
path implies it, and then merges operations without looking for paths. For
example, oneDNN's layout pass fuses BiasAddGrad and Conv2DBackpropFilter, which
share their gradient, into one node. The first led to a start, and the second
waited for that start through its constant shape. So the data itself passes
through TfringAfterStart, which returns its input tensor once the start has run.
No optimization knows this operation, so none merges operations across it, and
an operation that waits shares no gradient with one that does not. An activation
bypasses it if the activation also leads to another input of the same operation,
because the operation runs after the start anyway. Neither constants nor
operations on shapes wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfring._memory.schedule import stateful_types
from tfring._ops import chains
from tfring._ops.ordering import Started

_FLOATS = (tf.float16, tf.bfloat16, tf.float32, tf.float64)


class Backpropagation:
    """The operations traced so far in this graph; no operations when eager."""

    def __init__(self) -> None:
        self._graph = tf.compat.v1.get_default_graph()
        self._operations: list[tf.Operation] = (
            [] if tf.executing_eagerly() else self._graph.get_operations()
        )

    def order(self, gradients: Sequence[Any]) -> list[int]:
        """Returns the indices of the gradients; see Note [Backward order]."""
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
                return -1  # a tensor from outside of the graph is ready
            return position_of[gradient.op.name]

        return sorted(last_first, key=position)

    def wait_for(self, starts: Sequence[Started]) -> None:
        """Makes backpropagation continue after each start.

        See Note [Control dependencies on starts].

        Args:
            starts: One chain.
        """
        if not self._graph.building_function or any(
            o.type == "NextIteration" for o in self._operations
        ):
            return
        waiting = self._waiting_operations(starts)
        leads_to = self._leads_to(
            {
                operation.inputs[i].op.name
                for operation, _, early in waiting
                for i in early
            }
        )
        after: dict[tuple[str, int], tf.Tensor] = {}
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
                if key not in after:
                    after[key] = chains.after_start(
                        inputs[i], starts[number - 1]
                    )
                # The function is private, but TensorFlow's own control flow
                # uses it.
                operation._update_input(i, after[key])

    def _waiting_operations(
        self, starts: Sequence[Started]
    ) -> list[tuple[tf.Operation, int, list[int]]]:
        """Returns the operations that use what an earlier start needs.

        Each operation comes with the number of the first start that needs it,
        and with the indices of its inputs that an earlier start needs.
        """
        needed_by = self._needed_by(starts)
        waiting = []
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
        return waiting

    def _needed_by(self, starts: Sequence[Started]) -> dict[str, int]:
        """Returns the first start that needs each operation, by its name.

        Operations that no start needs are left out.
        """
        stateful = stateful_types(self._operations)
        needed = [o for o in self._operations if o.type in stateful]
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
        # A bit for each operation that leads to this one.
        before: dict[str, int] = {}
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
