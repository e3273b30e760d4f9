"""The order between the starts and dones of a graph.

Note [Order under XLA]: without XLA the stateful ops of a graph run in the order
in which they were traced. XLA:CPU knows only data, and runs what is independent
in an order that differs between steps and between ranks. So the order is data
there: a start takes the handle of the start before it, a done the handle of its
chain's last start, and the first start of a chain what the dones of the chains
before it in the same graph return. The ranks thus start everything in one
order; and when a done fails, and XLA frees all memory of the step, nothing that
still uses it is in flight. Graphs inside a graph, such as the branches of
`tf.cond`, are ordered each by itself. A graph of TensorFlow 1 has no order: a
session runs what is fetched, and ranks meet by name.
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
# the first start of the next chain takes them.
_LAST_DONES = "_tfring_last_dones"


# Counts starts, in all graphs and in eager mode.
_starts = 0


@dataclasses.dataclass(slots=True)
class _Chain:
    last_handle: tf.Tensor | None = None
    open: bool = True


@dataclasses.dataclass(slots=True)
class Started:
    """A start, as its done and the next start of its chain need it."""

    handle: tf.Tensor
    chain: _Chain
    process_set_id: int
    request_name: str
    # Of a start in place its buffers, which must not be read; else its inputs.
    tensors: Sequence[tf.Tensor]


def is_eager_tensor(value: Any) -> bool:
    """Tells if it is a tensor with a value, and no function is being traced."""
    return (
        isinstance(value, ops.EagerTensor)
        and tf.executing_eagerly()
        and not ops.get_default_graph().building_function
    )


def handle_before(previous: Started | None) -> tf.Tensor:
    """The input `prev` of a start; see Note [Order under XLA].

    It is in host memory, as the start wants it: to be brought there from a GPU,
    it would have to wait for all that the GPU has been asked for.
    """
    if previous is not None:
        return previous.handle
    if tf.executing_eagerly():
        return _no_handle()
    dones = _last_dones()
    with tf.device("CPU:0"):
        if not dones:
            return tf.constant(0, tf.int64)
        handle = tf.add_n(dones)  # each is 0
    dones.clear()
    return handle


@functools.cache
def _no_handle() -> tf.Tensor:
    """Eagerly, the input `prev` of the first start of a chain."""
    with tf.device("CPU:0"):
        return tf.constant(0, tf.int64)


def add_to_chain(
    handle: tf.Tensor,
    request_name: str,
    tensors: Sequence[tf.Tensor],
    process_set: ProcessSet,
    previous: Started | None,
    *,
    last: bool,
) -> Started:
    """The start that has given `handle`; `last` if no other follows it."""
    global _starts
    _starts += 1
    chain = _Chain() if previous is None else previous.chain
    assert chain.open, "a start after the last of its chain"
    chain.last_handle = handle
    chain.open = not last
    process_set_id = checked_id(process_set)
    return Started(handle, chain, process_set_id, request_name, tensors)


def count_eager_start() -> None:
    """Counts a start while no function is being traced."""
    global _starts
    _starts += 1


def count_of_starts() -> int:
    """The number of starts that this process has traced, or run eagerly."""
    return _starts


def last_handle(started: Started) -> tf.Tensor:
    """The input `last` of a done: it comes after all starts of the chain."""
    assert not started.chain.open, "a done before the last start of its chain"
    return started.chain.last_handle


def keep_done(ended: tf.Tensor) -> None:
    """Keeps the result of a done for the first start of the next chain."""
    if not tf.executing_eagerly():
        _last_dones().append(ended)


def _last_dones() -> list[tf.Tensor]:
    graph = tf.compat.v1.get_default_graph()
    if not graph.building_function:
        # A graph of TensorFlow 1 runs what is fetched, and no more: what is
        # traced first may belong to another step.
        return []
    # They are kept on the graph itself, and die with it.
    if not hasattr(graph, _LAST_DONES):
        setattr(graph, _LAST_DONES, [])
    dones: list[tf.Tensor] = getattr(graph, _LAST_DONES)
    return dones


def traced_for_xla() -> bool:
    """Tells whether a function is being traced under `jit_compile=True`."""
    # Not public in TensorFlow, which has no other way to ask. It also marks the
    # graph around the function, which an init_scope is in, to run eagerly.
    return not tf.executing_eagerly() and bool(
        control_flow_util.GraphOrParentsInXlaContext(
            tf.compat.v1.get_default_graph()
        )
    )


def unique_name(name: str, process_set: ProcessSet) -> str:
    """A request name that is new in the graph that is being traced.

    Equal on the ranks of the set, whatever collectives of other sets they have
    in their graphs. And in whatever name scope they are: such have the numbers
    of Keras's layers, and one rank may have made more layers than another.
    """
    process_set_id = checked_id(process_set)
    if process_set_id != 0:
        name = f"process_set_{process_set_id}/{name}"
    graph = tf.compat.v1.get_default_graph()
    with graph.name_scope(None):
        return str(graph.unique_name(name))
