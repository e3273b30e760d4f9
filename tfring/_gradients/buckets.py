"""Cuts a list of tensors into buckets, each of which travels as one request.

Note [Bucket sizes]: a bucket travels when the last of its tensors is ready, so
the last bucket of all travels when nothing is left to compute. Were all
gradients one bucket, none of it would overlap with backpropagation. So a bucket
is at most an eighth of the whole; what is lost is an eighth, while the latency
of eight messages is little where there is much to send. The first one is small,
so that the wire has work soon.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import tensorflow as tf

_FIRST_BYTES = 1 << 20
_PARTS = 8
# Below it, the latency of a message counts for more than its bytes.
_PART_BYTES = 4 << 20


@dataclasses.dataclass
class _Bucket:
    indices: list[int]
    nbytes: int | None  # None if the trace does not know a shape


def bucket_limits(
    tensors: Sequence[tf.Tensor],
    most_bytes: int,
    *,
    wire_dtype: Callable[[tf.DType], tf.DType] = lambda dtype: dtype,
) -> tuple[int, int]:
    """Returns the sizes of buckets that overlap with the making of the tensors.

    See Note [Bucket sizes].

    Args:
        tensors: All that shall travel.
        most_bytes: The size of a bucket that is never exceeded.
        wire_dtype: See `cut_into_buckets`.

    Returns:
        The bytes of the first bucket, and of each other one.
    """
    total = sum(_static_bytes(t, wire_dtype(t.dtype)) or 0 for t in tensors)
    part = max(_PART_BYTES, total // _PARTS)
    return min(most_bytes, _FIRST_BYTES), min(most_bytes, part)


def cut_into_buckets(
    tensors: Sequence[tf.Tensor],
    limit_bytes: int,
    *,
    first_limit_bytes: int | None = None,
    wire_dtype: Callable[[tf.DType], tf.DType] = lambda dtype: dtype,
) -> list[list[int]]:
    """Groups tensors of one dtype, in order, up to a size.

    All ranks cut alike if their tensors have the same dtypes and static shapes.
    A tensor above the limit, or of a shape that the trace does not know, gets a
    bucket of its own.

    Args:
        tensors: The tensors in the order in which they become ready.
        limit_bytes: The size that a bucket of several tensors may have.
        first_limit_bytes: The same for the first bucket; default `limit_bytes`.
        wire_dtype: In which dtype tensors of a dtype travel, whose bytes count;
            default their own.

    Returns:
        For each bucket the indices of its tensors, ascending. The buckets are
        in the order in which their last tensors become ready.
    """
    if first_limit_bytes is None:
        first_limit_bytes = limit_bytes
    buckets: list[_Bucket] = []
    # The bucket of each dtype that may still grow.
    growing: dict[tf.DType, _Bucket] = {}
    for index, tensor in enumerate(tensors):
        nbytes = _static_bytes(tensor, wire_dtype(tensor.dtype))
        bucket = growing.get(tensor.dtype)
        limit = first_limit_bytes if bucket in buckets[:1] else limit_bytes
        if (
            bucket is None
            or bucket.nbytes is None
            or nbytes is None
            or bucket.nbytes + nbytes > limit
        ):
            growing[tensor.dtype] = _Bucket([index], nbytes)
            buckets.append(growing[tensor.dtype])
        else:
            bucket.indices.append(index)
            bucket.nbytes += nbytes
    return sorted((b.indices for b in buckets), key=lambda indices: indices[-1])


def cut_by_groups(
    tensors: Sequence[tf.Tensor], groups: Sequence[int]
) -> list[list[int]]:
    """Groups tensors as the caller wishes, whatever their size.

    Args:
        tensors: The tensors in the order in which they become ready.
        groups: The number of each tensor's group. Tensors of one group and of
            one dtype travel together.

    Returns:
        See `cut_into_buckets`.
    """
    buckets: dict[tuple[int, tf.DType], list[int]] = {}
    for index, (tensor, group) in enumerate(zip(tensors, groups, strict=True)):
        buckets.setdefault((group, tensor.dtype), []).append(index)
    return sorted(buckets.values(), key=lambda indices: indices[-1])


def _static_bytes(tensor: tf.Tensor, dtype: tf.DType) -> int | None:
    count = tensor.shape.num_elements()
    return None if count is None else count * dtype.size
