"""Epochs that a `fit` begins in the middle.

Note [The place in the data]: the steps of an epoch that were done before are
enumerated, but not trained. So batches keep their numbers, and the iterator of
the data is where it was. Arrays and a `PyDataset` skip the data without reading
it; a `tf.data.Dataset` reads it again. The iterators of its earlier epochs are
created again, too, because a reshuffling shuffle draws its seeds when an
iterator is created.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.trainers.data_adapters import array_data_adapter

from tfring._keras import sources
from tfring._keras.untuned import Untuned

# Among the parameters of callbacks: how many steps of its first epoch were done
# before a `fit` of `tfring.elastic` began.
STEPS_BEFORE = "tfring_steps_before"


@dataclasses.dataclass(frozen=True)
class Start:
    """Where the next epoch of a `fit` begins.

    Attributes:
        batch: The number of its steps that were done before.
        epochs: The number of epochs of the same dataset that were done before.
    """

    batch: int
    epochs: int


class LastInFit(keras.callbacks.Callback):
    """A callback that `fit` puts last, and that gets the data of `fit`.

    Attributes:
        seed: The seed of the orders of arrays and of a `PyDataset`.
        data: The arrays or the `PyDataset` of `fit`; None for other data.
        dataset: The `tf.data.Dataset` of `fit`; None for other data.
    """

    seed: int = 0
    data: EpochData | None = None
    dataset: tf.data.Dataset | None = None

    def build_metrics(self) -> None:
        """Creates the variables of the model's metrics, as a step would.

        Without them, values from the middle of an epoch could not be restored.
        """
        if self.dataset is not None:
            batch = self.dataset.element_spec
        elif self.data is not None and len(self.data) > 0:
            batch = keras.tree.map_structure(np.asarray, self.data[0])
        else:
            return
        symbolic = keras.tree.map_structure(
            lambda each: keras.KerasTensor(
                tuple(each.shape), tf.as_dtype(each.dtype).name
            ),
            batch,
        )
        self.model._symbolic_build(data_batch=symbolic)

    def before_callbacks(self, callbacks: list[Any]) -> None:
        """Called before the first callback of a `fit`, on every rank."""

    def after_fit(self) -> None:
        """Called when `fit` has ended, even by an error."""


class EpochData(keras.utils.PyDataset):
    """This rank's batches, whose order is a function of a seed and the epoch.

    Args:
        source: The data.
    """

    def __init__(self, source: sources.Source) -> None:
        super().__init__(**source.loading)
        self._source = source
        self._first = 0
        self._rest = source.rest(0, 1, 0, 0)

    def __len__(self) -> int:
        return self._rest.steps

    def __getitem__(self, index: int) -> Any:
        # Keras does not use the batches before the first one.
        return self._rest.batch(max(index, min(self._first, len(self) - 1)))

    def begin(self, epoch: int, first: int) -> None:
        """Moves to a batch of an epoch."""
        self._first = first
        self._rest = self._source.rest(0, 1, epoch, 0)


_start: Start | None = None


def start_at(start: Start | None) -> None:
    """Makes the next epoch that Keras enumerates begin at `start`."""
    global _start
    _start = start


def enumerate_epoch(
    keras_enumerate: Callable[..., Iterator[Any]], epochs: Any
) -> Iterator[Any]:
    """Enumerates an epoch's steps; see Note [The place in the data]."""
    global _start
    start, _start = _start, None
    if start is None:
        return keras_enumerate(epochs)
    return _rest_of(keras_enumerate, epochs, start)


def _rest_of(
    keras_enumerate: Callable[..., Iterator[Any]], epochs: Any, start: Start
) -> Iterator[Any]:
    per_execution = epochs.steps_per_execution
    for _ in range(start.epochs):
        for _, _, batches in keras_enumerate(epochs):
            if epochs.steps_per_epoch:  # all epochs may share an iterator
                _skip(batches, per_execution)
            elif epochs.num_batches is None:
                # An epoch of unknown length has one iterator, which ends.
                epochs.data_adapter.on_epoch_end()
                break
    for first, last, batches in keras_enumerate(epochs):
        if first < start.batch:
            _skip(batches, per_execution)
        else:
            yield first, last, batches


def _skip(batches: Iterator[Any], count: int) -> None:
    for _ in range(count):
        next(batches, None)


def with_places(
    keras_fit: Callable[..., Any],
    model: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[list[LastInFit], dict[str, Any]]:
    """Gives the data of a `fit` an order that a later `fit` can continue.

    Returns:
        The callbacks that need the data, and the arguments of `fit`.

    Raises:
        TypeError: The data cannot be continued, such as a generator.
        ValueError: Another argument of `fit` does not work with that.
    """
    bound = inspect.signature(keras_fit).bind(model, *args, **kwargs).arguments
    bound.pop("self", None)
    callbacks = bound.get("callbacks") or []
    callbacks = getattr(callbacks, "callbacks", callbacks)
    found = [
        each
        for each in keras.tree.flatten(callbacks)
        if isinstance(each, LastInFit)
    ]
    if found:
        _put_in_order(found[0], bound)
    return found, bound


def _put_in_order(callback: LastInFit, given: dict[str, Any]) -> None:
    function = f"fit with a {type(callback).__name__}"
    x = given.get("x")
    callback.data = callback.dataset = None
    if isinstance(x, tf.data.Dataset):
        callback.dataset = x
        return
    parts = x, given.get("y"), given.get("sample_weight")
    is_batches = isinstance(x, keras.utils.PyDataset)
    if not is_batches and not array_data_adapter.can_convert_arrays(parts):
        raise TypeError(
            f"{function}: x is a {type(x).__name__}, which another job cannot "
            "continue from a place in the middle. Pass arrays, a "
            "keras.utils.PyDataset or a tf.data.Dataset."
        )
    for name in ("validation_split", "steps_per_epoch"):
        if given.get(name):
            raise ValueError(
                f"{function}: {name} is not taken with arrays or a PyDataset. "
                + (
                    "Split the data before, and pass validation_data."
                    if name == "validation_split"
                    else "Leave it out, or pass a tf.data.Dataset."
                )
            )
    if given.get("sample_weight") is not None and given.get("y") is None:
        raise ValueError(f"{function}: sample_weight needs y. Pass both.")
    shuffle = given.get("shuffle", True)
    if shuffle not in (True, False):
        raise ValueError(
            f"{function}: shuffle must be True or False, got {shuffle!r}."
        )
    seed = callback.seed if shuffle else None
    if is_batches:
        source = sources.numbered(x, seed, function)
    else:
        present = tuple(_as_array_tree(p) for p in parts if p is not None)
        batch_size = given.get("batch_size") or 32
        source = sources.arrays(
            present, batch_size, seed, function, keeps_last=True
        )
    if given.get("validation_batch_size") is None and not is_batches:
        given["validation_batch_size"] = given.get("batch_size")
    callback.data = EpochData(source)
    given |= {
        "x": Untuned(callback.data, given.pop("class_weight", None)),
        "y": None,
        "sample_weight": None,
        "batch_size": None,
        "shuffle": False,
    }


def _as_array_tree(part: Any) -> Any:
    """Returns arrays as Keras converts them, with its dtype of floats."""

    def as_array(each: Any) -> Any:
        array = np.asarray(each)
        if np.issubdtype(array.dtype, np.floating):
            array = array.astype(keras.config.floatx(), copy=False)
        return array

    return keras.tree.map_structure(as_array, part)
