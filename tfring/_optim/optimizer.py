"""DistributedOptimizer: any Keras optimizer, on averaged gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfring._core.process_sets import ProcessSet, global_process_set
from tfring._gradients.gradient_options import gradient_options
from tfring._gradients.rounds import Rounds
from tfring._memory.offload_options import Offload
from tfring._ops.compression import AnyCompression, Compression, PowerSGD
from tfring._ops.reductions import ReduceOp
from tfring._optim.rounds_options import with_rounds
from tfring._optim.sharded import check_can_be_sharded
from tfring._optim.wrapping import checked_optimizer, distributed, is_v1


def DistributedOptimizer(  # noqa: N802 (the name that Horovod's users know)
    optimizer: (
        keras.optimizers.Optimizer
        | tf.compat.v1.train.Optimizer
        | str
        | dict[str, Any]
    ),
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompression = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: ReduceOp = ReduceOp.Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    offload: Offload | None = None,
    shard_states: bool = False,
    sync: Rounds | None = None,
) -> keras.optimizers.Optimizer:
    """Makes a Keras optimizer average gradients over all ranks.

    Use it in place of the optimizer, in `model.compile` or in a training loop.
    Every rank then applies the same update, provided that all have started from
    the same weights (`BroadcastGlobalVariablesCallback`). In `fit` the ranks
    compare weights, batches and callbacks, and agree on when to stop; an error
    names each difference. Gradients are clipped after they have been averaged.
    Gradients of accumulated batches are averaged once for each update; inside a
    `LossScaleOptimizer` for each batch, since the ranks must skip a batch
    together.

    The learning rate does not change. A step's batch is `size()` times as
    large, so the learning rate should usually be scaled by `tfring.size()`.

    Applying gradients is collective: every rank must do it, for the same
    variables.

    Args:
        optimizer: Any Keras 3 optimizer. It is changed and returned, not
            copied, so that its state and settings remain. As for `compile`, it
            may be the name of an optimizer, such as "adam", or a configuration:
            a dictionary that `keras.optimizers.get` takes. It may also be an
            optimizer of Keras 2 (`tf_keras`), which is changed, too, or of
            `tf.compat.v1.train`, which is not changed.
        name: A new name for `optimizer`; by default it keeps its name.
        use_locking: For optimizers of TensorFlow 1 only.
        device_dense: The device that reduces dense gradients, such as "/cpu:0".
            By default TensorFlow chooses it. XLA chooses the device of compiled
            operations itself.
        device_sparse: The device that reduces sparse gradients.
        compression: `tfring.Compression.none`, `fp16` or `bf16`: the dtype in
            which larger floats are sent and added. A `tfring.PowerSGD` sends
            two thin factors of each large gradient. A
            `tfring.compression.Compressor` of your own is also accepted. Must
            agree across ranks.
        sparse_as_dense: If true, gradients of embeddings, `tf.IndexedSlices`,
            are made dense. Use it if most rows are used in every step. Must
            agree across ranks. Under `jit_compile` they are always made dense.
            The results are the same: on any number of ranks, repeated rows are
            added up before Keras squares or clips them. Plain Keras squares or
            clips each row by itself.
        backward_passes_per_step: The number of batches accumulated for each
            update, by Keras's `gradient_accumulation_steps`. So `iterations`
            and schedules count updates, while Horovod's count batches.
        op: `tfring.Average`, `tfring.Sum` or `tfring.Adasum` of the ranks'
            gradients, for each variable by itself. Must agree across ranks.
            `Adasum` needs `sparse_as_dense` for `tf.IndexedSlices`. It combines
            gradients, while Horovod's TensorFlow 1 optimizer combined updates.
        gradient_predivide_factor: Splits the division of an average: gradients
            are divided by it before they are added, and the sum by
            `size() / gradient_predivide_factor`. So the sum of many ranks stays
            within the range of float16. Must agree across ranks.
        average_aggregated_gradients: If true, an update is made with the mean
            of the gradients that `backward_passes_per_step` has accumulated,
            and not, as by default, with their sum. Keras's own
            `gradient_accumulation_steps` takes the mean.
        num_groups: Horovod's old name of `groups`, if that is a number.
        groups: The gradients to reduce together: lists of variables, or a
            number of parts to cut all gradients into, in the order they become
            ready. A variable in no list is reduced alone, and so is a sparse
            gradient. A group of several dtypes has one request for each dtype.
            Default: buckets of up to `TFRING_FUSION_THRESHOLD`. Must agree
            across ranks.
        process_set: The ranks that average among themselves. All other ranks
            keep their own gradients.
        scale_local_gradients: If true, the gradients of local variables, see
            `PartialDistributedOptimizer`, are divided by the number of ranks.
        offload: Which feature maps are moved to the host's memory until
            backpropagation needs them, so that larger models and batches fit.
            This does not work under XLA: Keras's `jit_compile="auto"` is False
            with it. Default: no feature maps.
        shard_states: If true, each rank keeps `1 / size()` of the optimizer's
            variables, such as momenta, and of the averaged gradients (ZeRO-2).
            Gradients are reduce-scattered, each rank updates its share, and the
            weights are gathered, which sends as many bytes as an allreduce. It
            works with SGD, Adam, AdamW, Adamax, Nadam, RMSprop, Adagrad,
            Adadelta, Ftrl and Lion, and with a `LossScaleOptimizer` around
            them. Sparse gradients are made dense. Save within
            `tfring.whole_states`. With `tfring.shard_parameters` the weights
            are sharded, too. Must agree across ranks.
        sync: For slow links: `tfring.LocalSGD`, `tfring.DiLoCo` or
            `tfring.Gossip`. The ranks train apart in rounds of several updates,
            and average weights after each. `compression` then applies to the
            changes of the weights. Default: gradients are averaged in every
            step. Must agree across ranks.

    Returns:
        `optimizer` itself, or the optimizer of that name or configuration,
        which now has a method `register_local_var(var)`: the gradient of that
        variable stays each rank's own. With `sync` it also has a collective
        method `meet()`, which ends a round early, and the attribute
        `outer_optimizer`, which is None with `Gossip`, and before the optimizer
        is built. With `sync` or `shard_states`, the `inner_optimizer` of a
        `LossScaleOptimizer` has them. A saved optimizer loads in plain Keras,
        and must then be wrapped again. For a TensorFlow 1 optimizer, the result
        is a new optimizer around it, with a `register_local_var`. Its
        `compute_gradients`, and `minimize` and `compute_gradients` of a Keras 2
        optimizer, give averages; `apply_gradients` does not average.

    Raises:
        NotImplementedError: tfring has no kernels for one of the devices, or
            the optimizer or another argument does not go with `shard_states`,
            `offload`, `sync` or `PowerSGD`.
        NotInitializedError: `tfring.init()` has not been called.
        TypeError: `optimizer` is not an optimizer of Keras or TensorFlow 1, or
            another argument is of a wrong type.
        ValueError: `optimizer` is wrapped already, or Keras has none of that
            name or configuration, Keras does not run on TensorFlow, or an
            argument has an invalid value; the message says which.

    Example:

    ```python
    import keras
    import tfring

    tfring.init()
    optimizer = keras.optimizers.SGD(0.01 * tfring.size(), momentum=0.9)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(tfring.DistributedOptimizer(optimizer), "mse")
    ```
    """
    return _wrapped(
        "DistributedOptimizer",
        optimizer,
        name=name,
        passes=backward_passes_per_step,
        average_passes=average_aggregated_gradients,
        use_locking=use_locking,
        sync=sync,
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
        shard_states=shard_states,
    )


def PartialDistributedOptimizer(  # noqa: N802
    optimizer: keras.optimizers.Optimizer | str | dict[str, Any],
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompression = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = ReduceOp.Average,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    offload: Offload | None = None,
) -> keras.optimizers.Optimizer:
    """A `DistributedOptimizer` that leaves some layers to each rank.

    Use it if every rank has its own part of the model. The gradients of the
    local layers are not reduced, but divided by the number of ranks, as an
    average is. So all gradients belong to one loss, the mean over the ranks.
    Such models cannot be clipped by `global_clipnorm`: the norm would contain
    the local gradients, differ between ranks, and drive the shared weights
    apart.

    The arguments, in Horovod's order, the result and the errors are those of
    `DistributedOptimizer`, with two differences. `local_layers` is a Keras
    layer or a list of layers; it need not agree across ranks, but the number
    and shapes of all other variables must. And an optimizer that clips by a
    global norm raises a ValueError in the first step.

    Example:

    ```python
    import keras
    import tfring

    tfring.init()
    own, shared = keras.layers.Dense(4), keras.layers.Dense(1)
    model = keras.Sequential([keras.Input((4,)), own, shared])
    optimizer = tfring.PartialDistributedOptimizer(
        keras.optimizers.SGD(0.01), local_layers=[own]
    )
    model.compile(optimizer, "mse")
    ```
    """
    return _wrapped(
        "PartialDistributedOptimizer",
        optimizer,
        name=name,
        passes=backward_passes_per_step,
        average_passes=average_aggregated_gradients,
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
    )


def _wrapped(
    function: str,
    optimizer: Any,
    *,
    name: str | None,
    passes: int,
    average_passes: bool,
    use_locking: bool = False,
    sync: Rounds | None = None,
    **arguments: Any,
) -> Any:
    """Wraps an optimizer; `arguments` are those of `gradient_options`."""
    optimizer = checked_optimizer(
        optimizer,
        is_of_keras3_alone=arguments["offload"] is not None
        or arguments.get("shard_states", False)
        or sync is not None
        or isinstance(arguments["compression"], PowerSGD),
    )
    if use_locking and not is_v1(optimizer):
        raise ValueError(
            "DistributedOptimizer: use_locking=True is for TensorFlow 1's "
            "optimizers; those of Keras update variables without locks. "
            "Leave it out."
        )
    options = gradient_options(function, **arguments)
    if options.shard_states:
        check_can_be_sharded(optimizer, options)
    if sync is not None:
        options = with_rounds(options, sync)
    return distributed(
        optimizer,
        options,
        name=name,
        passes=passes,
        average_passes=average_passes,
        use_locking=use_locking,
    )
