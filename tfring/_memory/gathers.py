"""Gathers of sharded parameters in a traced function, and their gradients.

Note [Two groups at a time]: all parameters of a group are gathered where the
first of them is read. A gather begins when the users of the group before the
last one have run, so at most two groups are whole, and one gather runs while
the layers of the group before it compute. The gradient of a gather is a
reduce-scatter. Backpropagation needs the weights again. The gradient function
of a gather therefore gathers the group before it a second time, and
`use_second_gathers` then has backpropagation read these tensors. So the first
ones are freed in the forward pass.

Note [Order of gathers]: all control edges lead forward in the order of tracing,
which is also the order in which TensorFlow runs stateful operations, so there
is no cycle, and all ranks start the same collectives in one order. Second
gathers are traced while a tape computes gradients: traced later, they would
come after reduce-scatters that wait for them. Operations that were traced
before a second gather keep the first tensor, which costs memory and changes no
result. XLA drops control edges, so there they are data; see Note [Order under
XLA] in tfring/_ops/ordering.py.

Note [Gathers and tapes]: a tensor that was gathered before a tape began has no
gradient on it. `keras.remat` computes a block again under a tape of its own. So
a gathered tensor is read again only if the tape has recorded it. A parameter of
a group that does not lead to the loss has no gradient, as without shares: each
whole parameter passes an identity whose gradient function notes that one came.

Note [Gathers outside of loops]: the body of a loop, such as an LSTM's, is a
graph of its own. Its gathers are in the graph around it, so that a parameter is
not gathered in every iteration. An update inside of such a body would leave the
next iteration old weights, and is an error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.ops import control_flow_v2_func_graphs

from tfring._core import native
from tfring._memory.parameters import ParameterGroup, ParameterShare
from tfring._memory.uses import (
    is_read_by_gradients,
    last_users,
    replace_behind,
)
from tfring._ops import chains
from tfring._ops.arguments import own_name
from tfring._ops.ordering import keep_done, traced_for_xla, unique_name
from tfring._ops.reductions import ReduceOp

# How many groups are gathered before the layers that read them.
_AHEAD = 1
_LOOPS = (
    control_flow_v2_func_graphs.WhileBodyFuncGraph,
    control_flow_v2_func_graphs.WhileCondFuncGraph,
)
_CONTROL_FLOW = (control_flow_v2_func_graphs.CondBranchFuncGraph, *_LOOPS)
# The attribute of a graph that has its `_Gathers`.
_ATTRIBUTE = "_tfring_gathers"


def whole_parameter(share: ParameterShare, dtype: tf.DType) -> tf.Tensor:
    """Returns a whole parameter. Collective.

    Args:
        share: This rank's share of it.
        dtype: The dtype in which it is read and gathered, a float.

    Returns:
        A tensor of the parameter's shape. Its gradient with respect to
        `share.stored` is the mean over the ranks.
    """
    if tf.executing_eagerly():
        # Keras numbers parameters in each process, so their paths may differ
        # between ranks.
        group = share.group
        name = f"parameters/{group.name}/{group.shares.index(share)}"
        [whole] = _gathered(
            [share],
            dtype,
            name,
            lambda gradient: _scatter(
                [share], {0: gradient}, f"{name}/gradients"
            ),
        )
        return whole
    *inner, graph = _graphs_around()
    with graph.as_default():
        return _gathers_of(graph).read(share, dtype, inner)


def assign_share(share: ParameterShare, value: tf.Tensor) -> None:
    """Assigns this rank's elements; later reads gather again.

    Raises:
        NotImplementedError: The assignment is traced in the body of a loop that
            reads the parameter.
    """
    if not tf.executing_eagerly():
        bodies: list[Any] = []
        for graph in _graphs_around():
            gathers = _gathers_of(graph)
            gathers.check_not_read_in(bodies, share)
            gathers.end(share)
            if isinstance(graph, _LOOPS):
                bodies.append(graph)
    share.stored.assign(value)


def use_second_gathers() -> None:
    """Has the backpropagation traced so far read second gathers."""
    if not tf.executing_eagerly():
        for graph in _graphs_around():
            _gathers_of(graph).use_second()


def gathered_operations(graph: Any) -> set[str]:
    """Returns the names of operations whose results are whole parameters."""
    return _gathers_of(graph).operations


def _graphs_around() -> Iterator[Any]:
    """Yields the graph being traced, and the graphs around it."""
    graph = tf.compat.v1.get_default_graph()
    yield graph
    while isinstance(graph, _CONTROL_FLOW):
        graph = graph.outer_graph
        yield graph


class _Gather:
    """One gather of a group in a graph.

    Attributes:
        wholes: The whole parameters, in the order of the group's shares.
        again: The results of the second gather; empty without one.
        gradients: The gradients of those of `wholes` that have one, by their
            numbers, once a tape has computed them.
        inner: The bodies of loops and branches that read it.
        is_recorded: Whether a tape computes its gradient.
        is_current: False after a parameter has been assigned.
    """

    def __init__(self, number: int, group: ParameterGroup, name: str) -> None:
        self.number, self.group, self.name = number, group, name
        self.wholes: list[tf.Tensor] = []
        self.again: list[tf.Tensor] = []
        self.gradients: dict[int, tf.Tensor] = {}
        # The numbers of the parameters that lead to the loss of the last tape.
        self.connected: set[int] = set()
        self.inner: set[Any] = set()
        self.is_recorded = False
        self.is_current = True

    @property
    def dtype(self) -> tf.DType:
        return self.wholes[0].dtype

    def is_known_to_tape(self) -> bool:
        """Tells whether it may be read; see Note [Gathers and tapes]."""
        return not record.could_possibly_record() or (
            record.should_record_backprop(self.wholes)
        )


class _Gathers:
    """The gathers of a graph, in the order of tracing; see the Notes above."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._all: list[_Gather] = []
        # The names of the operations whose results are whole parameters.
        self.operations: set[str] = set()

    def read(
        self, share: ParameterShare, dtype: tf.DType, inner: Iterable[Any]
    ) -> tf.Tensor:
        gather = next(
            (
                each
                for each in self._all[-_AHEAD - 1 :]
                if each.group is share.group
                and each.dtype == dtype
                and each.is_current
                and each.is_known_to_tape()
            ),
            None,
        ) or self._first(share.group, dtype)
        gather.inner |= set(inner)
        return gather.wholes[share.group.shares.index(share)]

    def end(self, share: ParameterShare) -> None:
        """Notes that a parameter is assigned here."""
        for gather in self._all:
            if gather.group is share.group:
                gather.is_current = False

    def check_not_read_in(
        self, bodies: Sequence[Any], share: ParameterShare
    ) -> None:
        """Checks an assignment; see Note [Gathers outside of loops].

        Raises:
            NotImplementedError: The parameter is assigned in one of the bodies,
                which reads it.
        """
        if not any(
            gather.group is share.group and not gather.inner.isdisjoint(bodies)
            for gather in self._all
        ):
            return
        raise NotImplementedError(
            f"The parameter '{share.path}' is sharded "
            "(tfring.shard_parameters), and a loop in a traced function both "
            "reads and updates it. Its weights are gathered before the loop, "
            "so every iteration would read the first ones. Put the step into "
            "a tf.function of its own, and call that in the loop."
        )

    def _first(self, group: ParameterGroup, dtype: tf.DType) -> _Gather:
        name = unique_name(f"parameters/{group.name}", group.ranks.process_set)
        gather = _Gather(len(self._all), group, name)
        before = self._all[-_AHEAD - 1].wholes if gather.number > _AHEAD else []
        with self._after(last_users(before), name):
            wholes = _gathered(
                group.shares,
                dtype,
                name,
                lambda *gradients: self._gradient(gather, gradients),
            )
            gather.wholes = [
                _noted(whole, functools.partial(gather.connected.add, i))
                for i, whole in enumerate(wholes)
            ]
        self.operations |= {whole.op.name for whole in gather.wholes}
        gather.is_recorded = record.could_possibly_record() and (
            record.should_record_backprop(gather.wholes)
        )
        self._all.append(gather)
        return gather

    def _gradient(
        self, gather: _Gather, gradients: Sequence[Any]
    ) -> list[tf.Tensor | None]:
        """Reduces gradients, and gathers the group before a second time."""
        gather.gradients = {
            i: tf.convert_to_tensor(gradients[i])
            for i in sorted(gather.connected)
        }
        gather.connected.clear()
        # The backward function of a nested tf.function is another graph.
        if tf.compat.v1.get_default_graph() is self._graph:
            for number in range(gather.number - _AHEAD, gather.number):
                if number >= 0 and self._is_needed_again(self._all[number]):
                    self._second(self._all[number])
        group = gather.group
        name = unique_name(
            f"parameters/{group.name}/gradients", group.ranks.process_set
        )
        return _scatter(group.shares, gather.gradients, name)

    def _is_needed_again(self, gather: _Gather) -> bool:
        return (
            gather.is_recorded
            and gather.is_current
            and not gather.gradients
            and not gather.again
            and any(is_read_by_gradients(w) for w in gather.wholes)
        )

    def _second(self, gather: _Gather) -> None:
        behind = gather.number + _AHEAD + 1
        if behind < len(self._all):
            after = [g.op for g in self._all[behind].gradients.values()]
        else:  # wait for the end of the forward pass
            after = last_users(self._all[-1].wholes)
        name = f"{gather.name}/again"
        with self._after(after, name):
            gather.again = _whole_tensors(
                gather.group.shares,
                [each.read(gather.dtype) for each in gather.group.shares],
                name,
            )
        self.operations |= {whole.op.name for whole in gather.again}

    def use_second(self) -> None:
        place = {
            operation.name: number
            for number, operation in enumerate(self._graph.get_operations())
        }
        for gather in self._all:
            for first, second in zip(gather.wholes, gather.again, strict=False):
                replace_behind(first, second, place, place[second.op.name])
            gather.again = []

    @contextmanager
    def _after(
        self, operations: Sequence[tf.Operation], scope: str
    ) -> Iterator[None]:
        """A scope in which traced starts wait for `operations`."""
        with self._graph.name_scope(f"{scope}/"):
            if not traced_for_xla():
                with tf.control_dependencies(operations):
                    yield
                return
            for operation in operations:
                keep_done(native.ops().tfring_computed(x=operation.outputs[0]))
            yield


def _gathers_of(graph: Any) -> _Gathers:
    if not hasattr(graph, _ATTRIBUTE):
        setattr(graph, _ATTRIBUTE, _Gathers(graph))
    gathers: _Gathers = getattr(graph, _ATTRIBUTE)
    return gathers


def _gathered(
    shares: Sequence[ParameterShare],
    dtype: tf.DType,
    name: str,
    gradient: Any,
) -> list[tf.Tensor]:
    """Returns whole parameters with a gradient."""

    @tf.custom_gradient
    def gathered(*parts: tf.Tensor) -> Any:
        casts = [tf.cast(part, dtype) for part in parts]
        return _whole_tensors(shares, casts, name), gradient

    wholes: list[tf.Tensor] = gathered(
        *(share.read(share.dtype) for share in shares)
    )
    return wholes


def _noted(tensor: tf.Tensor, note: Callable[[], None]) -> tf.Tensor:
    """Returns the tensor; `note` is called if a tape computes a gradient."""

    @tf.custom_gradient
    def noted(x: tf.Tensor) -> Any:
        def gradient(upstream: Any) -> Any:
            note()
            return upstream

        return tf.identity(x), gradient

    result: tf.Tensor = noted(tensor)
    return result


def _whole_tensors(
    shares: Sequence[ParameterShare], parts: Sequence[tf.Tensor], name: str
) -> list[tf.Tensor]:
    started = chains.start_gather_shares(
        parts,
        shapes=[share.shape for share in shares],
        begins=[share.begin for share in shares],
        request_name=name,
        tensor_names=[share.path for share in shares],
        process_set=shares[0].group.ranks.process_set,
    )
    return chains.finish(started)


def _sent(gradient: Any, share: ParameterShare, dtype: tf.DType) -> tf.Tensor:
    """Returns a whole gradient to send."""
    tensor = tf.convert_to_tensor(gradient)
    # The trace may not know the shape of a gradient if it does not know the
    # size of the batch.
    tensor.set_shape(share.shape)
    return tf.cast(tensor, dtype)


def _scatter(
    shares: Sequence[ParameterShare], gradients: Mapping[int, Any], name: str
) -> list[tf.Tensor | None]:
    """Averages gradients, and returns this rank's share of each.

    Gradients are sent in the dtype of the parameters, as without shares, unless
    the optimizer has a `compression`. The result of a parameter that is frozen
    or has no gradient is None.
    """
    result: list[tf.Tensor | None] = [None] * len(shares)
    trained = [i for i in gradients if shares[i].is_trained]
    if not trained:
        return result
    group = shares[0].group
    reduction = group.agreed_reduction()
    how: dict[str, Any] = {
        "tensor_names": [shares[i].path for i in trained],
        "op": ReduceOp.Average,
        "prescale_factor": 1 / reduction.predivide_factor,
        "postscale_factor": reduction.predivide_factor,
    }
    dtype = reduction.wire_dtype or shares[0].dtype
    started = chains.start_scatter_in_place(
        [_sent(gradients[i], shares[i], dtype) for i in trained],
        request_name=name,
        process_set=group.ranks.process_set,
        **how,
    )
    own = [
        shares[i].of(mean)
        for i, mean in zip(trained, chains.finish(started), strict=True)
    ]
    replicas = group.ranks.replicas
    if replicas is not None:
        # Ranks of different sets take part, so the name must not contain this
        # set's name.
        name = own_name(f"parameters/{group.name}/replicas", replicas)
        started = chains.start_allreduce(
            own, request_name=name, process_set=replicas, **how
        )
        own = chains.finish(started)
    for i, part in zip(trained, own, strict=True):
        result[i] = tf.cast(part, shares[i].dtype)
    return result
