"""Rewrites a traced step, so that it moves feature maps away and back.

Note [Order of copies]: each feature map is copied out as soon as it has been
computed. The forward pass uses the n-th feature map only after the (n-ahead)-th
was copied out and released; otherwise it would run ahead of the copies, and
memory would not shrink. Backpropagation gets the n-th feature map back, in the
order of its uses, only after it has used the (n-ahead)-th and all earlier ones.
These uses include gradients of weights, for which nothing else waits:
TensorFlow would delay them, and with them the release of their inputs.

Note [Where edges are]: every edge leads forward in the order of `Schedule`, so
there is no cycle. Optimizations neither create a cycle nor change a bit. Those
that merge operations, such as a convolution and its bias or two products with
constants, check whether the tensor between them has other users or control
edges. So only tfring's operations get control edges. The forward pass waits
through data that is used twice anyway, once by backpropagation. Where a result
of backpropagation has only one use, a fetch waits for the next result along the
line that has more uses or is a gradient.

Note [Names]: TensorFlow sorts the terms of a sum by the names of their
operations, and sums of floats depend on their order. So the replacement of a
tensor has the name of the tensor, followed by a slash and a word.

Note [Sums in place]: TensorFlow computes a sum of three tensors in the memory
of one that nobody else holds, and the time of a copy must not decide which one
that is. So the forward pass reads feature maps from operations that return them
in memory that cannot be written to (offload_ops.cc), and a fetch waits for a
sum and not for its terms.

Note [After reductions]: with more than one rank, backpropagation waits for the
starts of reductions through operations in the path of data, across which
TensorFlow merges nothing. The edges of the graph determine their places. So
offloading adds its own edges afterwards: the places, and the bits, are the same
as without it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import tensorflow as tf

from tfring._core import native, runtime
from tfring._memory import feature_maps
from tfring._memory.feature_maps import Found, Use
from tfring._memory.offload_options import Offload
from tfring._memory.schedule import Schedule

_OPAQUE = {tf.resource, tf.variant}
# Operations that may be merged with the optimizer's if their result is a
# gradient.
_MERGED = {
    *("Add", "AddN", "AddV2", "Cast", "Div", "Mul", "Neg", "RealDiv"),
    *("Reshape", "Sub", "Transpose"),
}


def rewrite(
    graph: tf.Graph, gradients: Sequence[tf.Tensor], offload: Offload
) -> None:
    """Makes the step traced in `graph` offload its feature maps.

    Raises:
        ValueError: No tape has computed gradients in the graph.
    """
    schedule = Schedule(graph, gradients)
    if not schedule.has_backpropagation():
        raise ValueError(
            "offload: the gradients were not computed by a tf.GradientTape in "
            "the function that is being traced, so there is nothing between a "
            "forward pass and backpropagation to be moved. Compute loss, "
            "gradients and update in one tf.function."
        )
    moved, notes = feature_maps.find(graph, schedule, offload)
    if moved:
        with tf.control_dependencies(None):
            _Rewrite(schedule, offload, moved).run(notes)


class _Rewrite:
    def __init__(
        self, schedule: Schedule, offload: Offload, moved: Sequence[Found]
    ) -> None:
        self._schedule = schedule
        self._offload = offload
        self._moved = moved
        self._tokens: dict[str, tf.Tensor] = {}

    def run(self, notes: Sequence[str]) -> None:
        execution = self._begin(notes)
        handles = []
        for number, found in enumerate(self._moved):
            with _beside(found.tensor):
                handles.append(
                    native.ops().tfring_stash(
                        name="stash",
                        x=found.tensor,
                        execution=execution,
                        item=number,
                    )
                )
        self._hold_forward_pass(handles)
        self._fetch(handles)

    def _begin(self, notes: Sequence[str]) -> tf.Tensor:
        offload = self._offload
        first = next(
            (
                operation.outputs[0]
                for operation in self._schedule.operations
                if operation.type == "Placeholder"
                and operation.outputs[0].dtype not in _OPAQUE
            ),
            self._moved[0].tensor,
        )
        with _beside(self._moved[0].tensor):
            return native.ops().tfring_offload_begin(
                name="offload",
                x=first,
                plan=offload._new_plan(),
                items=len(self._moved),
                min_bytes=offload.min_bytes,
                budget_bytes=offload.budget_bytes or 0,
                report=not runtime.is_initialized() or runtime.rank() == 0,
                note="".join(f" {note}" for note in notes),
            )

    def _hold_forward_pass(self, handles: Sequence[tf.Tensor]) -> None:
        """Makes the forward pass wait for copies.

        See Note [Order of copies] and Note [Sums in place].
        """
        ahead = self._offload.ahead
        for number, found in enumerate(self._moved):
            uses = feature_maps.forward_uses(self._schedule, found.tensor)
            if not uses:
                continue
            awaited = [handles[number - ahead]] if number >= ahead else []
            with _beside(found.tensor):
                later = native.ops().tfring_after_stash(
                    name="held", x=found.tensor, handle=awaited
                )
            for operation, number in uses:
                # The function is private, but TensorFlow's own control flow
                # uses it.
                operation._update_input(number, later)

    def _fetch(self, handles: Sequence[tf.Tensor]) -> None:
        in_order = sorted(range(len(self._moved)), key=self._position_of_need)
        # Users of earlier feature maps for which nothing waits yet.
        using: dict[str, tf.Operation] = {}
        after: list[tf.Operation] = []
        for number, i in enumerate(in_order):
            need = self._position_of_need(i)
            if number >= self._offload.ahead:
                for use in self._moved[
                    in_order[number - self._offload.ahead]
                ].uses:
                    end = self._end_of_line(use.operation)
                    if end is not None:
                        using[end.name] = end
            used = [o for o in using.values() if self._position(o) < need]
            for operation in used:
                del using[operation.name]
            after = used or after
            self._fetch_one(i, handles, after)

    def _fetch_one(
        self,
        i: int,
        handles: Sequence[tf.Tensor],
        after: Sequence[tf.Operation],
    ) -> None:
        found = self._moved[i]
        need = self._position_of_need(i)
        # The last feature map to be copied out before this one is needed; the
        # forward pass is over.
        last = max(
            j
            for j, other in enumerate(self._moved)
            if self._position(other.tensor.op) < need
        )
        tokens = [self._token(operation) for operation in after]
        like = []
        if not found.tensor.shape.is_fully_defined():
            with _beside(found.tensor):
                like.append(tf.raw_ops.Shape(input=found.tensor))
        with (
            _beside(found.tensor),
            tf.control_dependencies([handles[last].op]),
        ):
            fetched = native.ops().tfring_fetch(
                name="fetched",
                handle=handles[i],
                after=tokens,
                like=like,
                T=found.tensor.dtype,
                shape=found.tensor.shape,
                item=i,
            )
        views: dict[str, tf.Tensor] = {}
        for use in found.uses:
            use.operation._update_input(
                use.number, _with_views(fetched, use, views)
            )

    def _end_of_line(self, operation: tf.Operation) -> tf.Operation | None:
        """Returns the operation that a fetch waits for, or None.

        See Note [Where edges are] and Note [Sums in place].
        """
        while True:
            uses = {
                user.name: user
                for tensor in operation.outputs
                for user, _ in self._schedule.consumers.get(tensor.name, ())
            }
            if not operation.outputs:
                return None
            sums = [
                user
                for user in uses.values()
                if user.type == "AddN" and len(user.inputs) > 2
            ]
            if sums:
                operation = sums[0]
                continue
            if len(uses) > 1:
                return operation
            if all(user.type.startswith("Tfring") for user in uses.values()):
                # TensorFlow merges nothing with these.
                if uses:
                    return operation
                return None if operation.type in _MERGED else operation
            (operation,) = uses.values()

    def _token(self, operation: tf.Operation) -> tf.Tensor:
        """Returns a tensor that exists once an operation has run."""
        if operation.name not in self._tokens:
            with _beside(operation.outputs[0]):
                self._tokens[operation.name] = native.ops().tfring_computed(
                    name="computed", x=operation.outputs[0]
                )
        return self._tokens[operation.name]

    def _position(self, operation: tf.Operation) -> int:
        return self._schedule.position_of(operation)

    def _position_of_need(self, i: int) -> int:
        return self._position(self._moved[i].uses[0].operation)


@contextlib.contextmanager
def _beside(tensor: tf.Tensor) -> Iterator[None]:
    """A scope on a tensor's device and under its name; see Note [Names]."""
    with (
        tf.device(tensor.device or None),
        tensor.graph.name_scope(f"{tensor.op.name}/"),
    ):
        yield


def _with_views(
    fetched: tf.Tensor, use: Use, views: dict[str, tf.Tensor]
) -> tf.Tensor:
    """Returns the fetched feature map through the views of a use."""
    tensor = fetched
    for view in use.views:
        if view.name not in views:
            with _beside(view.outputs[0]):
                made = tensor.graph.create_op(
                    view.type,
                    [tensor, *view.inputs[1:]],
                    [output.dtype for output in view.outputs],
                    name="fetched",
                    attrs=dict(view.node_def.attr),
                    op_def=view.op_def,
                )
            views[view.name] = made.outputs[0]
        tensor = views[view.name]
    return tensor
