"""GradientOptions: how an optimizer or a tape reduces gradients."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from tfring._core.process_sets import ProcessSet, global_process_set
from tfring._gradients.local_variables import (
    LocalVariables,
    checked_layers,
    variable_key,
)
from tfring._gradients.powersgd import LowRank
from tfring._gradients.rounds import Gossip, Rounds
from tfring._memory.offload_options import Offload, checked_offload
from tfring._ops.arguments import check_is_process_set, checked_factor
from tfring._ops.compression import (
    AnyCompressor,
    Compression,
    PowerSGD,
    checked,
)
from tfring._ops.devices import checked_device
from tfring._ops.reductions import ReduceOp


# `eq=False`, because two optimizers never share options.
@dataclasses.dataclass(frozen=True, eq=False)
class GradientOptions:
    """Settings of `reduce_gradients`.

    Most are arguments of `tfring.DistributedOptimizer`, which explains them.

    Attributes:
        low_rank: Reduces large dense gradients as factors; None reduces them
            whole.
        sparse_as_dense: Under XLA gradients are always made dense, because
            shapes are static there.
        predivide_factor: Divides gradients before the reduction of an average,
            and multiplies the result. `tf.IndexedSlices` are divided once,
            because they are added up in float32 or a wider dtype.
        local_variables: Variables that keep their local gradients, without a
            reduction. More may be added until the first step.
        within: The ranks that reduce gradients in every step of a round of
            `sync`.
    """

    device_dense: str = ""
    device_sparse: str = ""
    compression: AnyCompressor = Compression.none
    low_rank: LowRank | None = None
    sparse_as_dense: bool = False
    op: ReduceOp = ReduceOp.Average
    predivide_factor: float = 1.0
    groups: int | Sequence[Sequence[Any]] | None = None
    process_set: ProcessSet = global_process_set
    scale_local_gradients: bool = True
    local_variables: LocalVariables = dataclasses.field(
        default_factory=LocalVariables
    )
    offload: Offload | None = None
    shard_states: bool = False
    sync: Rounds | None = None
    within: ProcessSet | None = None

    def argument_without_xla(self) -> str | None:
        """Returns the argument that does not work under XLA, if one is set."""
        if self.offload is not None:
            return "offload"
        return "sync=Gossip" if isinstance(self.sync, Gossip) else None


def gradient_options(
    function: str,
    *,
    device_dense: str,
    device_sparse: str,
    compression: Any,
    sparse_as_dense: bool,
    op: Any,
    gradient_predivide_factor: Any,
    num_groups: int,
    groups: Any,
    process_set: Any,
    scale_local_gradients: bool,
    local_layers: Any = None,
    offload: Any = None,
    shard_states: bool = False,
    new_low_rank: Callable[[PowerSGD], LowRank] = LowRank,
) -> GradientOptions:
    """Makes options of the arguments that `function` shares with Horovod's.

    `new_low_rank` gives the state of a `PowerSGD`.

    Raises:
        NotImplementedError: tfring has no kernels for one of the devices.
        TypeError: An argument is of a wrong type.
        ValueError: An argument has an invalid value.
    """
    check_is_process_set(function, process_set)
    process_set.size()  # Raises if the set is not part of the job.
    _check_op(function, op)
    predivide_factor = _checked_predivide_factor(
        function, gradient_predivide_factor, op
    )
    low_rank = None
    if isinstance(compression, PowerSGD):
        if op is ReduceOp.Adasum:
            raise ValueError(
                f"{function}: tfring.PowerSGD adds up factors of gradients, "
                "and op=tfring.Adasum does not combine by a sum. Use "
                "op=tfring.Average or tfring.Sum."
            )
        low_rank, compression = new_low_rank(compression), Compression.none
    layers = checked_layers(function, local_layers)
    return GradientOptions(
        device_dense=checked_device(function, "device_dense", device_dense),
        device_sparse=checked_device(function, "device_sparse", device_sparse),
        compression=checked(function, compression),
        low_rank=low_rank,
        sparse_as_dense=sparse_as_dense,
        op=op,
        predivide_factor=predivide_factor,
        groups=_checked_groups(function, num_groups, groups),
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        local_variables=LocalVariables(layers=layers),
        offload=checked_offload(function, offload),
        shard_states=shard_states,
    )


def _check_op(function: str, op: Any) -> None:
    if not isinstance(op, ReduceOp):
        raise TypeError(
            f"{function}: op must be tfring.Average, tfring.Sum or "
            f"tfring.Adasum, got {op!r}."
        )
    if op not in (ReduceOp.Average, ReduceOp.Sum, ReduceOp.Adasum):
        raise ValueError(
            f"{function}: gradients can be reduced with op=tfring.Average, "
            f"tfring.Sum or tfring.Adasum, got {op.name}."
        )


def _checked_predivide_factor(
    function: str, factor: Any, op: ReduceOp
) -> float:
    predivide_factor = checked_factor(function, factor)
    if not (math.isfinite(predivide_factor) and predivide_factor > 0):
        raise ValueError(
            f"{function}: gradient_predivide_factor must be above 0 and "
            f"finite, got {predivide_factor}."
        )
    if predivide_factor != 1 and op is not ReduceOp.Average:
        raise ValueError(
            f"{function}: gradient_predivide_factor splits the division of an "
            f"average, and op is {op.name}. Use op=tfring.Average, or divide "
            "the loss."
        )
    return predivide_factor


def _checked_groups(
    function: str, num_groups: Any, groups: Any
) -> int | list[list[Any]] | None:
    if num_groups and groups is not None:
        raise ValueError(
            f"{function}: num_groups is Horovod's old name of groups; got both "
            "of them. Leave num_groups out."
        )
    given = num_groups if groups is None else groups
    if isinstance(given, int) and not isinstance(given, bool):
        if given < 0:
            raise ValueError(
                f"{function}: the number of groups must be at least 0, which "
                f"is none, got {given}."
            )
        return given or None
    if not isinstance(given, Sequence) or not all(
        isinstance(group, Sequence) and not isinstance(group, str)
        for group in given
    ):
        raise TypeError(
            f"{function}: groups must be a number or a list of lists of "
            f"variables, got {given!r}."
        )
    keys = [variable_key(v) for group in given for v in group]
    if len(set(keys)) < len(keys):
        raise ValueError(
            f"{function}: a variable is in groups more than once. Its gradient "
            "can travel with one group only."
        )
    return [list(group) for group in given]
