"""Checkpoints of `fit`, which a later job of any number of ranks goes on from.

All members of a generation write a part of a checkpoint at the end of a step.
If a member is lost meanwhile, the next generation gives up the incomplete
checkpoint, goes back to its last commit, and writes another checkpoint.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
from absl import logging

from tfring._checkpoint import callback_states
from tfring._checkpoint.contents import (
    Item,
    built_optimizers,
    config_of,
    items_of_model,
)
from tfring._checkpoint.restoring import Saved, restore_callbacks
from tfring._checkpoint.saver import Saver, SavingCallback
from tfring._core import runtime
from tfring._ops.gather_json import gather_json


class Checkpoints:
    """The checkpoints of a `fit`, in all its generations.

    Without a `tfring.callbacks.Checkpoint` its methods do nothing.

    Args:
        state: The state of `fit`: a `KerasState` with the attributes `epoch`,
            `taken`, `logs`, `history` and `steps`.
        epochs: How many epochs there are.
    """

    def __init__(self, state: Any, epochs: int) -> None:
        self._state = state
        self._epochs = epochs
        # A function of callbacks makes one in each generation. The first one's
        # remains, because its thread may still write.
        self._saver: Saver | None = None
        self._others: list[keras.callbacks.Callback] = []
        # The epoch of the last checkpoint.
        self._saved_epoch: int | None = None
        # Restores the callbacks' states.
        self._restore_callbacks: Callable[[], None] | None = None

    @contextlib.contextmanager
    def in_generation(
        self, callbacks: Sequence[keras.callbacks.Callback]
    ) -> Iterator[list[keras.callbacks.Callback]]:
        """Begins, and yields the other callbacks. Collective.

        Raises:
            ValueError: There are several, or not on every rank.
        """
        own = [each for each in callbacks if isinstance(each, SavingCallback)]
        self._others = [each for each in callbacks if each not in own]
        counts = gather_json(len(own), name="checkpoint/elastic")
        if max(counts) != min(counts) or max(counts) > 1:
            raise ValueError(
                "tfring.elastic.fit: every rank must pass one "
                "tfring.callbacks.Checkpoint, or none; the ranks have passed "
                f"{counts}."
            )
        self._restore_callbacks = None
        if not own:
            yield self._others
            return
        self._saver = self._saver or own[0]._saver
        self._saver.training = "tfring.elastic.fit"
        try:
            self._begin(self._saver)
            yield self._others
        finally:
            self._saver.close()

    def _begin(self, saver: Saver) -> None:
        if self._state._commits > 0:
            saver.go_on(self._items(), self._state.steps)
            return
        saved = saver.find(is_elastic=True)
        items = self._items(None if saved is None else saved.items())
        saver.begin(items, saved)
        if saved is not None:
            self._take(saver, saved)

    def _take(self, saver: Saver, saved: Saved) -> None:
        """Goes on from a checkpoint, whose variables have been restored."""
        state = self._state
        state.history.replace(saved.own("place")["history"])
        # All ranks take the same place. One of them may have known that the
        # training ends.
        places = [part["place"] for part in saved.manifest["parts"]]
        place = max(places, key=lambda each: each["epoch"])
        state.epoch, state.taken = place["epoch"], place["taken"]
        state.logs = place["logs"]
        state.steps, self._saved_epoch = saver.step, state.epoch
        self._restore_callbacks = functools.partial(
            restore_callbacks, saved, self._others
        )
        if runtime.rank() == 0:
            logging.info(
                "tfring: going on from %s: step %d, epoch %d, %d taken of it.",
                *(saved.path, state.steps, state.epoch, state.taken),
            )

    def begin_fit(self) -> None:
        """Called when Keras's `fit` has reset its callbacks."""
        if self._restore_callbacks is not None:
            self._restore_callbacks()

    def end_fit(self) -> None:
        """Keeps the states of callbacks for the next `fit` of Keras."""
        if self._saver is None:
            return
        states = callback_states.states_of(self._others)
        weights = callback_states.weights_of(self._others)

        def restore() -> None:
            callback_states.set_states(self._others, states)
            callback_states.set_weights(self._others, weights)

        self._restore_callbacks = restore

    def count(self, steps: int) -> None:
        """Counts steps; call it before a commit."""
        if self._saver is not None:
            self._saver.step += steps
            self._state.steps = self._saver.step

    def end_step(
        self,
        batch: int,
        logs: Callable[[], dict[str, Any]],
        *,
        may_save: bool,
        is_last: bool = False,
    ) -> None:
        """Saves if the ranks agree to; call it after a commit. Collective.

        Args:
            batch: How many steps there have been of the epoch.
            logs: Returns the logs of the epoch so far.
            may_save: See `Saver.end_step`.
            is_last: See `Saver.end_step`.
        """
        if self._saver is None:
            return
        self._saver.end_step(
            lambda: self._save(batch, logs()),
            may_save=may_save,
            is_last=is_last,
        )

    def end(self) -> None:
        """Saves the end of the training, and waits for that. Collective."""
        if self._saver is None:
            return
        # A callback may have ended the training at a step that is saved.
        if not (
            self._saver.is_saved() and self._saved_epoch == self._state.epoch
        ):
            self._save(0, {})
        self._saver.wait()

    def _save(self, batch: int, logs: dict[str, Any]) -> None:
        assert self._saver is not None
        state = self._state
        self._saved_epoch = state.epoch
        # A callback of this rank may have ended the training.
        ends = bool(state.model.stop_training)
        place = {
            "epoch": max(state.epoch, self._epochs) if ends else state.epoch,
            "batch": 0 if ends else batch,
            "taken": 0 if ends else state.taken,
            "logs": callback_states.plain(logs),
            "history": callback_states.plain(state.history.epochs()),
        }
        config = config_of(state.model) if runtime.rank() == 0 else None
        self._saver.save(
            self._items(), place, callbacks=self._others, config=config
        )

    def _items(self, saved: Mapping[str, Any] | None = None) -> list[Item]:
        model = self._state.model
        return items_of_model(model, built_optimizers(model), saved)
