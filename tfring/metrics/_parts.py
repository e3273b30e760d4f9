"""Ranks without data, and errors, in `evaluate` and `predict`."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf


def has_samples(x: Any) -> bool:
    """Tells whether a rank has any data, without which Keras raises.

    If a dataset's cardinality is unknown, its first element is read.
    """
    if x is None:
        return False
    if isinstance(x, tf.data.Dataset):
        cardinality = int(x.cardinality())
        if cardinality == tf.data.UNKNOWN_CARDINALITY:
            return any(True for _ in x.take(1))
        return cardinality != 0
    if isinstance(x, keras.utils.PyDataset):
        return bool(x.num_batches != 0)
    # Ask for shapes, because sparse matrices have no length.
    leaves = [leaf for leaf in keras.tree.flatten(x) if hasattr(leaf, "shape")]
    return all(tuple(leaf.shape[:1]) != (0,) for leaf in leaves)


def as_text(error: Exception | None) -> str | None:
    """Returns an error for messages on other ranks."""
    return None if error is None else f"{type(error).__name__}: {error}"


def raise_errors(
    function: str, own: Exception | None, everyones: dict[int, str | None]
) -> None:
    """Raises an error on every rank if there was one on any.

    Args:
        function: The function called, for messages.
        own: The error of this rank, or None.
        everyones: The errors by rank, as text, the same on all ranks.

    Raises:
        Exception: This rank's error, or a `RuntimeError` with another rank's.
    """
    if own is not None:
        raise own
    for rank, error in everyones.items():
        if error is not None:
            raise RuntimeError(f"{function}: rank {rank} failed: {error}")
