"""offload_activations: moves the feature maps of the step being traced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfring._memory.offload_options import Offload, checked_offload
from tfring._memory.rewrite import rewrite
from tfring._ops.autograph import not_converted
from tfring._ops.ordering import traced_for_xla


@not_converted
def offload_activations(gradients: Sequence[Any], offload: Offload) -> None:
    """Moves feature maps away between forward pass and backpropagation.

    It is for custom training loops without `tfring.DistributedOptimizer` and
    `tfring.DistributedGradientTape`, which take the same options as `offload=`.
    Call it once in the function of the step, after the gradients have been
    computed. It needs no `tfring.init()`, and is not collective.

    Args:
        gradients: The result of `tf.GradientTape.gradient` in the `tf.function`
            that is being traced. It is not changed.
        offload: Which feature maps are moved.

    Raises:
        NotImplementedError: The step is being traced for XLA, or has loops of
            TensorFlow 1.
        RuntimeError: It is called outside of a `tf.function`.
        TypeError: `offload` is no `tfring.Offload`.
        ValueError: The function that is being traced has computed no gradients.

    Example:

    ```python
    import tensorflow as tf
    import tfring

    weights = [tf.Variable(tf.random.normal([64, 64])) for _ in range(4)]
    offload = tfring.Offload("all", min_bytes=0)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            for weight in weights:
                x = tf.nn.relu(x @ weight)
            loss = tf.reduce_mean(x)
        gradients = tape.gradient(loss, weights)
        tfring.offload_activations(gradients, offload)
        for weight, gradient in zip(weights, gradients):
            weight.assign_sub(0.1 * gradient)
        return loss

    step(tf.random.normal([32, 64]))
    print(offload.statistics().moved)
    ```
    """
    checked_offload("offload_activations", offload)
    if offload is None:
        raise TypeError(
            "offload_activations: offload must be a tfring.Offload, got None."
        )
    offload_step("offload_activations", gradients, offload)


@not_converted
def offload_step(
    function: str, gradients: Sequence[Any], offload: Offload | None
) -> None:
    """Offloads for a public function, whose `offload` may be None."""
    if offload is None or all(gradient is None for gradient in gradients):
        return
    if tf.executing_eagerly():
        raise RuntimeError(
            f"{function}: offload= rewrites the graph of a traced step, and "
            "this one runs eagerly. Put forward pass, gradients and update "
            "into one tf.function; with Keras, compile with run_eagerly=False."
        )
    graph = tf.compat.v1.get_default_graph()
    if traced_for_xla():
        raise NotImplementedError(
            f"{function}: offload= does nothing under XLA, which plans all "
            "memory of a step itself. Trace with jit_compile=False."
        )
    if not graph.building_function or any(
        operation.type == "NextIteration"
        for operation in graph.get_operations()
    ):
        raise NotImplementedError(
            f"{function}: offload= cannot look through graphs and loops of "
            "TensorFlow 1. Use tf.function, with control flow 2."
        )
    tensors = [
        tensor
        for gradient in gradients
        if gradient is not None
        for tensor in tf.nest.flatten(gradient, expand_composites=True)
        if tf.is_symbolic_tensor(tensor) and tensor.graph is graph
    ]
    rewrite(graph, tensors, offload)
