"""Epochs that a `fit` begins in the middle.

Note [The place in the data]: the steps of an epoch that were done before are
enumerated, but not trained. So batches keep their numbers, and the iterator of
the data is where it was. Arrays and a `PyDataset` skip the data without reading
them; the iterator of a `tf.data.Dataset` is restored, or reads the data again.
The iterators of its earlier epochs are created again, too, because a
reshuffling shuffle draws its seeds when an iterator is created. Other ranks may
have taken a part of the first batch that is trained on: see Note [A step that
is taken in part] in shared_batches.py.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.trainers.data_adapters import array_data_adapter

from tfring._core import runtime
from tfring._keras import sources
from tfring._keras.iterator_states import FitIterator
from tfring._keras.shared_batches import Cut, SharedBatches, shared_batches
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
        read: How many batches were taken from the iterator of the epoch before
            that step; None means as many as Keras counts.
        cut: What to leave out of the first batch that is trained on.
        iterator: The iterator of a `tf.data.Dataset`; None for other data.
    """

    batch: int
    epochs: int = 0
    read: int | None = None
    cut: Cut | None = None
    iterator: FitIterator | None = None


class LastInFit(keras.callbacks.Callback):
    """A callback that `fit` puts last, and that gets the data of `fit`.

    Attributes:
        seed: The seed of the orders of arrays and of a `PyDataset`.
        of_all_ranks: True if arrays or a `PyDataset` are the data of all ranks,
            which share them out.
        data: The arrays or the `PyDataset` of `fit`; None for other data.
        dataset: The `tf.data.Dataset` of `fit`; None for other data.
        shared: How the dataset is shared out, or why that is not known.
        steps_per_epoch: The argument of `fit`, for a `tf.data.Dataset`.
    """

    seed: int = 0
    of_all_ranks: bool = False
    data: EpochData | None = None
    dataset: tf.data.Dataset | None = None
    shared: SharedBatches | str = ""
    steps_per_epoch: int | None = None

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
        rank: The rank.
        size: How many ranks share the data out: 1 if they are this rank's own.
    """

    def __init__(self, source: sources.Source, rank: int, size: int) -> None:
        super().__init__(**source.loading)
        self._rest_of = functools.partial(source.rest, rank, size)
        # The rows, or batches, that all ranks take in a step.
        self._taken_in_step = source.per_rank * size
        self._rest = self._rest_of(0, 0)
        self._steps = self._rest.steps
        # The first step that this object still gives, and how many rows, or
        # batches, the ranks had taken before it.
        self._first = self._taken = 0

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, index: int) -> Any:
        # Keras does not use the batches before the first one.
        return self._rest.batch(max(index - self._first, 0))

    def begin(self, epoch: int, taken: int) -> int:
        """Moves to a place in an epoch.

        Args:
            epoch: The epoch.
            taken: How many rows, or batches, were taken of it.

        Returns:
            How many of the epoch's steps are done, so that the rest remains.
        """
        self._rest = self._rest_of(epoch, taken)
        self._taken = taken
        self._first = self._steps - self._rest.steps
        return self._first

    def taken(self, batch: int) -> int:
        """Returns the place before a batch of the epoch."""
        return self._taken + (batch - self._first) * self._taken_in_step


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
    whole = epochs._distributed_dataset
    if start.cut is not None:
        epochs._distributed_dataset = start.cut.apply(whole)
    for _ in range(start.epochs):
        for _ in keras_enumerate(epochs):
            if epochs.num_batches is None:
                # An epoch of unknown length has one iterator, which ends.
                epochs.data_adapter.on_epoch_end()
                break
    # Keras executes steps from multiples of `steps_per_execution` on.
    shift = start.batch % per_execution
    begun = None
    for first, last, batches in keras_enumerate(epochs):
        if last < start.batch:
            continue
        if begun is None:
            # Keras has already counted this execution.
            count = epochs._steps_seen - per_execution + shift
            count = count if start.read is None else start.read
            begun = _begin(start, epochs, batches, count)
        if epochs.num_batches is None or first + shift < epochs.num_batches:
            yield first + shift, last + shift, begun
    epochs._distributed_dataset = whole


def _begin(start: Start, epochs: Any, batches: Any, count: int) -> Any:
    if start.iterator is None:
        for _ in range(count):
            next(batches, None)
        return batches
    is_cut = start.cut is not None
    return start.iterator.begin(epochs, batches, count, is_cut=is_cut)


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
    callback.data = callback.dataset = callback.steps_per_epoch = None
    if isinstance(x, tf.data.Dataset):
        _put_dataset(callback, x, given.get("steps_per_epoch"), function)
        return
    parts = x, given.get("y"), given.get("sample_weight")
    is_batches = isinstance(x, keras.utils.PyDataset)
    if not is_batches and not array_data_adapter.can_convert_arrays(parts):
        raise TypeError(
            f"{function}: x is a {type(x).__name__}, which another job cannot "
            "continue from a place in the middle. Pass arrays, a "
            "keras.utils.PyDataset or a tf.data.Dataset."
        )
    _check_goes_with_arrays(given, function)
    seed = callback.seed if given.get("shuffle", True) else None
    is_own = not callback.of_all_ranks
    if is_batches:
        source = sources.numbered(x, seed, function)
    else:
        if given.get("validation_batch_size") is None:
            given["validation_batch_size"] = given.get("batch_size")
        present = tuple(_as_array_tree(p) for p in parts if p is not None)
        batch_size = given.get("batch_size") or 32
        # With all ranks' rows the last ones may be too few to give each some.
        source = sources.arrays(
            present, batch_size, seed, function, keeps_last=is_own
        )
    rank, size = (0, 1) if is_own else (runtime.rank(), runtime.size())
    callback.data = EpochData(source, rank, size)
    if not is_own and len(callback.data) == 0:
        raise ValueError(
            f"{function}: the data are no step of {size} ranks, of which each "
            f"takes {source.per_rank} {source.unit}. Take smaller batches."
        )
    given |= {
        "x": Untuned(callback.data, given.pop("class_weight", None)),
        "y": None,
        "sample_weight": None,
        "batch_size": None,
        "shuffle": False,
    }


def _check_goes_with_arrays(given: dict[str, Any], function: str) -> None:
    for name, instead in (
        ("validation_split", "Split the data, and pass validation_data."),
        ("steps_per_epoch", "Leave it out, or pass a tf.data.Dataset."),
    ):
        if given.get(name):
            raise ValueError(
                f"{function}: {name} is not taken with arrays or a PyDataset. "
                f"{instead}"
            )
    if given.get("sample_weight") is not None and given.get("y") is None:
        raise ValueError(f"{function}: sample_weight needs y. Pass both.")
    shuffle = given.get("shuffle", True)
    if shuffle not in (True, False):
        raise ValueError(
            f"{function}: shuffle must be True or False, got {shuffle!r}."
        )


def _put_dataset(
    callback: LastInFit,
    dataset: tf.data.Dataset,
    steps_per_epoch: int | None,
    function: str,
) -> None:
    if callback.of_all_ranks:
        raise ValueError(
            f"{function}: of_all_ranks is for arrays and a PyDataset, and x is "
            "a tf.data.Dataset. Leave it out, and share the dataset out by "
            "tfring.data.shard, before it is batched."
        )
    callback.dataset = dataset
    callback.steps_per_epoch = steps_per_epoch
    callback.shared = shared_batches(dataset)
    if steps_per_epoch and int(dataset.cardinality()) >= 0:
        callback.shared = "it ends, and fit has steps_per_epoch"


def _as_array_tree(part: Any) -> Any:
    """Returns arrays as Keras converts them, with its dtype of floats."""

    def as_array(each: Any) -> Any:
        array = np.asarray(each)
        if np.issubdtype(array.dtype, np.floating):
            array = array.astype(keras.config.floatx(), copy=False)
        return array

    return keras.tree.map_structure(as_array, part)
