"""Buckets of shares: variables that ranks reduce and gather together.

Note [Buckets of shares]: two collectives are enough: a reducescatter of
gradients and an allgather of weights. Both split any tensor by the rule of Note
[Shares] in cuts.py, so a large variable is sent without packing. All smaller
variables of a bucket are packed into one tensor with a row for each rank. A row
holds the rank's parts of the variables that are split, then the variables that
the rank has whole, then padding up to the size of a rank's share. The buckets
are the same as for reducing whole gradients, in backward order. They are cut
once and not in each trace, because the optimizer's variables depend on them. A
trace's order of ready gradients determines only the order of sending.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfring._core import native
from tfring._gradients.cuts import LARGE, Cut, aligned
from tfring._memory.parameters import copied_range


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
        cuts: Sequence[Cut],
        rank: int,
        size: int,
    ) -> None:
        self.indices = indices
        self.dtype = dtype
        self._cuts = cuts  # The cuts of all variables.
        self._rank, self._size = rank, size
        self._large = [
            i for i in indices if cuts[i].part > 0 and cuts[i].count >= LARGE
        ]
        self._shared_out = [
            i for i in indices if cuts[i].part > 0 and cuts[i].count < LARGE
        ]
        # For each rank, the variables that it has whole.
        self._whole = [
            [i for i in indices if cuts[i].part == 0 and cuts[i].owner == rank]
            for rank in range(size)
        ]
        # A packed row has `_shared_count` elements of variables that are split,
        # then `_whole_count` of a rank's whole variables and padding.
        self._shared_count = sum(cuts[i].part for i in self._shared_out)
        self._whole_count = aligned(
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

    def _rows(self, flat: tf.Tensor, cut: Cut) -> tf.Tensor:
        padded = _padded(flat, self._size * cut.part)
        return tf.reshape(padded, [self._size, cut.part])

    def _whole_row(self, flat: Mapping[int, tf.Tensor], rank: int) -> tf.Tensor:
        row = tf.concat(
            [flat[i] for i in self._whole[rank]] or [tf.zeros([0], self.dtype)],
            0,
        )
        return _padded(row, self._whole_count)


def _padded(flat: tf.Tensor, count: int) -> tf.Tensor:
    missing = count - int(flat.shape[0])
    return tf.pad(flat, [[0, missing]]) if missing else flat
