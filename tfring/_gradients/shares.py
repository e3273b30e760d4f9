"""Shares: which rank has which elements of the variables.

Note [Shares]: the variables of a bucket lie flat one behind the other, and are
padded so that each rank has an equal share of them, whatever their shapes. So
shapes are static and the same on all ranks, and two collectives do: a
reducescatter of gradients, and an allgather of weights (ZeRO-1: Rajbhandari et
al., https://arxiv.org/abs/1910.02054). The buckets are those in which gradients
would be reduced, in backward order. They are cut once, and not in each trace,
as the optimizer's variables belong to them; what order a trace makes ready
gradients in decides only in which order they travel.

Note [Slices without copies]: TensorFlow slices a tensor without a copy where
the slice is aligned. So shares and large variables begin at multiples of some
elements, and the small ones, for which that would be much padding, come last.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
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

_ALIGNED_BYTES = 64  # EIGEN_MAX_ALIGN_BYTES
_ALIGNED_COUNT = 16
# From this on a variable is aligned: 1.5% of padding at most.
_LARGE = 1024


@dataclasses.dataclass(frozen=True)
class Piece:
    """The part of one variable in a share."""

    index: int  # of the variable
    begin: int  # of the flat variable's elements
    end: int
    place: int  # of the first of them in the share


class Share:
    """A rank's part of a bucket's weights, in the place of a variable.

    To an optimizer it is a flat variable, which it updates. It has a value
    during an update alone, and takes no memory otherwise.

    Attributes:
        number: That of the bucket.
        indices: The bucket's variables.
        offsets: Where they begin in the bucket.
        count: The elements of a share; the bucket has `size` times as many.
        pieces: This rank's.
        value: What an update is at.
    """

    constraint = None
    overwrite_with_gradient = False

    def __init__(
        self,
        number: int,
        dtype: tf.DType,
        indices: Sequence[int],
        counts: Sequence[int],
        rank: int,
        size: int,
    ) -> None:
        self.number = number
        self.dtype = dtype
        self.name = self.path = self._unique_id = f"share_{number}"
        aligned: int = max(_ALIGNED_COUNT, _ALIGNED_BYTES // dtype.size)
        # Stable: otherwise in backward order.
        self.indices = sorted(indices, key=lambda i: counts[i] < _LARGE)
        self.offsets: list[int] = []
        end = 0
        for i in self.indices:
            if counts[i] >= _LARGE:
                end = -(-end // aligned) * aligned
            self.offsets.append(end)
            end += counts[i]
        self.count = -(-end // (size * aligned)) * aligned
        self.rank, self.size = rank, size
        self.pieces = list(self._cut(counts))
        self.value: tf.Tensor | None = None

    @property
    def shape(self) -> tf.TensorShape:
        return tf.TensorShape([self.count])

    @property
    def first(self) -> int:
        """Where this rank's share begins in the bucket."""
        return self.rank * self.count

    def assign(self, value: Any) -> None:
        self.value = tf.convert_to_tensor(value, self.dtype)

    def assign_add(self, value: Any) -> None:
        self.assign(tf.add(self, value))

    def assign_sub(self, value: Any) -> None:
        self.assign(tf.subtract(self, value))

    def _cut(self, counts: Sequence[int]) -> Iterator[Piece]:
        for i, offset in zip(self.indices, self.offsets, strict=True):
            begin = max(offset, self.first)
            end = min(offset + counts[i], self.first + self.count)
            if begin < end:
                place = begin - self.first
                yield Piece(i, begin - offset, end - offset, place)


def _value(
    share: Share, dtype: Any = None, name: Any = None, as_ref: Any = False
) -> Any:
    del name, as_ref
    if share.value is None:
        raise RuntimeError(f"'{share.name}' has a value during updates alone.")
    return share.value if dtype in (None, share.dtype) else NotImplemented


tf.register_tensor_conversion_function(Share, _value)


class Layout:
    """How the variables of an optimizer are shared out.

    The same on all ranks, but for which of the shares is whose.

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
        self.counts = [
            tf.TensorShape(v.shape).num_elements() for v in self.variables
        ]
        self._index_of = {
            variable_key(v): i for i, v in enumerate(self.variables)
        }
        self.shares = [
            Share(
                number,
                tf.as_dtype(self.variables[indices[0]].dtype),
                indices,
                self.counts,
                self.rank,
                self.size,
            )
            for number, indices in enumerate(self._buckets())
        ]

    def index_of(self, variable: Any) -> int:
        """The number of one of `variables`.

        Raises:
            KeyError: It is none of them.
        """
        index: int = self._index_of[variable_key(variable)]
        return index

    def packed(self, share: Share, tensors: Sequence[Any]) -> tf.Tensor:
        """A bucket of tensors, one for each of `variables`, flat.

        None counts as zeros.
        """
        parts = (
            (offset, _flat(tensors[i], share.dtype))
            for i, offset in zip(share.indices, share.offsets, strict=True)
            if tensors[i] is not None
        )
        return _laid_out(parts, share.count * self.size, share.dtype)

    def own(
        self,
        share: Share,
        tensors: Sequence[Any],
        change: Callable[[int, tf.Tensor], tf.Tensor] = lambda _, part: part,
    ) -> tf.Tensor:
        """This rank's share of tensors, as of what `packed` returns.

        Args:
            share: Which.
            tensors: One for each of `variables`; None is zeros.
            change: Called with the number of a variable and the flat part that
                the rank has of it, for what is put in its place.
        """
        parts = (
            (
                piece.place,
                change(
                    piece.index,
                    _flat(tensors[piece.index], share.dtype)[
                        piece.begin : piece.end
                    ],
                ),
            )
            for piece in share.pieces
            if tensors[piece.index] is not None
        )
        return _laid_out(parts, share.count, share.dtype)

    def changed(
        self,
        share: Share,
        flat: tf.Tensor,
        change: Callable[[int, tf.Tensor], tf.Tensor],
    ) -> tf.Tensor:
        """A share, each piece of which has been changed; see `own`."""
        parts = (
            (
                piece.place,
                change(
                    piece.index,
                    flat[piece.place : piece.place + piece.end - piece.begin],
                ),
            )
            for piece in share.pieces
        )
        return _laid_out(parts, share.count, share.dtype)

    def unpacked(self, share: Share, flat: Any) -> Iterator[tuple[int, Any]]:
        """The numbers of a bucket's variables, and what it has for each.

        Args:
            share: Which.
            flat: The bucket, as a tensor or an array.
        """
        for i, offset in zip(share.indices, share.offsets, strict=True):
            part = flat[offset : offset + self.counts[i]]
            shape = tuple(self.variables[i].shape)
            yield (
                i,
                tf.reshape(part, shape)
                if isinstance(part, tf.Tensor)
                else part.reshape(shape),
            )

    def _buckets(self) -> list[list[int]]:
        # Backward: the last variables have their gradients first.
        order = list(reversed(range(len(self.variables))))
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


def _laid_out(
    parts: Iterable[tuple[int, tf.Tensor]], count: int, dtype: tf.DType
) -> tf.Tensor:
    """Flat tensors at their places, in ascending order, zeros between them."""
    tensors: list[tf.Tensor] = []
    end = 0
    for place, tensor in parts:
        if place > end:
            tensors.append(tf.zeros([place - end], dtype))
        tensors.append(tensor)
        end = place + int(tensor.shape[0])
    if end < count:
        tensors.append(tf.zeros([count - end], dtype))
    return tensors[0] if len(tensors) == 1 else tf.concat(tensors, 0)
