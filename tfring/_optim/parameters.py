"""Refuses what does not work with `tfring.shard_parameters`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import keras

from tfring._core.process_sets import global_process_set
from tfring._gradients.gradient_options import GradientOptions
from tfring._memory.parameters import ParameterShare, parameters_of
from tfring._ops.compression import Compression
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


def check_parameters(
    optimizer: Any, variables: Sequence[Any], options: GradientOptions
) -> None:
    """Refuses options that do not work with sharded parameters.

    Raises:
        NotImplementedError: The message names the option.
    """
    shares = parameters_of(variables)
    if not shares:
        return
    for problem in _problems(optimizer, shares, options):
        raise NotImplementedError(
            f"The optimizer '{optimizer.name}' trains '{shares[0].path}', "
            f"which is sharded (tfring.shard_parameters), and {problem}."
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
    reduced = "which backpropagation has averaged before the optimizer sees it"
    if options.compression is not Compression.none:
        yield (
            f"compression would not reach its gradient, {reduced}. Leave "
            "compression out"
        )
    if options.predivide_factor != 1:
        yield (
            "gradient_predivide_factor would not reach its gradient, "
            f"{reduced}. Leave it out"
        )
    if options.groups is not None:
        yield (
            f"groups would not reach its gradient, {reduced}. Leave groups "
            "out; group_bytes of tfring.shard_parameters sets the groups of "
            "parameters"
        )
    if options.device_dense:
        yield (
            "device_dense would not reach its collectives. Leave device_dense "
            "out"
        )
    if options.process_set is not global_process_set:
        yield (
            f"all ranks share it, while {options.process_set} would train it "
            "alone. Leave process_set out"
        )
    for share in shares:
        if share.parameter.constraint is not None:
            yield (
                f"'{share.path}' has a constraint, which needs the whole "
                "variable. Leave the constraint out, or raise min_elements of "
                "tfring.shard_parameters"
            )
