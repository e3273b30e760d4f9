"""Checks the options of an optimizer that trains in rounds."""

from __future__ import annotations

import dataclasses
from typing import Any

from tfring._core import runtime
from tfring._core.process_sets import ProcessSet, global_process_set
from tfring._gradients.gradient_options import GradientOptions
from tfring._gradients.rounds import Gossip, Rounds
from tfring._ops.compression import Compression
from tfring._ops.process_set_registry import host_set
from tfring._ops.reductions import ReduceOp


def with_rounds(options: GradientOptions, sync: Any) -> GradientOptions:
    """Returns options for rounds. Collective if `within` is "host".

    Raises:
        NotImplementedError: Another option does not work with `sync`.
        TypeError: `sync` is not a `LocalSGD`, `DiLoCo` or `Gossip`.
        ValueError: `within` is not a process set that this rank is in.
    """
    function = "DistributedOptimizer"
    if not isinstance(sync, Rounds):
        raise TypeError(
            f"{function}: sync must be a tfring.LocalSGD, DiLoCo or "
            f"Gossip, got {sync!r}."
        )
    kind = type(sync).__name__
    if options.shard_states:
        raise NotImplementedError(
            f"{function}: with sync={kind} each rank has its own optimizer "
            "state, and with shard_states=True a part of a common one. Leave "
            "one of the two out."
        )
    if options.low_rank is not None:
        raise NotImplementedError(
            f"{function}: sync={kind} sends changes of weights, and "
            "tfring.PowerSGD compresses the gradients of every step. Take one "
            "of tfring.Compression.none, fp16 and bf16."
        )
    if options.op is not ReduceOp.Average:
        raise NotImplementedError(
            f"{function}: sync={kind} averages, and op is {options.op.name}. "
            "Leave op out."
        )
    if sync.start == 0 and sync.within is None:
        _check_reduces_no_gradients(kind, options)
    return dataclasses.replace(
        options, sync=sync, within=_checked_within(sync, options)
    )


def _check_reduces_no_gradients(kind: str, options: GradientOptions) -> None:
    """Refuses options for reducing gradients, which rounds do not reduce.

    Raises:
        NotImplementedError: The message names the option.
    """
    problem = None
    if options.groups is not None:
        problem = "groups (num_groups) cuts gradients into requests"
    elif options.predivide_factor != 1:
        problem = "gradient_predivide_factor splits the average of gradients"
    if problem is not None:
        raise NotImplementedError(
            f"DistributedOptimizer: {problem}, and with sync={kind} ranks send "
            "no gradients, but changes of weights. Leave it out, or give "
            f"tfring.{kind} a start or within, whose steps send gradients."
        )


def _checked_within(
    sync: Rounds, options: GradientOptions
) -> ProcessSet | None:
    kind = type(sync).__name__
    if isinstance(sync, Gossip):
        _check_goes_with_gossip(options)
    if sync.within is None:
        return None
    if options.process_set is not global_process_set or runtime.may_grow():
        raise NotImplementedError(
            f"{kind}: within={sync.within!r} is for all ranks of a job whose "
            "ranks do not change. Leave it out in an elastic job and with a "
            "process_set."
        )
    if sync.within == "host":
        return host_set()
    if not sync.within.included():
        raise ValueError(
            f"{kind}: rank {runtime.rank()} is not in {sync.within}. Each rank "
            "must pass a set that it is in, such as its part of a split "
            "communicator."
        )
    return sync.within


def _check_goes_with_gossip(options: GradientOptions) -> None:
    problem = None
    if options.compression is not Compression.none:
        problem = (
            "sends weights, which compression rounds too much. Take "
            "Compression.none"
        )
    elif runtime.may_grow():
        problem = (
            "is for jobs whose ranks do not change: there are no common "
            "weights to commit. Take tfring.DiLoCo in an elastic job"
        )
    if problem is not None:
        raise NotImplementedError(
            f"DistributedOptimizer: sync=Gossip {problem}."
        )
