"""Shares of parameters: which elements of a trained variable a rank keeps.

`tfring.shard_parameters` makes such variables (ZeRO-3, "fully sharded":
Rajbhandari et al., https://arxiv.org/abs/1910.02054). A rank keeps consecutive
elements of the flattened variable, and gathers.py gathers the whole where a
layer reads it.

Note [Memory of slices]: a slice of a tensor on the CPU shares the memory of the
tensor and keeps all of it alive. A share that is kept, and a share of a
gradient, are copied, so that the whole tensor is freed at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import tensorflow as tf

from tfring._core import native
from tfring._memory.sharding_ranks import ShardingRanks
from tfring._ops.ordering import traced_for_xla

_ATTRIBUTE = "_tfring_share"


class Reduction(NamedTuple):
    """How the gradients of a group of parameters are averaged.

    Attributes:
        wire_dtype: The dtype that is sent; None sends that of the parameters.
        predivide_factor: See `tfring.DistributedOptimizer`.
    """

    wire_dtype: tf.DType | None = None
    predivide_factor: float = 1.0


class ParameterGroup:
    """Parameters that are gathered together, by one collective.

    Attributes:
        name: The prefix of the names of requests, the same on all ranks.
        ranks: The ranks that have its shares.
        within_host: Whether the ranks of each machine share the parameters out,
            also after the ranks of the job have changed.
        shares: The shares of its parameters, which have one dtype.
        reduction: How their gradients are averaged.
    """

    def __init__(
        self, name: str, ranks: ShardingRanks, *, within_host: bool = False
    ) -> None:
        self.name = name
        self.ranks = ranks
        self.within_host = within_host
        self.shares: list[ParameterShare] = []
        self.reduction = Reduction()
        self._is_reduced = False

    def reduce_by(
        self, reduction: Reduction, *, before_trace: bool = False
    ) -> None:
        """Sets how gradients are averaged, before the first backpropagation.

        Args:
            reduction: How gradients are averaged.
            before_trace: Whether the step will be traced again.

        Raises:
            RuntimeError: Backpropagation has already averaged them in another
                way.
        """
        if before_trace:
            self._is_reduced = False
        if self._is_reduced and reduction != self.reduction:
            raise RuntimeError(
                f"The gradient of '{self.shares[0].path}', which is sharded "
                "(tfring.shard_parameters), has been averaged before its "
                "optimizer was built, without the compression and "
                "gradient_predivide_factor of the optimizer, or with those of "
                "another optimizer. Call "
                "optimizer.build(model.trainable_variables) before the first "
                "step, and give all optimizers of a model the same ones."
            )
        self.reduction = reduction

    def agreed_reduction(self) -> Reduction:
        """Returns how gradients are averaged from now on."""
        self._is_reduced = True
        return self.reduction

    def keep(self, share: ParameterShare) -> None:
        """Adds a parameter's share, or replaces its earlier one.

        A parameter has another share if the ranks of the job have changed.
        """
        for i, each in enumerate(self.shares):
            if each.parameter is share.parameter:
                self.shares[i] = share
                return
        self.shares.append(share)

    @property
    def size_bytes(self) -> int:
        """The bytes of its whole parameters."""
        return sum(share.count * share.dtype.size for share in self.shares)


class ParameterShare:
    """This rank's share of one parameter.

    Args:
        parameter: The Keras variable.
        stored: The flat variable with the elements that this rank keeps.
        begin: The index of the first kept element in the whole parameter.
        group: The parameters that are gathered together with it.
    """

    def __init__(
        self,
        parameter: Any,
        stored: tf.Variable,
        begin: int,
        group: ParameterGroup,
    ) -> None:
        self.parameter = parameter
        self.stored = stored
        self.begin, self.end = begin, begin + int(stored.shape[0])
        self.group = group
        self.path = str(parameter.path)
        self.shape = tuple(parameter.shape)
        self.dtype: tf.DType = stored.dtype
        setattr(parameter, _ATTRIBUTE, self)
        group.keep(self)

    @property
    def count(self) -> int:
        """The number of elements of the whole parameter."""
        return math.prod(self.shape)

    @property
    def is_trained(self) -> bool:
        """False if the parameter has been frozen."""
        return bool(self.parameter.trainable)

    def read(self, dtype: tf.DType) -> tf.Tensor:
        """Returns this rank's elements, in a dtype."""
        return tf.cast(self.stored.read_value(), dtype)

    def of(self, whole: tf.Tensor) -> tf.Tensor:
        """Returns this rank's elements of a whole tensor."""
        return copied_range(whole, self.begin, self.end)


def parameter_share(variable: Any) -> ParameterShare | None:
    """Returns the share whose elements a variable has, or None."""
    share: ParameterShare | None = getattr(variable, _ATTRIBUTE, None)
    return share


def parameters_of(variables: Iterable[Any]) -> list[ParameterShare]:
    """Returns the shares whose elements the variables have."""
    shares = (parameter_share(variable) for variable in variables)
    return [share for share in shares if share is not None]


def check_not_reduced(variables: Iterable[Any]) -> None:
    """Refuses to reduce the gradient of a sharded parameter a second time.

    Raises:
        NotImplementedError: The message names the parameter.
    """
    for share in parameters_of(variables):
        raise NotImplementedError(
            f"The parameter '{share.path}' is sharded "
            "(tfring.shard_parameters), and backpropagation has averaged its "
            "gradient. Take a plain tf.GradientTape, and "
            "tfring.DistributedOptimizer(..., shard_states=True), which "
            "averages the remaining gradients."
        )


def copied_range(whole: tf.Tensor, begin: int, end: int) -> tf.Tensor:
    """Returns a copied range of elements; see Note [Memory of slices]."""
    if traced_for_xla():
        # XLA would make a slice a part of the loop that uses it, and keep the
        # whole tensor until then.
        return native.ops().tfring_read_share(
            whole=whole, begin=begin, count=end - begin
        )
    return tf.raw_ops.DeepCopy(x=tf.reshape(whole, [-1])[begin:end])
