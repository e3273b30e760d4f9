"""Refuses what does not work with `tfring.shard_parameters`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import keras

from tfring._core.process_sets import global_process_set
from tfring._gradients.gradient_options import GradientOptions
from tfring._memory.parameters import (
    ParameterShare,
    Reduction,
    parameters_of,
)
from tfring._ops.compression import split_engine_cast
from tfring._state.state_shares import WholeStates


def check_knows_parameters(optimizer: Any, variables: Sequence[Any]) -> None:
    """Refuses sharded parameters for an optimizer that takes whole variables.

    Raises:
        NotImplementedError: The message names the optimizer and the parameter.
    """
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    if isinstance(optimizer, WholeStates):
        return
    for share in parameters_of(variables):
        raise NotImplementedError(
            f"The parameter '{share.path}' is sharded "
            f"(tfring.shard_parameters), and the optimizer '{optimizer.name}' "
            "updates whole variables. Take "
            "tfring.DistributedOptimizer(..., shard_states=True), which "
            "updates this rank's share."
        )


def set_up_parameters(
    optimizer: Any,
    variables: Sequence[Any],
    options: GradientOptions,
    *,
    before_trace: bool = False,
) -> None:
    """Makes backpropagation average gradients by the optimizer's options.

    Args:
        optimizer: The optimizer, for its name in errors.
        variables: The variables that it trains.
        options: The optimizer's options.
        before_trace: Whether the step will be traced again.

    Raises:
        NotImplementedError: An option does not work with sharded parameters.
            The message names it.
        RuntimeError: Gradients have been averaged in another way already.
    """
    shares = parameters_of(variables)
    if not shares:
        return
    for problem in _problems(optimizer, shares, options):
        raise NotImplementedError(
            f"The optimizer '{optimizer.name}' trains '{shares[0].path}', "
            f"which is sharded (tfring.shard_parameters), and {problem}."
        )
    _, wire_dtype = split_engine_cast(options.compression, options.op)
    for share in shares:
        sent = wire_dtype(share.dtype)
        share.group.reduce_by(
            Reduction(
                None if sent == share.dtype else sent, options.predivide_factor
            ),
            before_trace=before_trace,
        )


def check_not_scaled(optimizer: Any, variables: Sequence[Any]) -> None:
    """Refuses accumulation inside of a loss scale for sharded parameters.

    Raises:
        NotImplementedError: The message names the optimizer.
    """
    for share in parameters_of(variables):
        raise NotImplementedError(
            f"The optimizer '{optimizer.name}' accumulates gradients inside of "
            f"a LossScaleOptimizer, and '{share.path}' is sharded "
            "(tfring.shard_parameters). Train without accumulation, or in "
            "bfloat16, which needs no loss scale."
        )


def _problems(
    optimizer: Any, shares: Sequence[ParameterShare], options: GradientOptions
) -> Iterator[str]:
    if options.groups is not None:
        yield (
            "groups (num_groups) would not reach its gradient, which "
            "backpropagation averages before the optimizer sees it. Leave "
            "it out; group_bytes of tfring.shard_parameters sets the groups "
            "of parameters"
        )
    if options.device_dense:
        yield (
            "device_dense would not reach its collectives. Leave device_dense "
            "out"
        )
    if options.process_set is not global_process_set:
        yield (
            f"all ranks train it, while {options.process_set} would train it "
            "alone. Leave process_set out"
        )
    for share in shares:
        if share.parameter.constraint is not None:
            yield (
                f"'{share.path}' has a constraint, which needs the whole "
                "variable. Leave the constraint out, or raise min_elements of "
                "tfring.shard_parameters"
            )
