"""Saves and restores a training, for `fit` and for loops of a user's own."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfring._checkpoint import restoring
from tfring._checkpoint.contents import Item
from tfring._checkpoint.coordinator import Coordinator
from tfring._checkpoint.files import Files
from tfring._checkpoint.folder import Folder
from tfring._checkpoint.restoring import Saved
from tfring._checkpoint.schedule import Schedule, Signals
from tfring._core import runtime

_RESUME = ("auto", "must", "never")


@dataclasses.dataclass(frozen=True)
class Settings:
    """The arguments of a checkpoint, of `fit` or of a loop.

    Raises:
        TypeError: One is of another type.
        ValueError: One is none of the values it may have.
    """

    folder: str | Path
    every_steps: int | None
    every_minutes: float | None
    keep: int
    on_signal: Sequence[str]
    resume: str
    strict: bool

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
        if self.resume not in _RESUME:
            raise ValueError(
                f"Checkpoint: resume must be one of {', '.join(_RESUME)}, got "
                f"{self.resume!r}."
            )


class Saver:
    """Saves and restores one training.

    Args:
        settings: The arguments of the user.
        files: The file system.
        clock: Returns the time in seconds.

    Attributes:
        step: How many steps there have been, since the first start.
    """

    def __init__(
        self,
        settings: Settings,
        files: Files | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        folder = Path(settings.folder).absolute()
        self._folder = Folder(folder, files)
        self._coordinator = Coordinator(
            self._folder,
            Schedule(settings.every_steps, settings.every_minutes, clock),
            Signals(settings.on_signal),
            keep=settings.keep,
            strict=settings.strict,
        )
        self.step = 0
        self._saved_step: int | None = None

    def find(self) -> Saved | None:
        """Returns the checkpoint to go on from, if there is one. Collective.

        Raises:
            NotImplementedError: The job is elastic.
            RuntimeError: See `restoring.find`.
        """
        if runtime.may_grow():
            raise NotImplementedError(
                "Checkpoint: this job is elastic, and its ranks may change "
                "while a checkpoint is written. Start it without --elastic, or "
                "let rank 0 save with keras.callbacks.ModelCheckpoint."
            )
        return restoring.find(self._folder, self._settings.resume)

    def begin(self, items: Sequence[Item], saved: Saved | None) -> None:
        """Restores a checkpoint if there is one, and begins. Collective."""
        self.step = 0
        self._saved_step = None
        if saved is not None:
            restoring.restore(saved, items)
            self.step = self._saved_step = int(saved.manifest["step"])
        self._coordinator.begin(self.step, items)

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
            SystemExit: A signal has asked for the end of the job.
        """
        wish = self._coordinator.vote(self.step, is_last=is_last)
        if not may_save or not wish.saves:
            return
        save()
        if wish.signal:
            sys.exit(self._coordinator.leave(self.step, wish.signal))

    def save(
        self,
        items: Sequence[Item],
        extras: Mapping[str, Any],
        states: Mapping[str, Any],
    ) -> None:
        """Saves now, unless this step has been saved. Collective."""
        self._saved_step = self.step
        self._coordinator.save(self.step, items, extras, states)

    def is_saved(self) -> bool:
        """Tells if the state of this step has been saved."""
        return self._saved_step == self.step

    def wait(self) -> None:
        """Waits until the last checkpoint is complete. Collective."""
        self._coordinator.wait()

    def close(self) -> None:
        """Gives signals their handlers back."""
        self._coordinator.close()

    @property
    def standstill_seconds(self) -> float:
        """How long the last checkpoint has held up the training, in seconds."""
        return self._coordinator.standstill_seconds
