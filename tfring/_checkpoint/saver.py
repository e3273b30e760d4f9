"""Saves and restores a training, for `fit` and for loops of a user's own."""

from __future__ import annotations

import dataclasses
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfring._checkpoint import callback_states, restoring
from tfring._checkpoint.contents import Item
from tfring._checkpoint.coordinator import Coordinator
from tfring._checkpoint.folder import Folder
from tfring._checkpoint.restoring import Saved
from tfring._checkpoint.schedule import Schedule, Signals
from tfring._core import runtime
from tfring._keras.epochs import LastInFit
from tfring._keras.iterator_states import KEY

_RESUME = ("auto", "must", "never")


@dataclasses.dataclass(frozen=True)
class Settings:
    """The arguments of a checkpoint, of `fit` or of a loop.

    Raises:
        TypeError: An argument is of another type.
        ValueError: An argument has an invalid value.
    """

    folder: str | Path
    every_steps: int | None
    every_minutes: float | None
    keep: int
    on_signal: Sequence[str]
    resume: str
    strict: bool
    requeue: bool

    def __post_init__(self) -> None:
        if not str(self.folder) or "://" in str(self.folder):
            raise ValueError(
                "Checkpoint: folder must be a folder that all ranks see, got "
                f"{str(self.folder)!r}. An address such as gs://... has no "
                "renames and no fsync, on which a checkpoint relies."
            )
        for name in ("every_steps", "every_minutes", "keep"):
            value = getattr(self, name)
            if value is None and name != "keep":
                continue
            types = (int, float) if name == "every_minutes" else (int,)
            if isinstance(value, bool) or not isinstance(value, types):
                raise TypeError(
                    f"Checkpoint: {name} must be a number, got {value!r}."
                )
            if value <= 0:
                raise ValueError(
                    f"Checkpoint: {name} must be positive, got {value}."
                )
        if isinstance(self.on_signal, str):
            raise TypeError(
                "Checkpoint: on_signal must be a list of names, got "
                f"{self.on_signal!r}."
            )
        if not isinstance(self.requeue, bool):
            raise TypeError(
                "Checkpoint: requeue must be True or False, got "
                f"{self.requeue!r}."
            )
        if self.resume not in _RESUME:
            raise ValueError(
                f"Checkpoint: resume must be one of {', '.join(_RESUME)}, got "
                f"{self.resume!r}."
            )


class Saver:
    """Saves and restores one training.

    Args:
        settings: The arguments of the user.
        training: See the attribute.

    Attributes:
        step: How many steps there have been, since the first start.
        training: The kind of training, such as "model.fit". It cannot continue
            from the place in the data of another kind.
    """

    def __init__(self, settings: Settings, training: str) -> None:
        self.training = training
        self._settings = settings
        self._folder = Folder(Path(settings.folder).absolute())
        self._coordinator = Coordinator(
            self._folder,
            Schedule(settings.every_steps, settings.every_minutes),
            Signals(settings.on_signal),
            keep=settings.keep,
            strict=settings.strict,
            requeues=settings.requeue,
        )
        self.step = 0
        self._saved_step: int | None = None

    def find(self, *, is_elastic: bool = False) -> Saved | None:
        """Returns the checkpoint to go on from, if there is one. Collective.

        Args:
            is_elastic: True if the training survives a change of the ranks.

        Raises:
            NotImplementedError: The job is elastic, and the training is not.
            RuntimeError: See `restoring.find`.
            ValueError: The checkpoint is of a training of another kind.
        """
        if runtime.may_grow() and not is_elastic:
            raise NotImplementedError(
                "Checkpoint: this job is elastic, and its ranks may change "
                "while a checkpoint is written. Pass "
                "tfring.callbacks.Checkpoint to tfring.elastic.fit, or "
                "tfring.Checkpoint the state of tfring.elastic.run; or start "
                "the job without --elastic."
            )
        saved = restoring.find(self._folder, self._settings.resume)
        if saved is not None:
            _check_training(saved, self.training)
        return saved

    def begin(self, items: Sequence[Item], saved: Saved | None) -> None:
        """Restores a checkpoint if there is one, and begins. Collective."""
        self.step = 0
        self._saved_step = None
        if saved is not None:
            restoring.restore(saved, items)
            callback_states.set_random_states(saved.own("random"))
            self.step = self._saved_step = int(saved.manifest["step"])
        self._coordinator.begin(self.step, items)

    def go_on(self, items: Sequence[Item], step: int) -> None:
        """Goes on at a step, with other ranks than before. Collective."""
        self.step = step
        self._saved_step = None
        self._coordinator.begin(step, items, goes_on=True)

    def end_step(
        self,
        save: Callable[[], None],
        *,
        may_save: bool,
        is_last: bool = False,
    ) -> None:
        """Saves if the ranks agree to. Collective.

        Args:
            save: Calls `save` of this object.
            may_save: False if the ranks have no common state now, or if the end
                of the epoch follows.
            is_last: True at the end of an epoch.

        Raises:
            SystemExit: A signal has asked for the end of the job. In an elastic
                job SIGTERM ends its worker alone, at its next commit.
        """
        wish = self._coordinator.vote(self.step, is_last=is_last)
        if not may_save or not wish.saves:
            return
        save()
        if wish.signal == signal.SIGTERM and runtime.may_grow():
            self._coordinator.let_leave()
        elif wish.signal:
            sys.exit(self._coordinator.leave(self.step, wish.signal))

    def save(
        self,
        items: Sequence[Item],
        place: Mapping[str, Any],
        *,
        callbacks: Sequence[Any] = (),
        config: str | None = None,
        iterator: tf.Tensor | None = None,
    ) -> None:
        """Saves now. Collective.

        Args:
            items: The items of the training's state.
            place: The place in the data, as a JSON value.
            callbacks: The callbacks that may have a state.
            config: The model as JSON, of rank 0.
            iterator: The state of this rank's iterator of `tf.data`.
        """
        self._saved_step = self.step
        states, arrays = callback_states.to_save(callbacks)
        states |= {"place": place, "model": config, "training": self.training}
        extras: dict[str, Any] = dict(arrays)
        if iterator is not None:
            extras[KEY] = iterator
        self._coordinator.save(self.step, items, extras, states)

    def is_saved(self) -> bool:
        """Tells if the state of this step has been saved."""
        return self._saved_step == self.step

    def wait(self) -> None:
        """Waits until the last checkpoint is complete. Collective."""
        self._coordinator.wait()

    def close(self) -> None:
        """Restores the signals' handlers."""
        self._coordinator.close()


class SavingCallback(LastInFit):
    """A callback with a saver, which `tfring.elastic.fit` uses by itself.

    Args:
        settings: The arguments of the user.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._saver = Saver(settings, "model.fit")


def _check_training(saved: Saved, training: str) -> None:
    before = saved.own("training")
    if before != training:
        raise ValueError(
            f"Checkpoint: {saved.path} is of {before}, and its place in the "
            f"data is none that {training} could go on from. Call the same "
            "function, or name another folder."
        )
