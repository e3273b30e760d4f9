"""Shares: which rank has which elements of the variables.

Note [Shares]: each rank updates a part of each large variable, and some of the
small variables whole (ZeRO-1: Rajbhandari et al.,
https://arxiv.org/abs/1910.02054). A part begins at a multiple of 16 elements,
and the last one ends where its variable does. So each element is computed by
the instructions that would compute it in the whole variable, those for a full
vector or those for what is left over, and comes out with the same bits.

Note [Buckets of shares]: two collectives do: a reducescatter of gradients, and
an allgather of weights. Both take rows, one for each rank, of static shapes
that are the same on all ranks. A variable that is large enough to be on the
wire by itself is such rows as it lies in memory, if the ranks divide it evenly,
or else with padding behind it. All others of a bucket are packed: the rows of
those that are shared out stand side by side, and each rank's whole variables
behind its own. The buckets are those in which gradients would be reduced, in
backward order. They are cut once, and not in each trace, as the optimizer's
variables belong to them; what order a trace makes ready gradients in decides
only in which order they travel.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfring._core import runtime
from tfring._gradients.buckets import (
    bucket_limits,
    cut_by_groups,
    cut_into_buckets,
)
from tfring._gradients.local_variables import variable_key
from tfring._gradients.options import GradientOptions
from tfring._gradients.reducer import group_numbers, name_of

# A vector of the widest CPU has at most so many elements.
_ALIGNED_COUNT = 16
# A variable with fewer elements for each rank is one rank's: so the parts of
# the others differ by little.
_LEAST_PART = 32
# A variable with so many elements travels from where it lies.
_LARGE = 16384


@dataclasses.dataclass(frozen=True)
class _Cut:
    """How one variable is shared out.

    Attributes:
        count: The elements of the variable.
        part: Those of a rank, but for the last ranks, which may have fewer.
            0 if one rank has all.
        owner: That rank.
    """

    count: int
    part: int
    owner: int = 0

    def range_of(self, rank: int) -> tuple[int, int]:
        """Where the elements of a rank begin, and where they end."""
        if self.part == 0:
            return 0, self.count if rank == self.owner else 0
        begin = min(self.count, rank * self.part)
        return begin, min(self.count, begin + self.part)


def _cut_all(counts: Sequence[int], size: int) -> list[_Cut]:
    cuts: list[_Cut | None] = [None] * len(counts)
    loads = [0] * size
    for i, count in enumerate(counts):
        if size > 1 and count >= _LEAST_PART * size:
            part = -(-count // (size * _ALIGNED_COUNT)) * _ALIGNED_COUNT
            cut = _Cut(count, part)
            for rank in range(size):
                begin, end = cut.range_of(rank)
                loads[rank] += end - begin
            cuts[i] = cut
    result = []
    for count, known in zip(counts, cuts, strict=True):
        if known is None:
            owner = loads.index(min(loads))
            loads[owner] += count
            known = _Cut(count, 0, owner)
        result.append(known)
    return result


class Share:
    """This rank's part of one variable, maybe empty, in its place.

    To an optimizer it is a flat variable, which it updates. It has a value
    during an update alone, and takes no memory otherwise.

    Attributes:
        index: Which variable.
        begin: The first of its elements.
        end: The one behind the last.
        value: What an update is at.
    """

    constraint = None
    overwrite_with_gradient = False

    def __init__(
        self, index: int, dtype: tf.DType, begin: int, end: int
    ) -> None:
        self.index = index
        self.dtype = dtype
        self.name = self.path = self._unique_id = f"share_{index}"
        self.begin, self.end = begin, end
        self.value: tf.Tensor | None = None

    @property
    def shape(self) -> tf.TensorShape:
        return tf.TensorShape([self.end - self.begin])

    def of(self, tensor: Any) -> tf.Tensor:
        """This part of a tensor of the variable's shape, flat."""
        return _flat(tensor, self.dtype)[self.begin : self.end]

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
    """Variables of one dtype that travel together, as rows of the ranks.

    Attributes:
        indices: Their numbers; none is empty.
        dtype: Their dtype.
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
        self._cuts = cuts  # of all variables
        self._rank, self._size = rank, size
        self._large = [
            i for i in indices if cuts[i].part > 0 and cuts[i].count >= _LARGE
        ]
        self._shared_out = [
            i for i in indices if cuts[i].part > 0 and cuts[i].count < _LARGE
        ]
        # By the rank that has them whole.
        self._whole = [
            [i for i in indices if cuts[i].part == 0 and cuts[i].owner == rank]
            for rank in range(size)
        ]
        # The elements of a rank's whole variables, with padding.
        self._whole_count = max(
            sum(cuts[i].count for i in of_rank) for of_rank in self._whole
        )

    def rows(self, tensors: Sequence[Any]) -> list[tf.Tensor]:
        """What travels of tensors, one for each variable; None is zeros."""
        result = [self._rows_of(i, tensors[i]) for i in self._large]
        packed = [self._rows_of(i, tensors[i]) for i in self._shared_out]
        if self._whole_count > 0:
            packed.append(self._rows_of_whole(tensors))
        if packed:
            result.append(tf.concat(packed, 1) if packed[1:] else packed[0])
        return result

    def own(self, rows: Sequence[tf.Tensor]) -> dict[int, tf.Tensor]:
        """This rank's parts of variables in its row of what has travelled."""
        result = {
            i: self._trimmed(i, part[self._rank])
            for i, part in zip(self._large, rows, strict=False)
        }
        if self._has_packed():
            row = rows[-1][self._rank]
            for i, place in self._places():
                result[i] = self._trimmed(i, row[place:])
            place = self._whole_place()
            for i in self._whole[self._rank]:
                result[i] = row[place : place + self._cuts[i].count]
                place += self._cuts[i].count
        for i in self.indices:  # Those that other ranks have whole.
            result.setdefault(i, tf.zeros([0], self.dtype))
        return result

    def own_rows(
        self, parts: Mapping[int, tf.Tensor]
    ) -> dict[int | None, tf.Tensor]:
        """This rank's row of what travels of its parts of some variables.

        Returns:
            The row of each large variable, by its number; and by None that of
            all others, unless there is none.
        """
        result: dict[int | None, tf.Tensor] = {
            i: self._row_of(i, parts[i]) for i in self._large if i in parts
        }
        if any(i in parts and i not in result for i in self.indices):
            row = [self._row_of(i, parts.get(i)) for i in self._shared_out]
            whole = [
                parts.get(i, tf.zeros([self._cuts[i].count], self.dtype))
                for i in self._whole[self._rank]
            ]
            missing = self._whole_count - sum(w.shape[0] for w in whole)
            row.extend([*whole, tf.zeros([missing], self.dtype)])
            result[None] = tf.concat(row, 0)
        return result

    def whole(self, rows: Mapping[int | None, Any]) -> dict[int, Any]:
        """Flat variables, of all ranks' rows by the numbers of `own_rows`."""
        result = {}
        for number, of_ranks in rows.items():
            if number is not None:
                flat = tf.reshape(of_ranks, [-1])
                result[number] = flat[: self._cuts[number].count]
                continue
            for i, place in self._places():
                cut = self._cuts[i]
                columns = of_ranks[:, place : place + cut.part]
                result[i] = tf.reshape(columns, [-1])[: cut.count]
            for rank, indices in enumerate(self._whole):
                place = self._whole_place()
                for i in indices:
                    end = place + self._cuts[i].count
                    result[i] = of_ranks[rank, place:end]
                    place = end
        return result

    def is_exact(self, index: int) -> bool:
        """Tells if a variable's rows are the variable as it lies in memory."""
        cut = self._cuts[index]
        return cut.part * self._size == cut.count

    def _has_packed(self) -> bool:
        return bool(self._shared_out) or self._whole_count > 0

    def _places(self) -> Iterator[tuple[int, int]]:
        """Packed variables that are shared out, and their places in rows."""
        place = 0
        for i in self._shared_out:
            yield i, place
            place += self._cuts[i].part

    def _whole_place(self) -> int:
        return sum(self._cuts[i].part for i in self._shared_out)

    def _rows_of(self, i: int, tensor: Any) -> tf.Tensor:
        cut = self._cuts[i]
        if tensor is None:
            return tf.zeros([self._size, cut.part], self.dtype)
        flat = _padded(_flat(tensor, self.dtype), self._size * cut.part)
        return tf.reshape(flat, [self._size, cut.part])

    def _rows_of_whole(self, tensors: Sequence[Any]) -> tf.Tensor:
        parts = []
        for indices in self._whole:
            count = 0
            for i in indices:
                parts.append(
                    tf.zeros([self._cuts[i].count], self.dtype)
                    if tensors[i] is None
                    else _flat(tensors[i], self.dtype)
                )
                count += self._cuts[i].count
            parts.append(tf.zeros([self._whole_count - count], self.dtype))
        return tf.reshape(tf.concat(parts, 0), [self._size, self._whole_count])

    def _row_of(self, i: int, part: tf.Tensor | None) -> tf.Tensor:
        if part is None:
            return tf.zeros([self._cuts[i].part], self.dtype)
        return _padded(part, self._cuts[i].part)

    def _trimmed(self, i: int, row: tf.Tensor) -> tf.Tensor:
        begin, end = self._cuts[i].range_of(self._rank)
        return row[: end - begin]


class Layout:
    """How the variables of an optimizer are shared out.

    The same on all ranks, but for which of the parts is whose.

    Args:
        variables: All that the optimizer trains, Keras's or TensorFlow's.
        options: How their gradients are reduced.
    """

    def __init__(
        self, variables: Sequence[Any], options: GradientOptions
    ) -> None:
        self.variables = list(variables)
        self.options = options
        self.rank, self.size = place_in(options)
        self.names = [name_of(v, i) for i, v in enumerate(self.variables)]
        self._index_of = {
            variable_key(v): i for i, v in enumerate(self.variables)
        }
        cuts = _cut_all(
            [math.prod(tuple(v.shape)) for v in self.variables], self.size
        )
        dtypes = [tf.as_dtype(v.dtype) for v in self.variables]
        # This rank's, one for each variable.
        self.shares = [
            Share(i, dtypes[i], *cut.range_of(self.rank))
            for i, cut in enumerate(cuts)
        ]
        self.buckets = [
            Bucket(indices, dtypes[indices[0]], cuts, self.rank, self.size)
            for indices in self._indices_of_buckets()
        ]

    def index_of(self, variable: Any) -> int:
        """The number of one of `variables`.

        Raises:
            KeyError: It is none of them.
        """
        index: int = self._index_of[variable_key(variable)]
        return index

    def _indices_of_buckets(self) -> list[list[int]]:
        # Backward: the last variables have their gradients first.
        order = [
            i
            for i in reversed(range(len(self.variables)))
            if 0 not in tuple(self.variables[i].shape)  # They do not travel.
        ]
        specs = [
            tf.TensorSpec(self.variables[i].shape, self.variables[i].dtype)
            for i in order
        ]
        if self.options.groups is None:
            first_limit_bytes, limit_bytes = bucket_limits(
                specs, runtime.fusion_threshold_bytes()
            )
            buckets = cut_into_buckets(
                specs, limit_bytes, first_limit_bytes=first_limit_bytes
            )
        else:
            numbers = group_numbers(
                [self.variables[i] for i in order], self.options.groups
            )
            buckets = cut_by_groups(specs, numbers)
        return [[order[position] for position in b] for b in buckets]


def place_in(options: GradientOptions) -> tuple[int, int]:
    """This rank among those that share, and how many these are."""
    process_set = options.process_set
    if not process_set.included():
        return 0, 1
    return process_set.rank(), process_set.size()


def _flat(tensor: Any, dtype: tf.DType) -> tf.Tensor:
    return tf.cast(tf.reshape(tf.convert_to_tensor(tensor), [-1]), dtype)


def _padded(flat: tf.Tensor, count: int) -> tf.Tensor:
    missing = count - int(flat.shape[0])
    return tf.pad(flat, [[0, missing]]) if missing else flat
