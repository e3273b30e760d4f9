"""load_model, for Keras 2."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tf_keras

from tfring._ops.compression import AnyCompressor, Compression
from tfring._optim.optimizer import DistributedOptimizer


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: AnyCompressor = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Loads a model, and wraps its optimizer in `DistributedOptimizer`.

    Args:
        filepath: A `.keras` or `.h5` file, or a folder of TensorFlow's. Keras 2
            loads an optimizer's state from `.h5`, and from `.keras` unless it
            is a legacy one.
        custom_optimizers: Optimizer classes of your own.
        custom_objects: Other classes and functions, by name.
        compression: See `tfring.DistributedOptimizer`.
        legacy_opts: Ignored, because the file says which optimizer it has.

    Returns:
        The model. If it was saved without an optimizer, it has none.

    Raises:
        ValueError: See `tf_keras.models.load_model`.
    """
    del legacy_opts
    known = {each.__name__: each for each in custom_optimizers or ()}
    model = tf_keras.models.load_model(
        filepath, custom_objects={**known, **(custom_objects or {})}
    )
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        DistributedOptimizer(optimizer, compression=compression)
    return model
