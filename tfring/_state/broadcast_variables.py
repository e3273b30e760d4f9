"""Gives every rank the same variables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfring._core import runtime
from tfring._core.process_sets import (
    ProcessSet,
    global_process_set,
    is_alone,
)
from tfring._gradients.buckets import cut_into_buckets
from tfring._ops import chains
from tfring._ops.arguments import (
    check_process_set,
    check_root_rank,
    checked_name,
)
from tfring._ops.autograph import not_converted
from tfring._ops.gather_json import gather_by_rank
from tfring._ops.reductions import SUPPORTED_DTYPES
from tfring._state.accumulators import average_accumulators
from tfring._state.kinds import (
    Kind,
    accumulators_by_optimizer,
    kind_of,
    rounds_among,
    rounds_of,
)
from tfring._state.seeds import folded
from tfring._state.shards import Shard, split_off_shards
from tfring._state.weights import variable_name

_SHARDED = (
    "{function}: the states of an optimizer with shard_states=True are shared "
    "out between the ranks, and can be broadcast by tfring.broadcast_variables "
    "alone, eagerly. Leave them out."
)


@not_converted
def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int = 0,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
    same_seeds: bool = False,
) -> Any:
    """Assigns to each variable the value that it has on one rank.

    Call it before the first step, so that all ranks start from the same
    weights, and whenever one rank alone has changed them, for example by
    loading a checkpoint. Collective: every rank must call it, with variables of
    the same dtypes and shapes in the same order. On one rank it does nothing.

    Seeds are states of `keras.random.SeedGenerator`, for example in
    `keras.layers.Dropout`. They become the root's seeds folded with the rank:
    each rank draws noise of its own, and the same noise in the next run.

    If rank 0 has loaded sharded variables and is the root, each rank gets its
    share of them: states of an optimizer with `shard_states=True`, tables of
    `tfring.layers.ShardedEmbedding`, parameters of `tfring.shard_parameters`.
    If it has loaded nothing since its last step, they do not change.

    Gradients that a `DistributedOptimizer` has accumulated become their mean
    over the ranks that have made as many batches as the root, so that no rank's
    batches are lost.

    Args:
        variables: Keras or TensorFlow variables of any dtype except strings. A
            graph also excludes dtypes that `tf.bitcast` lacks, such as float8.
        root_rank: The rank that gives its values to all other ranks.
        process_set: See `tfring.allreduce`.
        inplace: Ignored; Horovod has this argument. In eager mode there is
            never more than one bucket of values besides the variables.
        same_seeds: If true, every rank gets the root's seeds, and all ranks
            draw the same noise.

    Returns:
        None; in a graph the operation that broadcasts. A TensorFlow 1 session
        must run it.

    Raises:
        NotImplementedError: In a graph, a variable is a share of the state of
            an optimizer with `shard_states=True`.
        TypeError: A variable has an unsupported dtype, or is not a variable.
        ValueError: There is no rank `root_rank`.
        tf.errors.FailedPreconditionError: The ranks did not agree.

    Example:

    ```python
    import keras
    import tfring

    tfring.init()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    tfring.broadcast_variables(model.variables, root_rank=0)
    ```
    """
    del inplace
    function = "broadcast_variables"
    targets = _checked(function, variables, root_rank, process_set)
    targets, shards = split_off_shards(targets)
    if tf.executing_eagerly():
        # Eager calls end one after another, so they can share a name.
        _broadcast(targets, root_rank, "variables", process_set, same_seeds)
        _share_loaded(shards, root_rank, process_set)
        return None
    if any(shard.optimizer is not None for shard in shards):
        raise NotImplementedError(_SHARDED.format(function=function))
    name = checked_name(function, None, process_set=process_set)
    return tf.group(
        *_broadcast(targets, root_rank, name, process_set, same_seeds)
    )


@not_converted
def broadcast_(
    variables: Iterable[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    same_seeds: bool = False,
) -> list[tf.Tensor]:
    """Gives variables the values of one rank, and returns them.

    It is `broadcast_variables` with another result, with the same arguments and
    errors, and with the `name` of `tfring.allreduce`.

    Returns:
        The variables' new values, which have no gradient.

    Example:

    ```python
    import tensorflow as tf
    import tfring

    tfring.init()
    step = tf.Variable(100 + tfring.rank())
    [value] = tfring.broadcast_([step], 0)
    assert value == step == 100
    ```
    """
    targets = _checked("broadcast_", variables, root_rank, process_set)
    whole, shards = split_off_shards(targets)
    if any(shard.optimizer is not None for shard in shards):
        raise NotImplementedError(_SHARDED.format(function="broadcast_"))
    name = checked_name("broadcast_", name, process_set=process_set)
    done = _broadcast(whole, root_rank, name, process_set, same_seeds)
    with tf.control_dependencies(done):
        return [
            # Converting a reference variable would give its initial value.
            variable.read_value()
            if isinstance(variable, tf.Variable)
            else tf.convert_to_tensor(variable)
            for variable in targets
        ]


def _checked(
    function: str,
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet,
) -> list[Any]:
    check_process_set(function, process_set)
    check_root_rank(function, root_rank, process_set)
    targets = list(variables)
    for variable in targets:
        if not hasattr(variable, "assign"):
            raise TypeError(
                f"{function} takes Keras and TensorFlow variables, got "
                f"{variable!r} of type {type(variable).__name__}."
            )
        if variable.dtype == tf.string:
            raise TypeError(
                f"{function}: the variable '{variable_name(variable)}' holds "
                "strings, which cannot be broadcast. Leave it out."
            )
    return targets


def _broadcast(
    variables: list[Any],
    root_rank: int,
    request_name: str,
    process_set: ProcessSet,
    same_seeds: bool,
) -> list[Any]:
    """Broadcasts variables; returns, in a graph, the operations to run."""
    if is_alone(process_set):
        return []
    done: list[Any] = []
    # Do this before the broadcast overwrites the counts of batches.
    for number, (optimizer, accumulators) in enumerate(
        accumulators_by_optimizer(variables)
    ):
        done += average_accumulators(
            optimizer,
            accumulators,
            root_rank=root_rank,
            name=f"{request_name}/accumulated/{number}",
            process_set=process_set,
        )
    variables = [v for v in variables if kind_of(v) is not Kind.ACCUMULATED]
    for in_round in rounds_among(variables):
        variables += in_round.state
    values = [_as_supported(variable) for variable in variables]
    buckets = cut_into_buckets(values, runtime.fusion_threshold_bytes())
    for number, bucket in enumerate(buckets):
        # A bucket is assigned before the next one starts, so that a large
        # model is not in memory twice.
        started = chains.start_broadcast(
            [values[i] for i in bucket],
            request_name=request_name and f"{request_name}/{number}",
            tensor_names=[variable_name(variables[i]) for i in bucket],
            process_set=process_set,
            root_rank=root_rank,
        )
        received = chains.finish(started)
        done += received
        for i, value in zip(bucket, received, strict=True):
            for in_round in rounds_of(variables[i]):
                base = in_round.common_value(variables[i])
                if base is not None:
                    done += _assign(base, value)
            if runtime.rank() == root_rank:
                continue
            if kind_of(variables[i]) is Kind.FOLDED and not same_seeds:
                value = folded(value, runtime.rank() - root_rank)
            done += _assign(variables[i], value)
    return [] if tf.executing_eagerly() else done


def _as_supported(variable: Any) -> tf.Tensor:
    """Returns a variable's value, as bytes if collectives lack its dtype."""
    value = tf.convert_to_tensor(variable)
    if value.dtype in SUPPORTED_DTYPES:
        return value
    if tf.executing_eagerly():
        return tf.constant(np.frombuffer(value.numpy().tobytes(), np.uint8))
    return tf.bitcast(value, tf.uint8)


def _assign(variable: Any, value: tf.Tensor) -> Iterator[Any]:
    """Assigns a value; yields, in a graph, the operations to run."""
    dtype = tf.as_dtype(variable.dtype).base_dtype
    if value.dtype != dtype and tf.executing_eagerly():
        array = np.frombuffer(value.numpy(), dtype.as_numpy_dtype)
        variable.assign(array.reshape(variable.shape))
        return
    if value.dtype != dtype:
        value = tf.bitcast(value, dtype)
    assigned = variable.assign(value)
    if not tf.executing_eagerly():
        # Keras variables return the value; TensorFlow variables return
        # themselves.
        yield getattr(assigned, "op", assigned)


def _share_loaded(
    shards: Sequence[Shard], root_rank: int, process_set: ProcessSet
) -> None:
    """Gives all ranks their shards of the values that one rank has loaded.

    Collective, and eager. A shard stays as it is if the root has made a step
    since it loaded the value. See Note [Loaded on one rank].

    Raises:
        RuntimeError: Raised on every rank if the root alone has loaded one of
            them, and is not rank 0.
        ValueError: An optimizer's states are sharded over other ranks.
    """
    shared = []
    for shard in shards:
        if shard.all_ranks is process_set:
            shared.append(shard)
        elif shard.optimizer is not None:
            raise ValueError(
                f"The optimizer '{shard.optimizer.name}' has shard_states=True "
                "for other ranks than those of this broadcast. Pass the "
                "process_set that DistributedOptimizer was given."
            )
    if not shared or len(shared[0].numbers) == 1:
        return
    own = [
        [has_loaded, shard.keeps_loaded]
        for shard, has_loaded in zip(
            shared, _are_as_loaded(shared), strict=True
        )
    ]
    of_ranks = gather_by_rank(
        own, name="shards/has loaded", process_set=process_set
    )
    for number, shard in enumerate(shared):
        has_loaded, keeps = of_ranks[root_rank][number]
        if has_loaded and keeps:
            shard.receive(root_rank)
        elif has_loaded and root_rank != 0:
            if all(each[number][0] for each in of_ranks.values()):
                continue  # each rank has loaded it
            raise RuntimeError(
                f"{shard.description}. Rank {root_rank} has loaded it, and is "
                "not rank 0: it keeps its own part alone, and cannot give the "
                "other ranks theirs. Load on rank 0, or on every rank."
            )


def _are_as_loaded(shards: Sequence[Shard]) -> list[bool]:
    """Tells for each shard whether its variable is as it was loaded.

    An empty shard does not show whether other ranks have changed their shards.
    A step changes all states of an optimizer, so all of them are checked
    together.
    """
    unchanged: dict[int, bool] = {}
    for shard in shards:
        owner = id(shard.optimizer or shard)
        unchanged[owner] = unchanged.get(owner, True) and shard.has_loaded()
    return [unchanged[id(shard.optimizer or shard)] for shard in shards]
