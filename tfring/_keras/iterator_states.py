"""The states of iterators of `tf.data`, for checkpoints.

The state of an iterator is what `tf.train.Checkpoint` writes: the place in the
source, and the elements in the buffers of `shuffle`, `prefetch` and similar
datasets. It is a tensor of variants that share the memory of the elements, so
taking it costs next to nothing, but its file holds all these elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from absl import logging

from tfring._core import runtime

# The key of the state in a part of a checkpoint.
KEY = "iterator"
# The name that TensorFlow gives the state.
_NAME = "_STATE"


def state_of(iterator: Any) -> tf.Tensor:
    """Returns the state of an iterator.

    Raises:
        NotImplementedError: TensorFlow cannot save it, because some of it is
            outside of the iterator, such as the state of a Python generator.
    """
    if not isinstance(iterator, tf.data.Iterator):
        raise NotImplementedError(
            f"a {type(iterator).__name__} is no tf.data.Iterator"
        )
    try:
        state: tf.Tensor = iterator._serialize_to_tensors()[_NAME]
    except tf.errors.OpError as error:
        raise NotImplementedError(_reason(error)) from None
    return state


def restore(iterator: Any, state: tf.Tensor) -> None:
    """Restores a state into an iterator of the same dataset.

    Raises:
        ValueError: The state is of another dataset. The iterator cannot be used
            any more.
    """
    try:
        iterator._restore_from_tensors({_NAME: state})
    except tf.errors.OpError as error:
        raise ValueError(_reason(error)) from None


def _reason(error: tf.errors.OpError) -> str:
    """Returns TensorFlow's message without the name of the operation."""
    text = error.message.partition("}} ")[2] or error.message
    return str(text.partition(" [Op:")[0].rstrip("."))


class FitIterator:
    """The iterator of the `tf.data.Dataset` of a `fit`.

    Attributes:
        saved: The state that `begin` restores; None if `begin` must read the
            earlier batches instead.
    """

    def __init__(self) -> None:
        self.saved: tf.Tensor | None = None
        # Keras's EpochIterator, and the iterator that it trains from.
        self._epochs: Any = None
        self._batches: Any = None
        # An iterator that leaves out what other ranks have taken.
        self._cut: Any = None
        self._has_state = True

    def begin(
        self, epochs: Any, batches: Any, count: int, *, is_cut: bool
    ) -> Iterator[Any]:
        """Moves the iterator of an epoch to the place where it begins.

        Args:
            epochs: Keras's EpochIterator.
            batches: The iterator of the epoch.
            count: How many of the iterator's batches were taken before.
            is_cut: True if it leaves out elements of a batch. Its state does
                not fit the dataset of a later job, and is not saved.

        Returns:
            The iterator from which this epoch's batches are read: a new one in
            place of `batches` if the saved state did not fit the dataset.
        """
        saved, self.saved = self.saved, None
        if saved is not None:
            try:
                restore(batches, saved)
                count = 0
            except ValueError as error:
                _warn(
                    "the tf.data.Dataset is another than that of the "
                    f"checkpoint: {error}."
                )
                batches = iter(epochs._distributed_dataset)
                if epochs._current_iterator is not None:
                    epochs._current_iterator = batches
        if count > 0:
            say_what_is_read_again(count)
        for _ in range(count):
            next(batches, None)
        self._epochs, self._batches = epochs, batches
        if is_cut:
            self._cut = batches
            _warn("the first step has fewer rows: other ranks took the rest.")
        return batches  # type: ignore[no-any-return]

    def state(self, *, is_between_epochs: bool) -> tf.Tensor | None:
        """Returns the state of the iterator.

        Args:
            is_between_epochs: True at the end of an epoch. The next one has
                an iterator of its own, unless `fit` has `steps_per_epoch`.

        Returns:
            The state; None if the number of batches is all that a checkpoint
            can keep of the iterator's place.
        """
        if self._epochs is None or not self._has_state:
            return None
        batches = self._epochs._current_iterator
        if is_between_epochs and not self._epochs.steps_per_epoch:
            return None
        if batches is None and not is_between_epochs:
            # Keras does not keep the iterator of an epoch of unknown length.
            batches = self._batches
        if batches is None or batches is self._cut:
            return None
        try:
            return state_of(batches)
        except NotImplementedError as error:
            self._has_state = False
            _warn(
                "checkpoints have the number of batches as the place in the "
                f"tf.data.Dataset, because its iterator has no state: {error}. "
                "A job that goes on reads these batches again, and does not "
                "train on them."
            )
            return None


def say_what_is_read_again(count: int) -> None:
    """Warns on rank 0 that batches are read without training on them."""
    _warn(
        f"{count} batches of the tf.data.Dataset are read again, and not "
        "trained on, which takes as long as its input pipeline needs for "
        "them. A shuffle without a seed has another order."
    )


def _warn(text: str) -> None:
    if runtime.rank() == 0:
        logging.warning("tfring: %s", text)
