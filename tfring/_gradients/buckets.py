"""Cuts a list of tensors into buckets, one request per bucket.

Note [Bucket sizes]: a bucket is sent when its last tensor is ready, so nothing
is left to compute when the last bucket is sent. With all gradients in one
bucket, communication would not overlap with backpropagation at all. So a bucket
is at most an eighth of the whole: only an eighth does not overlap, and the
latency of eight messages is small compared with the time to send many bytes.
The first bucket is small, so that communication starts early.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import tensorflow as tf

_FIRST_BYTES = 1 << 20
_PARTS = 8
# For smaller messages, latency counts for more than bandwidth.
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
    """Returns bucket sizes that let communication overlap with computation.

    See Note [Bucket sizes].

    Args:
        tensors: All tensors to send.
        most_bytes: The size of a bucket that is never exceeded.
        wire_dtype: As for `cut_into_buckets`.

    Returns:
        The bytes of the first bucket, and of every later bucket.
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
        tensors: The tensors, in the order they become ready.
        limit_bytes: The largest size of a bucket with several tensors.
        first_limit_bytes: The largest size of the first bucket; by default
            `limit_bytes`.
        wire_dtype: Maps a tensor's dtype to the dtype it is sent in, which
            determines its bytes; default: the dtype itself.

    Returns:
        For each bucket the indices of its tensors, ascending. The buckets are
        sorted by the time their last tensors become ready.
    """
    if first_limit_bytes is None:
        first_limit_bytes = limit_bytes
    buckets: list[_Bucket] = []
    # For each dtype, the bucket that further tensors are added to.
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
    """Groups tensors as the caller wishes, regardless of their size.

    Args:
        tensors: The tensors, in the order they become ready.
        groups: The number of each tensor's group. Tensors of one group and one
            dtype share a bucket.

    Returns:
        As `cut_into_buckets` does.
    """
    buckets: dict[tuple[int, tf.DType], list[int]] = {}
    for index, (tensor, group) in enumerate(zip(tensors, groups, strict=True)):
        buckets.setdefault((group, tensor.dtype), []).append(index)
    return sorted(buckets.values(), key=lambda indices: indices[-1])


def _static_bytes(tensor: tf.Tensor, dtype: tf.DType) -> int | None:
    count = tensor.shape.num_elements()
    return None if count is None else count * dtype.size
