"""Broadcasts for graphs and sessions of TensorFlow 1: `tf.compat.v1`.

The collectives themselves work there without further support.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfring._ops.arguments import check_root_rank
from tfring._ops.autograph import not_converted
from tfring._ops.devices import checked_device, on_device
from tfring._state.broadcast_variables import broadcast_variables


@not_converted
def broadcast_global_variables(root_rank: int) -> tf.Operation:
    """Makes the operation that broadcasts all global variables of a graph.

    Run it in a session, on every rank, when the variables have been
    initialized.

    Args:
        root_rank: All ranks take this rank's values.

    Returns:
        The operation.

    Raises:
        RuntimeError: There is no graph, because TensorFlow executes eagerly.
        ValueError: There is no rank `root_rank`.

    Example:

    ```python
    import tensorflow as tf
    import tfring

    tfring.init()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        weight = tf.compat.v1.get_variable(
            "weight", initializer=float(tfring.rank())
        )
        from_root = tfring.broadcast_global_variables(0)
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(from_root)
        assert session.run(weight) == 0
    ```
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "broadcast_global_variables is for graphs of TensorFlow 1, and "
            "TensorFlow executes eagerly, where no variables are global. Use "
            "tfring.broadcast_variables(model.variables, root_rank), or "
            "tfring.callbacks.BroadcastGlobalVariablesCallback in fit."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Broadcasts all global variables when a monitored session begins.

    All ranks then start from the same weights, whether these were initialized
    or restored from a checkpoint, which only the root needs.

    Args:
        root_rank: All ranks take this rank's values.
        device: The device of the broadcast, such as "/cpu:0". By default
            TensorFlow chooses it.

    Raises:
        NotImplementedError: tfring has no kernels for `device`.
        ValueError: There is no rank `root_rank`, or no such device.

    Example:

    ```python
    import tensorflow as tf
    import tfring

    tfring.init()
    with tf.Graph().as_default():
        weight = tf.compat.v1.get_variable(
            "weight", initializer=float(tfring.rank())
        )
        with tf.compat.v1.train.MonitoredTrainingSession(
            hooks=[tfring.BroadcastGlobalVariablesHook(0)]
        ) as session:
            assert session.run(weight) == 0
    ```
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        check_root_rank("BroadcastGlobalVariablesHook", root_rank)
        self.root_rank = root_rank
        self.device = checked_device(
            "BroadcastGlobalVariablesHook", "device", device
        )
        self.bcast_op: tf.Operation | None = None

    def begin(self) -> None:
        """Adds the broadcast to the graph; called before it is finalized."""
        graph = tf.compat.v1.get_default_graph()
        # A hook may be used again, for another graph.
        if self.bcast_op is None or self.bcast_op.graph is not graph:
            with on_device(self.device):
                self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Runs the broadcast, also in a session that replaces a lost one."""
        del coord
        session.run(self.bcast_op)
