"""Shares: this rank's parts of an optimizer's variables.

See Note [Shares] in cuts.py and Note [Buckets of shares] in share_buckets.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfring._core import native
from tfring._gradients.cuts import LARGE, cut_all
from tfring._gradients.gradient_options import GradientOptions
from tfring._gradients.local_variables import variable_key
from tfring._gradients.reducer import buckets_of, name_of
from tfring._gradients.share_buckets import Bucket
from tfring._memory.parameters import ParameterShare, parameter_share
from tfring._memory.sharding_ranks import ShardingRanks
from tfring._ops.ordering import traced_for_xla


class Share:
    """This rank's part of one variable; it may be empty.

    An optimizer updates it like a flat variable. It has a value only during an
    update, and uses no memory otherwise.

    Attributes:
        index: The variable's number.
        begin: The index of its first element.
        end: The index after its last element.
        value: The current value during an update; otherwise None.
        parameter: For a parameter of `tfring.shard_parameters`, of which the
            rank keeps only this part: its share. Otherwise None.
    """

    constraint = None
    overwrite_with_gradient = False

    def __init__(
        self,
        index: int,
        dtype: tf.DType,
        begin: int,
        end: int,
        parameter: ParameterShare | None = None,
    ) -> None:
        self.index = index
        self.parameter = parameter
        self.dtype = dtype
        self.name = self.path = self._unique_id = f"share_{index}"
        self.begin, self.end = begin, end
        self.value: tf.Tensor | None = None

    @property
    def shape(self) -> tf.TensorShape:
        return tf.TensorShape([self.end - self.begin])

    def of(self, tensor: Any) -> tf.Tensor:
        """Returns this part of a tensor of the variable's shape, flat.

        A sharded parameter, and a gradient of it, are this part already.
        """
        if self.parameter is None:
            tensor = tf.convert_to_tensor(tensor)
            tensor = _part(tensor, self.begin, self.end)
        elif parameter_share(tensor) is not None:
            tensor = self.parameter.stored.read_value()
        return tf.cast(tensor, self.dtype)

    def assign(self, value: Any) -> None:
        self.value = tf.convert_to_tensor(value, self.dtype)

    def assign_add(self, value: Any) -> None:
        self.assign(tf.add(self, value))

    def assign_sub(self, value: Any) -> None:
        self.assign(tf.subtract(self, value))


def _value(
    share: Share, dtype: Any = None, name: Any = None, as_ref: Any = False
) -> Any:
    del name, as_ref
    if share.value is None:
        raise RuntimeError(f"'{share.name}' has a value during updates alone.")
    return share.value if dtype in (None, share.dtype) else NotImplemented


tf.register_tensor_conversion_function(Share, _value)


class Layout:
    """How the variables of an optimizer are divided into shares.

    It is the same on all ranks, except for each rank's own shares.
    """

    def __init__(
        self, variables: Sequence[Any], options: GradientOptions
    ) -> None:
        self.variables = list(variables)
        self.options = options
        of_states = ShardingRanks(options.process_set)
        self.rank, self.size = of_states.rank, of_states.size
        self.names = [name_of(v, i) for i, v in enumerate(self.variables)]
        self._index_of = {
            variable_key(v): i for i, v in enumerate(self.variables)
        }
        parameters = [parameter_share(v) for v in self.variables]
        self._ranks = [
            of_states if parameter is None else parameter.group.ranks
            for parameter in parameters
        ]
        cuts = cut_all(
            [tuple(v.shape) for v in self.variables],
            parameters,
            self.size,
        )
        dtypes = [tf.as_dtype(v.dtype) for v in self.variables]
        # This rank's share of each variable.
        self.shares = [
            Share(i, dtypes[i], *cut.range_of(ranks.rank), parameter)
            for i, (cut, ranks, parameter) in enumerate(
                zip(cuts, self._ranks, parameters, strict=True)
            )
        ]
        self._cuts = cuts
        self.buckets = [
            Bucket(indices, dtypes[indices[0]], cuts, self.rank, self.size)
            for indices in self._indices_of_buckets()
        ]

    def ranges_of(self, index: int) -> tuple[tuple[int, int], ...]:
        """Returns the begin and the end of each rank's elements."""
        return self._cuts[index].ranges(self._ranks[index].size)

    def ranks_of(self, index: int) -> ShardingRanks:
        """Returns the ranks that have the shares of a variable."""
        return self._ranks[index]

    def has_other_parameters(self) -> bool:
        """Tells whether the share of a sharded parameter has been replaced."""
        return any(
            share.parameter is not parameter_share(variable)
            for share, variable in zip(self.shares, self.variables, strict=True)
        )

    def index_of(self, variable: Any) -> int:
        """Returns the index of a variable in `variables`.

        Raises:
            KeyError: The variable is not in `variables`.
        """
        index: int = self._index_of[variable_key(variable)]
        return index

    def _indices_of_buckets(self) -> list[list[int]]:
        # The last variables come first, because their gradients do.
        order = [
            i
            for i in reversed(range(len(self.variables)))
            # Empty variables are not sent, and backpropagation reduces the
            # gradients of sharded parameters.
            if 0 not in tuple(self.variables[i].shape)
            and self.shares[i].parameter is None
        ]
        variables = [self.variables[i] for i in order]
        specs = [tf.TensorSpec(v.shape, v.dtype) for v in variables]
        buckets = buckets_of(specs, variables, self.options)
        return [[order[position] for position in b] for b in buckets]


def _part(tensor: tf.Tensor, begin: int, end: int) -> tf.Tensor:
    count = tensor.shape.num_elements()
    if traced_for_xla() and count >= LARGE:
        row = count // tensor.shape[0]
        # See Note [Shares in place] in tfring_ops/xla/lowering.cc.
        if begin % row or end % row:
            return native.ops().tfring_read_share(
                whole=tensor, begin=begin, count=end - begin
            )
    return tf.reshape(tensor, [-1])[begin:end]
