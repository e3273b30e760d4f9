"""DistributedOptimizer: any Keras optimizer, on averaged gradients."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfring._core import runtime
from tfring._core.process_sets import ProcessSet, global_process_set
from tfring._gradients.gradient_options import GradientOptions, gradient_options
from tfring._gradients.rounds import Rounds
from tfring._memory.offload_options import Offload
from tfring._ops.compression import AnyCompression, Compression, PowerSGD
from tfring._ops.reductions import ReduceOp
from tfring._optim.computed_gradients import ComputedGradients
from tfring._optim.keras2_optimizer import (
    Keras2Distributed,
    distribute_keras2,
    is_keras2_optimizer,
)
from tfring._optim.optimizer_class import (
    Distributed,
    accumulates_as_keras,
    distribute,
)
from tfring._optim.rounds import InRounds
from tfring._optim.rounds_options import with_rounds
from tfring._optim.sharded import Sharded, check_can_be_sharded
from tfring._optim.v1_optimizer import V1Optimizer
from tfring._state.optimizers import with_inner


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
            copied, so that its state and settings remain. Or, as for
            `compile`, the name of one, such as "adam", or a configuration: a
            dictionary that `keras.optimizers.get` takes. Or an optimizer of
            `tf.compat.v1.train`, which stays as it is; or one of Keras 2, the
            package `tf_keras`, which is changed.
        name: A new name for `optimizer`; default the one that it has.
        use_locking: For optimizers of TensorFlow 1; Keras 3 does not know it.
        device_dense: The device that reduces dense gradients, such as "/cpu:0".
            By default TensorFlow chooses it. XLA chooses the device of compiled
            operations itself.
        device_sparse: The same for sparse gradients.
        compression: `tfring.Compression.none`, `fp16` or `bf16`: the dtype in
            which larger floats are sent and added. Or a `tfring.PowerSGD`,
            which sends two thin factors of each large gradient. Or a
            `tfring.compression.Compressor` of your own. Must agree across
            ranks.
        sparse_as_dense: If true, gradients of embeddings, `tf.IndexedSlices`,
            are made dense. Use it if most rows are used in every step. Must
            agree across ranks. Under `jit_compile` they always are. The results
            are the same: on any number of ranks, repeated rows are added up
            before Keras squares or clips them. Plain Keras squares or clips
            each row by itself.
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
        offload: Which feature maps are moved to the host's memory
            until backpropagation needs them, so that larger models and batches
            fit. Not under XLA: compile with `jit_compile=False`. Default: none.
        shard_states: If true, each rank keeps `1 / size()` of the optimizer's
            variables, such as momenta (ZeRO-1). Gradients are reduce-scattered,
            each rank updates its share, and the weights are gathered: the bytes
            of an allreduce. For SGD, Adam, AdamW, Adamax, Nadam, RMSprop,
            Adagrad, Adadelta, Ftrl and Lion, and a `LossScaleOptimizer` around
            them. Sparse gradients are made dense. Save within
            `tfring.whole_states`. With `tfring.shard_parameters` the weights
            are sharded, too. Must agree across ranks.
        sync: For slow links: `tfring.LocalSGD`, `tfring.DiLoCo` or
            `tfring.Gossip`. The ranks train apart in rounds of several updates,
            and average weights after each. `compression` is then that of the
            changes. Default: gradients are averaged in every step. Must agree
            across ranks.

    Returns:
        `optimizer` itself, or the one of that name or configuration, which now
        has a method `register_local_var(var)`: the gradient of that variable
        stays each rank's own. With `sync` it also has a collective method
        `meet()`, which ends a round early, and the attribute
        `outer_optimizer`: None with `Gossip`, and before it is built. Where it
        is a `LossScaleOptimizer`, with `sync` or `shard_states`, these are its
        `inner_optimizer`'s. A saved optimizer loads in plain Keras, and must
        then be wrapped again. For a
        TensorFlow 1 optimizer, the result is a new optimizer around it, with a
        `register_local_var`. Its `compute_gradients`, and `minimize` and
        `compute_gradients` of a Keras 2 optimizer, give averages;
        `apply_gradients` does not average.

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
    optimizer = _checked_optimizer(
        optimizer,
        is_of_keras3_alone=offload is not None
        or shard_states
        or sync is not None
        or isinstance(compression, PowerSGD),
    )
    if use_locking and not _is_v1(optimizer):
        raise ValueError(
            "DistributedOptimizer: use_locking=True is for TensorFlow 1's "
            "optimizers; those of Keras update variables without locks. "
            "Leave it out."
        )
    options = gradient_options(
        "DistributedOptimizer",
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
    if shard_states:
        check_can_be_sharded(optimizer, options)
    if sync is not None:
        options = with_rounds(options, sync)
    return _distributed(
        optimizer,
        options,
        name=name,
        passes=backward_passes_per_step,
        average_passes=average_aggregated_gradients,
        use_locking=use_locking,
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

    Args:
        optimizer: See `DistributedOptimizer`, also for the arguments that are
            not explained here. The arguments have Horovod's order; there, only
            the Keras module has this function.
        name: A new name for `optimizer`.
        device_dense: The device that reduces dense gradients.
        device_sparse: The device that reduces sparse gradients.
        compression: The dtype for sending larger floats, or a
            `tfring.PowerSGD`.
        sparse_as_dense: If true, `tf.IndexedSlices` are made dense.
        gradient_predivide_factor: Splits the division of an average.
        op: Average, sum or Adasum.
        groups: The gradients to reduce together.
        process_set: The ranks that average among themselves.
        local_layers: A Keras layer, or a list of them. Need not agree across
            ranks, but the number and shapes of all other variables must.
        scale_local_gradients: If true, local gradients are divided by the
            number of ranks.
        backward_passes_per_step: The number of batches to accumulate.
        average_aggregated_gradients: If true, their mean is taken.
        num_groups: Horovod's old name of `groups`, if that is a number.
        offload: Which feature maps are moved away meanwhile.

    Returns:
        The same as `DistributedOptimizer`.

    Raises:
        TypeError: See `DistributedOptimizer`.
        ValueError: See `DistributedOptimizer`; or one of `local_layers` is not
            a Keras layer. In the first step, if `optimizer` clips by a global
            norm.

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
    optimizer = _checked_optimizer(
        optimizer,
        is_of_keras3_alone=offload is not None
        or isinstance(compression, PowerSGD),
    )
    options = gradient_options(
        "PartialDistributedOptimizer",
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
    return _distributed(
        optimizer,
        options,
        name=name,
        passes=backward_passes_per_step,
        average_passes=average_aggregated_gradients,
    )


def _is_v1(optimizer: Any) -> bool:
    return isinstance(optimizer, tf.compat.v1.train.Optimizer)


def _checked_optimizer(optimizer: Any, *, is_of_keras3_alone: bool) -> Any:
    """Returns the optimizer; Keras makes it from a name or a configuration.

    Args:
        optimizer: An optimizer of Keras 3, Keras 2 or TensorFlow 1, or a name
            or a configuration.
        is_of_keras3_alone: True if an option is set that only Keras 3
            optimizers support.
    """
    runtime.check_joined()
    if _is_v1(optimizer) or is_keras2_optimizer(optimizer):
        if is_of_keras3_alone:
            raise NotImplementedError(
                "DistributedOptimizer: offload, shard_states, sync and "
                "PowerSGD are for Keras 3's optimizers, and this is a "
                f"{type(optimizer).__module__}.{type(optimizer).__name__}. "
                "Leave them out."
            )
    else:
        optimizer = _checked_keras_optimizer(optimizer)
    if any(
        isinstance(each, Distributed | V1Optimizer | Keras2Distributed)
        for each in with_inner(optimizer)
    ):
        raise ValueError(
            f"The optimizer {getattr(optimizer, 'name', '')!r} is distributed "
            "already: DistributedOptimizer changes the optimizer that it is "
            "given. Wrap an optimizer once."
        )
    return optimizer


def _checked_keras_optimizer(optimizer: Any) -> keras.optimizers.Optimizer:
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "tfring needs Keras on its TensorFlow backend, and Keras runs on "
            f"{keras.backend.backend()!r}. Set KERAS_BACKEND=tensorflow."
        )
    if isinstance(optimizer, str | dict):
        try:
            optimizer = keras.optimizers.get(optimizer)
        except (KeyError, ValueError) as error:
            raise ValueError(
                "DistributedOptimizer: Keras makes no optimizer of "
                f"{optimizer!r} ({type(error).__name__}: {error}). Pass a name "
                "such as 'adam', what keras.optimizers.serialize gives, or an "
                "optimizer."
            ) from error
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            "DistributedOptimizer wraps instances of keras.optimizers."
            "Optimizer (Keras 3), their names and configurations, and "
            "optimizers of tf_keras and of tf.compat.v1.train, got "
            f"{optimizer!r} of type "
            f"{type(optimizer).__module__}.{type(optimizer).__name__}. Make "
            "the optimizer with keras.optimizers; with any other, average the "
            "gradients by tfring.DistributedGradientTape."
        )
    return optimizer


def _distributed(
    optimizer: Any,
    options: GradientOptions,
    *,
    name: str | None,
    passes: int,
    average_passes: bool,
    use_locking: bool = False,
) -> Any:
    if isinstance(passes, bool) or not isinstance(passes, int) or passes < 1:
        raise ValueError(
            "DistributedOptimizer: backward_passes_per_step must be a whole "
            f"number of batches, at least 1, got {passes!r}."
        )
    computed = functools.partial(
        ComputedGradients, options, passes, average_passes
    )
    if _is_v1(optimizer):
        return V1Optimizer(
            optimizer, computed(), name=name, use_locking=use_locking
        )
    if is_keras2_optimizer(optimizer):
        return distribute_keras2(optimizer, computed, name=name)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    # A saved optimizer accumulates inside of the loss scale that `compile` has
    # put around it.
    accumulates_inside = passes == inner.gradient_accumulation_steps
    _accumulate(inner if accumulates_inside else optimizer, passes)
    if name is not None:
        optimizer.name = name
    mixin = Distributed
    if options.shard_states or options.sync is not None:
        mixin = Sharded if options.shard_states else InRounds
    # The states belong to the inner optimizer.
    has_own_part = accumulates_inside or mixin is not Distributed
    distribute(
        inner if has_own_part else optimizer,
        options,
        summed_passes=1 if average_passes else passes,
        mixin=mixin,
    )
    return optimizer


def _accumulate(optimizer: Any, passes: int) -> None:
    """Sets up Keras's accumulation of gradients, for more passes than one."""
    if passes == 1 or optimizer.gradient_accumulation_steps == passes:
        return
    problem = None
    if optimizer.gradient_accumulation_steps:
        problem = (
            "has gradient_accumulation_steps="
            f"{optimizer.gradient_accumulation_steps}. Give one of the two"
        )
    elif not accumulates_as_keras(type(optimizer)):
        problem = (
            "applies gradients by a method of its own. Wrap the optimizer "
            "inside it, if there is one"
        )
    elif optimizer.built:
        # A file has the accumulators at another place among the variables.
        problem = (
            "is built, without variables to accumulate in. Wrap it before its "
            "first use"
        )
    if problem is not None:
        raise ValueError(
            f"DistributedOptimizer: backward_passes_per_step={passes}, but "
            f"the optimizer '{optimizer.name}' {problem}."
        )
    optimizer.gradient_accumulation_steps = passes
