"""The order between the starts and dones of a graph.

Note [Order under XLA]: without XLA the stateful ops of a graph run in the order
in which they were traced. XLA:CPU knows only data dependencies, and runs
independent ops in an order that differs between steps and between ranks. So the
order is expressed as data there. A start takes the handle of the start before
it in its chain, and the results of all dones since an earlier start. A done
takes the handle of the newest start of its chain. So all ranks start everything
in one order. If a done fails and XLA frees all memory of the step, no op in
flight still uses the memory. Graphs inside a graph, such as the branches of
`tf.cond`, are each ordered separately. A TensorFlow 1 graph has no order: a
session runs the fetched ops, and requests of equal names match across ranks.

Note [Windows]: usually the dones of a chain come after its last start. A chain
may also have its dones between its starts, each after the start that follows
its own, so that at most two starts are in flight. A later start then waits for
an earlier collective, and so for all ranks: they must start everything in one
order without XLA, too.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.ops import control_flow_util

from tfring._core.process_sets import ProcessSet, checked_id

# The attribute of a graph under which the dones of its chains are kept, until
# the next start takes them.
_LAST_DONES = "_tfring_last_dones"


# Counts starts, in all graphs and in eager mode.
_starts = 0


@dataclasses.dataclass(slots=True)
class Chain:
    """A chain: its newest start, and whether another may follow."""

    newest_handle: tf.Tensor | None = None
    open: bool = True

    def add(self, handle: tf.Tensor, *, last: bool) -> None:
        """Adds the start that gave `handle`; `last` if it ends the chain."""
        assert self.open, "a start after the last of its chain"
        self.newest_handle = handle
        self.open = not last


@dataclasses.dataclass(slots=True)
class Started:
    """A start: what its done and the next start of its chain need."""

    handle: tf.Tensor
    chain: Chain
    process_set_id: int
    request_name: str
    # The buffers of a start in place, which must not be read; otherwise the
    # inputs.
    tensors: Sequence[tf.Tensor]


def is_eager_tensor(value: Any) -> bool:
    """Returns True for an eager tensor while no graph is being built."""
    return isinstance(value, ops.EagerTensor) and tf.executing_eagerly()


def handle_before(previous: Started | None) -> tf.Tensor:
    """Returns the input `prev` of a start; see Note [Order under XLA].

    It is in host memory, where the start needs it. A copy from a GPU would wait
    for all work queued on the GPU.
    """
    if tf.executing_eagerly():
        return _no_handle() if previous is None else previous.handle
    dones = _last_dones()  # all are 0
    handles = [*([] if previous is None else [previous.handle]), *dones]
    dones.clear()
    with tf.device("CPU:0"):
        if not handles:
            return tf.constant(0, tf.int64)
        return handles[0] if len(handles) == 1 else tf.add_n(handles)


@functools.cache
def _no_handle() -> tf.Tensor:
    """Returns the input `prev` of the first start of an eager chain."""
    with tf.device("CPU:0"):
        return tf.constant(0, tf.int64)


def count_start() -> None:
    """Counts a start that is traced, or run eagerly."""
    global _starts
    _starts += 1


def count_of_starts() -> int:
    """Returns how many starts this process has traced, or run eagerly."""
    return _starts


def inputs_of_done(started: Started) -> dict[str, tf.Tensor]:
    """Returns the handles of a done: its start's, and its chain's newest."""
    newest = started.chain.newest_handle
    # The next start of the chain takes this handle, which a done would end.
    assert not started.chain.open or newest is not started.handle, (
        "a done before the start after its own; see Note [Windows]"
    )
    return {"handle": started.handle, "last": newest}


def keep_done(ended: tf.Tensor) -> None:
    """Keeps the result of a done for the next start."""
    if not tf.executing_eagerly():
        _last_dones().append(ended)


def _last_dones() -> list[tf.Tensor]:
    graph = tf.compat.v1.get_default_graph()
    if not graph.building_function:
        # A session runs only the fetched ops of a TensorFlow 1 graph: ops that
        # were traced earlier may belong to another step.
        return []
    # The notes are attributes of the graph, so that they end with it.
    if not hasattr(graph, _LAST_DONES):
        setattr(graph, _LAST_DONES, [])
    dones: list[tf.Tensor] = getattr(graph, _LAST_DONES)
    return dones


def traced_for_xla() -> bool:
    """Tells whether a function is being traced under `jit_compile=True`."""
    # TensorFlow has no public way to ask. The attribute also marks the graph
    # around the function, which an init_scope is in, to run eagerly.
    return not tf.executing_eagerly() and bool(
        control_flow_util.GraphOrParentsInXlaContext(
            tf.compat.v1.get_default_graph()
        )
    )


def outermost_graph() -> Any:
    """Returns the graph of the outermost function that is being traced."""
    graph = tf.compat.v1.get_default_graph()
    while graph.building_function and graph.outer_graph.building_function:
        graph = graph.outer_graph
    return graph


def unique_name(name: str, process_set: ProcessSet) -> str:
    """Returns a request name that is new in the graph being traced.

    The name is equal on all ranks of the set, even if their graphs have
    different collectives of other sets. It does not depend on the name scope,
    which may contain the numbers of Keras layers: one rank may have made more
    layers than another.
    """
    process_set_id = checked_id(process_set)
    if process_set_id != 0:
        name = f"process_set_{process_set_id}/{name}"
    graph = tf.compat.v1.get_default_graph()
    with graph.name_scope(None):
        return str(graph.unique_name(name))
