"""DistributedGradientTape: tf.GradientTape, whose gradients are averaged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfring._core.process_sets import ProcessSet, global_process_set
from tfring._gradients.gradient_options import GradientOptions, gradient_options
from tfring._gradients.local_gradients import reduce_gradients
from tfring._gradients.powersgd_of_tapes import low_rank_of
from tfring._gradients.reduced_by_tape import note_reduced
from tfring._memory.activations import offload_step
from tfring._memory.offload_options import Offload
from tfring._ops.autograph import not_converted
from tfring._ops.compression import AnyCompression, Compression
from tfring._ops.reductions import ReduceOp
from tfring._state.weights import warn_if_not_broadcast


@not_converted
def DistributedGradientTape(  # noqa: N802 (the name that Horovod's users know)
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompression = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp = ReduceOp.Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    offload: Offload | None = None,
) -> tf.GradientTape:
    """Makes the gradients of a tape averages over all ranks.

    It is for custom training loops, with any optimizer. Use it instead of
    `DistributedOptimizer`, not together with it: a second average is the same
    average, at the price of a second reduction. Where the result would differ,
    because the optimizer's `op` is no average or it has a `PowerSGD`, the
    optimizer raises an error for a variable whose gradient such a tape has
    reduced since the optimizer's last step, or in the same graph.

    `gradient` is collective: every rank must call it, for the same sources.
    `jacobian` and `batch_jacobian` are this rank's own.

    `gradtape` is a `tf.GradientTape`, recording already or not, persistent or
    not. The other arguments mean the same as for `tfring.DistributedOptimizer`,
    with sources in place of variables. A `tfring.PowerSGD` must have been made
    before the first step.

    Returns:
        An object with all methods and attributes of `gradtape`. It also has a
        method `register_local_source(source)`: the gradient of that source
        stays each rank's own.

    Raises:
        NotImplementedError: tfring has no kernels for one of the devices.
        TypeError: `gradtape` is not a `tf.GradientTape`, or another argument
            is of a wrong type.
        ValueError: `gradtape` is wrapped already, or an argument has an invalid
            value; the message says which.

    Example:

    ```python
    import tensorflow as tf
    import tfring

    tfring.init()
    weight = tf.Variable(1.0)
    with tfring.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = weight * float(tfring.rank())
    mean = tape.gradient(loss, weight)  # (0 + 1 + ... + size - 1) / size
    ```
    """
    _check_tape(gradtape)
    options = gradient_options(
        "DistributedGradientTape",
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        offload=offload,
        new_low_rank=low_rank_of,
    )
    return _DistributedGradientTape(gradtape, options)


@not_converted
def PartialDistributedGradientTape(  # noqa: N802
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompression = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp = ReduceOp.Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
    offload: Offload | None = None,
) -> tf.GradientTape:
    """A `DistributedGradientTape` that leaves some layers to each rank.

    Use it if every rank has its own part of the model. The gradients of the
    local layers are not reduced, but divided by the number of ranks, as an
    average is. So all gradients belong to one loss, the mean over the ranks.

    The arguments, the result and the errors are those of
    `DistributedGradientTape`. `local_layers` is a Keras layer or a list of
    layers; it need not agree across ranks, but the number and shapes of all
    other sources must.

    Example:

    ```python
    import keras
    import tensorflow as tf
    import tfring

    tfring.init()
    own, shared = keras.layers.Dense(4), keras.layers.Dense(1)
    with tfring.PartialDistributedGradientTape(
        tf.GradientTape(), local_layers=own
    ) as tape:
        loss = tf.reduce_sum(shared(own(tf.ones([2, 3]))))
    weights = own.trainable_weights + shared.trainable_weights
    gradients = tape.gradient(loss, weights)
    ```
    """
    _check_tape(gradtape)
    options = gradient_options(
        "PartialDistributedGradientTape",
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        local_layers=local_layers,
        offload=offload,
        new_low_rank=low_rank_of,
    )
    return _DistributedGradientTape(gradtape, options)


def _check_tape(gradtape: Any) -> None:
    if isinstance(gradtape, _DistributedGradientTape):
        raise ValueError(
            "This tape is distributed already. Wrap a tf.GradientTape once."
        )
    if not isinstance(gradtape, tf.GradientTape):
        raise TypeError(
            "DistributedGradientTape wraps an instance of tf.GradientTape, "
            f"got {gradtape!r} of type {type(gradtape).__name__}."
        )


class _DistributedGradientTape:
    # This class is no subclass of tf.GradientTape, whose `jacobian` calls
    # `self.gradient` in a vectorised loop, where nothing can be reduced.

    def __init__(self, tape: tf.GradientTape, options: GradientOptions) -> None:
        self._tape = tape
        self._options = options

    def __enter__(self) -> _DistributedGradientTape:
        self._tape.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._tape.__exit__(*exception)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    def register_local_source(self, source: Any) -> None:
        """Leaves the gradient of a source to each rank.

        Args:
            source: A source of later `gradient` calls.
        """
        self._options.local_variables.add(source)

    @not_converted
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """Returns `tf.GradientTape.gradient`'s result, averaged over ranks."""
        gradients = self._tape.gradient(
            target, sources, output_gradients, unconnected_gradients
        )
        flat = tf.nest.flatten(gradients)
        flat_sources, options = tf.nest.flatten(sources), self._options
        warn_if_not_broadcast(flat_sources, options)
        averages = reduce_gradients(flat, flat_sources, options)
        note_reduced(averages, flat_sources)
        offload_step("DistributedGradientTape", flat, options.offload)
        return tf.nest.pack_sequence_as(gradients, averages)
