"""The copy of a rank's part in host memory, which a thread writes.

Note [One arena]: the first write to a page of memory costs more than the copy
itself. So the memory is kept from one checkpoint to the next, and its pages are
touched by the thread before the first one. TensorFlow reads it in place.

Note [Copied while the next step runs]: a tensor that was read from a variable
is the variable's own memory. As long as somebody holds the tensor, TensorFlow
gives the variable other memory when it changes. So the training goes on at
once, and the thread has until the end of the next step to copy; what it has not
copied by then TensorFlow copies. The values of a GPU come to the host at once,
since there may be no memory for two of them on the device.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

Array = np.ndarray[Any, Any]
# TensorFlow requires this alignment of tensors.
_ALIGNMENT_BYTES = 64


class HostCopy:
    """Memory that is used again for each copy."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def reserve(self, size_bytes: int) -> None:
        """Allocates at least this much memory, with its pages touched."""
        if size_bytes > self._memory.size:
            self._memory = np.zeros(0, np.uint8)  # Free the old memory first.
            self._memory = _aligned(size_bytes)
            self._memory.fill(0)

    def take(self, arrays: dict[str, Array]) -> dict[str, tf.Tensor]:
        """Copies arrays, and removes each from the dictionary afterwards.

        Returns:
            The copies, which are valid until the next call.
        """
        self.reserve(needed_bytes(array.nbytes for array in arrays.values()))
        begin = 0
        copies = {}
        for name in list(arrays):
            array = arrays.pop(name)
            place = self._memory[begin : begin + array.nbytes]
            copied = place.view(array.dtype).reshape(array.shape)
            np.copyto(copied, array)
            copies[name] = _in_place(copied)
            begin += needed_bytes([array.nbytes])
        return copies


def needed_bytes(sizes: Iterable[int]) -> int:
    """Returns how many bytes arrays of these sizes need."""
    return sum(
        -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES for size in sizes
    )


def _aligned(size_bytes: int) -> Array:
    memory = np.empty(size_bytes + _ALIGNMENT_BYTES, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT_BYTES
    return memory[begin : begin + size_bytes]


def host_array(value: tf.Tensor) -> Array:
    """Returns a tensor as an array, without a copy where possible.

    A tensor on a GPU is copied, and so is one whose dtype NumPy lacks, except
    bfloat16.
    """
    if value.dtype == tf.bfloat16:
        bits = np.asarray(tf.bitcast(value, tf.uint16))
        return bits.view(tf.bfloat16.as_numpy_dtype)
    if np.dtype(value.dtype.as_numpy_dtype).kind == "V":  # float8 and the like
        copied: Array = value.numpy()
        return copied
    return np.asarray(value)


def _in_place(array: Array) -> tf.Tensor:
    """Returns a tensor in an array's memory, where its dtype allows that."""
    if array.dtype == tf.bfloat16.as_numpy_dtype:
        return tf.bitcast(_in_place(array.view(np.uint16)), tf.bfloat16)
    if array.dtype.kind not in "fiu":
        return tf.constant(array)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
