"""load_model: loads a Keras model, and distributes its optimizer again.

It is in this package because a file may contain a layer of it, which must then
be registered with Keras.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import keras

from tfring._keras.compiling import distributing
from tfring._ops.compression import AnyCompression, Compression
from tfring._optim.optimizer import DistributedOptimizer
from tfring._state.optimizers import distributed_optimizers


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: AnyCompression = Compression.none,
    legacy_opts: bool = False,
    **options: Any,
) -> Any:
    """Loads a Keras model, and wraps its optimizer in `DistributedOptimizer`.

    `keras.models.load_model` also loads a model that was trained with tfring,
    but with its plain optimizer: each rank would train alone, and get a
    `tfring.NotDistributedWarning`. This function wraps the optimizer before it
    has states, so that no rank holds more than its part of them, and does the
    same for compiled models inside of the model. The optimizer's state, such as
    momenta and iterations, is loaded from the file, and with
    `sync=tfring.DiLoCo(...)` the outer optimizer's state, too. A file of a
    training without rounds lacks that state, and the outer optimizer starts
    without one. This function makes no collective calls: every rank that trains
    calls it, or gets the weights from `BroadcastGlobalVariablesCallback`.

    Args:
        filepath: A `.keras` file. From `.h5`, Keras 3 does not load the
            optimizer's state.
        custom_optimizers: Optimizer classes of your own that are not registered
            with Keras.
        custom_objects: Other classes and functions, by name.
        compression: As for `DistributedOptimizer`.
        legacy_opts: Must be False, because Keras 3 lacks the older optimizers.
        **options: All other arguments of `DistributedOptimizer`, which a file
            does not know. With `backward_passes_per_step`, for example, the
            file has the number of passes, but takes their mean unless it is
            given here again.

    Returns:
        The model. If it was saved without an optimizer, it has none.

    Raises:
        NotInitializedError: `tfring.init()` has not been called.
        TypeError: See `DistributedOptimizer`; or one of `options` is not an
            argument of it, or one of `custom_optimizers` not an optimizer
            class.
        ValueError: See `keras.models.load_model` and `DistributedOptimizer`; or
            `legacy_opts` is true.

    Example:

    ```python
    import keras
    import tfring

    tfring.init()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(tfring.DistributedOptimizer(keras.optimizers.Adam()), "mse")
    model.save("model.keras")
    again = tfring.load_model("model.keras")
    ```
    """
    if legacy_opts:
        raise ValueError(
            "load_model: legacy_opts must be False: Keras 3 does not have the "
            "older optimizers (keras.optimizers.legacy). Leave it out."
        )
    _check_options(options)
    known = dict(custom_objects or {})
    for custom in custom_optimizers or ():
        if not (
            isinstance(custom, type)
            and issubclass(custom, keras.optimizers.Optimizer)
        ):
            raise TypeError(
                "load_model: custom_optimizers must be subclasses of "
                f"keras.optimizers.Optimizer, got {custom!r}."
            )
        known[custom.__name__] = custom

    def distribute(optimizer: Any) -> Any:
        return DistributedOptimizer(
            optimizer, compression=compression, **options
        )

    with distributing(distribute):
        model = keras.models.load_model(filepath, custom_objects=known)
    compiled_with = getattr(model, "optimizer", None)
    if compiled_with is not None and not distributed_optimizers(compiled_with):
        distribute(compiled_with)  # The model has compiled itself otherwise.
    return model


def _check_options(options: Mapping[str, Any]) -> None:
    """Refuses unknown options, even if the file has no optimizer."""
    known = list(inspect.signature(DistributedOptimizer).parameters)
    known.remove("optimizer")
    unknown = [name for name in options if name not in known]
    if unknown:
        raise TypeError(
            f"load_model: there is no argument {unknown[0]!r}. Besides its own "
            "it takes those of DistributedOptimizer: "
            f"{', '.join(known)}."
        )
