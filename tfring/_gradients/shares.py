"""Shares: which rank has which elements of the variables.

Note [Shares]: each rank updates a part of each large variable, and some small
variables as a whole (ZeRO-2: Rajbhandari et al.,
https://arxiv.org/abs/1910.02054). A part begins at a multiple of 16 elements,
and the last part ends where its variable ends. A CPU kernel uses vector
instructions and, for the elements left over at the end, other instructions.
With such parts it uses for each element the same instructions as in the whole
variable, so the result has the same bits.

Note [Buckets of shares]: two collectives are enough: a reducescatter of
gradients and an allgather of weights. Both split any tensor by the rule above,
so a large variable is sent without packing. All smaller variables of a bucket
are packed into one tensor with a row for each rank. A row holds the rank's
parts of the variables that are split, then the variables that the rank has
whole, then padding up to the size of a rank's share. The buckets are the same
as for reducing whole gradients, in backward order. They are cut once and not in
each trace, because the optimizer's variables depend on them. A trace's order of
ready gradients determines only the order of sending.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfring._core import native
from tfring._gradients.gradient_options import GradientOptions
from tfring._gradients.local_variables import variable_key
from tfring._gradients.reducer import buckets_of, name_of
from tfring._memory.parameters import (
    ParameterShare,
    copied_range,
    parameter_share,
)
from tfring._memory.sharding_ranks import ShardingRanks
from tfring._ops.ordering import traced_for_xla

# The widest CPU vector has at most this many elements.
# SYNC: kShareMultiple in tfring_ops/engine/tensor_entry.h.
_ALIGNED_COUNT = 16
# A variable with fewer elements per rank belongs to one rank, so that the parts
# of larger variables differ little in size.
_LEAST_PART = 32
# A variable with at least this many elements is sent without packing.
_LARGE = 16384


@dataclasses.dataclass(frozen=True)
class _Cut:
    """How one variable is divided into parts.

    Attributes:
        shape: The variable's shape.
        part: The number of elements of each rank; the last ranks may have
            fewer. 0 if one rank has the whole variable.
        owner: The rank that has the whole variable.
    """

    shape: tuple[int, ...]
    part: int
    owner: int = 0

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    def range_of(self, rank: int) -> tuple[int, int]:
        """Returns the begin and the end of a rank's elements."""
        if self.part == 0:
            return 0, self.count if rank == self.owner else 0
        begin = min(self.count, rank * self.part)
        return begin, min(self.count, begin + self.part)


def ranges_of(shape: tuple[int, ...], size: int) -> tuple[tuple[int, int], ...]:
    """Returns the elements of each rank of a sharded parameter."""
    cut = _split(shape, size)
    return tuple(cut.range_of(rank) for rank in range(size))


def _split(shape: tuple[int, ...], size: int) -> _Cut:
    return _Cut(shape, _aligned(-(-math.prod(shape) // size)))


def _cut_all(
    shapes: Sequence[tuple[int, ...]],
    parameters: Sequence[ParameterShare | None],
    size: int,
) -> list[_Cut]:
    """Cuts variables; sharded parameters are split, however small they are."""
    counts = [math.prod(shape) for shape in shapes]
    loads = [0] * size
    cuts = {}
    # Large variables come first, so that the small ones balance the loads.
    for i in sorted(range(len(shapes)), key=lambda i: -counts[i]):
        if (parameter := parameters[i]) is not None:
            cuts[i] = _split(shapes[i], parameter.group.ranks.size)
            continue
        if size > 1 and counts[i] >= _LEAST_PART * size:
            cuts[i] = _split(shapes[i], size)
        else:
            owner = loads.index(min(loads))
            cuts[i] = _Cut(shapes[i], part=0, owner=owner)
        for rank in range(size):
            begin, end = cuts[i].range_of(rank)
            loads[rank] += end - begin
    return [cuts[i] for i in range(len(shapes))]


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


class Bucket:
    """Variables of one dtype that are sent together, one row per rank.

    Attributes:
        indices: The numbers of the variables, none of which is empty.
        dtype: The dtype of the variables.
    """

    def __init__(
        self,
        indices: Sequence[int],
        dtype: tf.DType,
        cuts: Sequence[_Cut],
        rank: int,
        size: int,
    ) -> None:
        self.indices = indices
        self.dtype = dtype
        self._cuts = cuts  # The cuts of all variables.
        self._rank, self._size = rank, size
        self._large = [
            i for i in indices if cuts[i].part > 0 and cuts[i].count >= _LARGE
        ]
        self._shared_out = [
            i for i in indices if cuts[i].part > 0 and cuts[i].count < _LARGE
        ]
        # For each rank, the variables that it has whole.
        self._whole = [
            [i for i in indices if cuts[i].part == 0 and cuts[i].owner == rank]
            for rank in range(size)
        ]
        # A packed row has `_shared_count` elements of variables that are split,
        # then `_whole_count` of a rank's whole variables and padding.
        self._shared_count = sum(cuts[i].part for i in self._shared_out)
        self._whole_count = _aligned(
            max(sum(cuts[i].count for i in of_rank) for of_rank in self._whole)
        )
        self._row_count = self._shared_count + self._whole_count

    def pack(self, tensors: Sequence[Any]) -> list[tf.Tensor]:
        """Packs tensors to send, one for each variable; None means zeros."""
        whole = {
            i: tf.zeros(self._cuts[i].shape, self.dtype)
            if tensors[i] is None
            else tf.cast(tf.convert_to_tensor(tensors[i]), self.dtype)
            for i in self.indices
        }
        result = [whole[i] for i in self._large]
        flat = {
            i: tf.reshape(whole[i], [-1])
            for i in self.indices
            if i not in self._large
        }
        packed = [self._rows(flat[i], self._cuts[i]) for i in self._shared_out]
        if self._whole_count > 0:
            of_ranks = [self._whole_row(flat, r) for r in range(self._size)]
            packed.append(tf.stack(of_ranks))
        if packed:
            result.append(tf.concat(packed, 1))
        return result

    def own(self, packed: Sequence[tf.Tensor]) -> dict[int, tf.Tensor]:
        """Returns this rank's parts of the variables from received tensors.

        They are copies; see Note [Memory of slices] in parameters.py.
        """
        result = {}
        for i, tensor in zip(self._large, packed, strict=False):
            result[i] = copied_range(
                tensor, *self._cuts[i].range_of(self._rank)
            )
        if len(packed) > len(self._large):
            begin = self._rank * self._row_count
            row = copied_range(packed[-1], begin, begin + self._row_count)
            for i, place in self._places(self._rank):
                begin, end = self._cuts[i].range_of(self._rank)
                result[i] = row[place : place + end - begin]
        # Other ranks have the remaining variables whole.
        for i in self.indices:
            result.setdefault(i, tf.zeros([0], self.dtype))
        return result

    def pack_own(self, parts: Mapping[int, tf.Tensor]) -> list[tf.Tensor]:
        """Packs this rank's parts of the variables to send them, flat."""
        result = [parts[i] for i in self._large]
        if self._row_count > 0:
            packed = [
                _padded(parts[i], self._cuts[i].part) for i in self._shared_out
            ]
            packed.append(self._whole_row(parts, self._rank))
            result.append(tf.concat(packed, 0))
        return result

    def wholes(self) -> list[tuple[tuple[int, ...], int]]:
        """Returns the shapes of the tensors that are sent.

        Each comes with the index of the first element that this rank has.
        """
        result = [
            (self._cuts[i].shape, self._cuts[i].range_of(self._rank)[0])
            for i in self._large
        ]
        if self._row_count > 0:
            shape = self._size, self._row_count
            result.append((shape, self._rank * self._row_count))
        return result

    def write_own(
        self, own: Sequence[tf.Tensor], variables: Sequence[Any]
    ) -> list[tf.Tensor]:
        """Returns whole tensors with this rank's packed parts, under XLA.

        XLA writes a part into the variable's own memory.
        """
        wholes = [tf.convert_to_tensor(variables[i]) for i in self._large]
        if self._row_count > 0:
            wholes.append(tf.zeros([self._size, self._row_count], self.dtype))
        return [
            native.ops().tfring_write_share(
                whole=whole, share=part, begin=begin
            )
            for whole, part, (_, begin) in zip(
                wholes, own, self.wholes(), strict=True
            )
        ]

    def whole(self, packed: Sequence[tf.Tensor]) -> dict[int, tf.Tensor]:
        """Returns the whole variables from received tensors."""
        result = dict(zip(self._large, packed, strict=False))
        for i, place in self._places(rank=None):
            cut = self._cuts[i]
            if cut.part > 0:
                columns = packed[-1][:, place : place + cut.part]
                flat = tf.reshape(columns, [-1])[: cut.count]
            else:
                flat = packed[-1][cut.owner, place : place + cut.count]
            result[i] = tf.reshape(flat, cut.shape)
        return result

    def _places(self, rank: int | None) -> Iterator[tuple[int, int]]:
        """Yields the packed variables of one rank or of all, with places."""
        place = 0
        for i in self._shared_out:
            yield i, place
            place += self._cuts[i].part
        for owner in range(self._size) if rank is None else [rank]:
            place = self._shared_count
            for i in self._whole[owner]:
                yield i, place
                place += self._cuts[i].count

    def _rows(self, flat: tf.Tensor, cut: _Cut) -> tf.Tensor:
        padded = _padded(flat, self._size * cut.part)
        return tf.reshape(padded, [self._size, cut.part])

    def _whole_row(self, flat: Mapping[int, tf.Tensor], rank: int) -> tf.Tensor:
        row = tf.concat(
            [flat[i] for i in self._whole[rank]] or [tf.zeros([0], self.dtype)],
            0,
        )
        return _padded(row, self._whole_count)


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
        cuts = _cut_all(
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
        cut = self._cuts[index]
        return tuple(
            cut.range_of(rank) for rank in range(self._ranks[index].size)
        )

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
    if traced_for_xla() and count >= _LARGE:
        row = count // tensor.shape[0]
        # See Note [Shares in place] in tfring_ops/xla/lowering.cc.
        if begin % row or end % row:
            return native.ops().tfring_read_share(
                whole=tensor, begin=begin, count=end - begin
            )
    return tf.reshape(tensor, [-1])[begin:end]


def _aligned(count: int) -> int:
    return -(-count // _ALIGNED_COUNT) * _ALIGNED_COUNT


def _padded(flat: tf.Tensor, count: int) -> tf.Tensor:
    missing = count - int(flat.shape[0])
    return tf.pad(flat, [[0, missing]]) if missing else flat
