"""The states of callbacks and of random generators, as JSON can hold them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

# The attributes that hold the state of Keras's callbacks, which have no methods
# for it.
_ATTRIBUTES: Mapping[type[keras.callbacks.Callback], tuple[str, ...]] = {
    keras.callbacks.EarlyStopping: (
        *("wait", "stopped_epoch", "best", "best_epoch"),
    ),
    keras.callbacks.History: ("epoch", "history"),
    keras.callbacks.ModelCheckpoint: (
        *("best", "_batches_seen_since_last_saving", "_last_batch_seen"),
    ),
    keras.callbacks.ReduceLROnPlateau: ("best", "cooldown_counter", "wait"),
    keras.callbacks.TensorBoard: ("_global_train_batch", "_global_test_batch"),
    keras.callbacks.SwapEMAWeights: ("_ema_weights_in_model",),
}

# The prefix of the keys of callbacks' arrays.
_WEIGHTS = "callbacks"


def to_save(
    callbacks: Sequence[Any],
) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    """Returns the states of callbacks and generators, and arrays by a key."""
    weights = weights_of(callbacks)
    states = {
        "callbacks": states_of(callbacks),
        "callback weights": {key: len(each) for key, each in weights.items()},
        "random": random_states(),
    }
    arrays = {
        array_key(key, number): np.asarray(value)
        for key, values in weights.items()
        for number, value in enumerate(values)
    }
    return states, arrays


def array_key(key: str, number: int) -> str:
    """Returns the key of a weight that the callback of a key keeps."""
    return f"{_WEIGHTS}/{key}/{number}"


def states_of(callbacks: Iterable[Any]) -> dict[str, Any]:
    """Returns the states of callbacks by a key, without large arrays."""
    return {
        key: plain(callback.get_state())
        if hasattr(callback, "get_state")
        else {
            name: plain(getattr(callback, name, None))
            for name in _attributes_of(callback)
        }
        for key, callback in _by_key(callbacks)
    }


def set_states(callbacks: Iterable[Any], states: Mapping[str, Any]) -> None:
    """Gives callbacks the states that `states_of` has returned."""
    for key, callback in _by_key(callbacks):
        if key not in states:
            continue
        if hasattr(callback, "set_state"):
            callback.set_state(states[key])
            continue
        for name, value in states[key].items():
            setattr(callback, name, value)


def weights_of(callbacks: Iterable[Any]) -> dict[str, list[Any]]:
    """Returns the best weights that callbacks keep, by a key."""
    return {
        key: callback.best_weights
        for key, callback in _by_key(callbacks)
        if getattr(callback, "best_weights", None) is not None
    }


def set_weights(
    callbacks: Iterable[Any], weights: Mapping[str, list[Any]]
) -> None:
    """Gives callbacks the best weights that `weights_of` has returned."""
    for key, callback in _by_key(callbacks):
        if key in weights:
            callback.best_weights = weights[key]


def _by_key(callbacks: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Yields the callbacks with a state, and a key of each.

    The key is a class and a number among the callbacks of that class, because
    other ranks may have other callbacks between them.
    """
    counts: Counter[str] = Counter()
    for callback in callbacks:
        if hasattr(callback, "get_state") or _attributes_of(callback):
            name = type(callback).__name__
            yield f"{name}-{counts[name]}", callback
            counts[name] += 1


def _attributes_of(callback: Any) -> tuple[str, ...]:
    return next(
        (
            names
            for kind, names in _ATTRIBUTES.items()
            if isinstance(callback, kind)
        ),
        (),
    )


def random_states() -> dict[str, Any]:
    """Returns the states of Python's and NumPy's generators."""
    numpy = np.random.get_state(legacy=True)
    return {"python": plain(random.getstate()), "numpy": plain(numpy)}


def set_random_states(states: Mapping[str, Any]) -> None:
    """Gives the generators the states that `random_states` has returned."""
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    np.random.set_state(tuple(states["numpy"]))


def plain(value: Any) -> Any:
    """Returns a value as JSON holds it; arrays and tensors become lists."""
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return np.asarray(value).tolist()
