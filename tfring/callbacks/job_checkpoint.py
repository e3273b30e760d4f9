"""A callback that saves a job, so that it continues after it was cut off."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
from absl import logging

from tfring._checkpoint.contents import (
    Item,
    built_optimizers,
    config_of,
    items_of_model,
)
from tfring._checkpoint.fit_place import FitPlace
from tfring._checkpoint.restoring import Saved, restore_callbacks
from tfring._checkpoint.saver import SavingCallback, Settings
from tfring._core import runtime
from tfring._keras.epochs import start_at
from tfring._state.kinds import open_rounds, rounds_among
from tfring._state.model_state import check_built
from tfring.callbacks.broadcast import BroadcastGlobalVariablesCallback


class Checkpoint(SavingCallback):
    """Saves the whole state of a training periodically, and continues from it.

    A job that is started again with the same script continues with the batch
    after the last checkpoint, as if it had not been cut off; on the same number
    of ranks the bits are the same. A checkpoint has the weights, optimizers,
    loss scale, moving statistics, seeds, rounds, accumulated gradients, metrics
    of the epoch so far, states of callbacks, and place in the data.

    Each rank copies and writes a part, in a thread, while the training
    continues; only values on a GPU are copied first. All ranks must see the
    folder. A checkpoint counts once all parts are on the disk; until then the
    last one remains. The guide on jobs that are cut off has more.

    Arrays and a `keras.utils.PyDataset` get an order that is a function of
    `seed` and the epoch; `on_epoch_end` of a `PyDataset` is not called. The
    iterator of a `tf.data.Dataset` is restored. Where TensorFlow cannot save
    its state, and with another number of ranks, the dataset is read again up to
    the place, without training, and a warning says so. Other data are refused.
    Another number of ranks goes on in the middle of an epoch, and trains on
    each sample once in it, if the data are batches of what `tfring.data.shard`
    returns, or arrays or a `PyDataset` of all ranks: see `of_all_ranks`. With
    other data it begins the epoch again, and a warning says why.

    Give each `fit` of a script a folder of its own: a folder whose last
    checkpoint is that of a training's end leaves nothing to train.

    Pass it on every rank. Each step ends with a vote of the ranks if the last
    was 0.1 s ago: a small allreduce. The state of a callback is saved if the
    callback has the methods `get_state`, which returns a value for JSON, and
    `set_state`. A `BroadcastGlobalVariablesCallback` does nothing after a
    checkpoint has been restored.

    In `tfring.elastic.fit` the place is in the data of all ranks. So with
    another number of ranks, too, in an elastic job or not, each sample is
    trained once in an epoch. Metrics of that epoch then cover its rest alone.

    Args:
        folder: The folder, the same on all ranks.
        every_steps: How many steps there are between checkpoints; None counts
            no steps.
        every_minutes: How many minutes there are between checkpoints; None
            counts no minutes. With both, whichever comes first. A last
            checkpoint is written at the end.
        keep: How many checkpoints are kept.
        on_signal: The names of signals after which the job saves, and ends with
            exit status 75 on all ranks, whichever rank gets the signal. In an
            elastic job all save after SIGTERM, too, and then that worker leaves
            alone.
        resume: "auto" continues from the newest checkpoint if there is one,
            "must" requires one, "never" starts from the beginning.
        strict: If true, a checkpoint that cannot be written ends the training
            with a RuntimeError. Otherwise this is reported once.
        seed: The seed of the orders of arrays and of a `PyDataset`;
            `tfring.elastic.fit` has its own.
        requeue: If true, rank 0 runs `scontrol requeue $SLURM_JOB_ID` when a
            signal has ended the job and its checkpoint is complete, so that
            Slurm starts the job again. If that fails, a warning says so.
        of_all_ranks: True if arrays or a `PyDataset` have the data of all
            ranks, the same on each of them. In each step the ranks take the
            rows, or batches, that are next, as in `tfring.elastic.fit`. Those
            at the end of an epoch that are too few for a step of all ranks are
            left out. False if each rank passes data of its own.

    Raises:
        NotImplementedError: In `fit`: the job is elastic, which is for
            `tfring.elastic.fit`; or the optimizer has a process set, or
            `sync=tfring.Gossip`.
        RuntimeError: In `fit`: no checkpoint is complete, although there are
            checkpoints or `resume` is "must".
        TypeError: An argument has a wrong type; in `fit`, the data are of
            another kind.
        ValueError: An argument has an invalid value; in `fit`, the model has
            not been built, the checkpoint is of another training,
            `of_all_ranks` comes with a `tf.data.Dataset`, or the data of all
            ranks are too few for a step.

    Example:

    ```python
    model.fit(x, y, epochs=5, callbacks=[
        tfring.callbacks.BroadcastGlobalVariablesCallback(0),
        tfring.callbacks.Checkpoint("checkpoints", every_minutes=10)])
    ```
    """

    def __init__(
        self,
        folder: str | Path,
        every_steps: int | None = None,
        every_minutes: float | None = 10,
        keep: int = 3,
        on_signal: Sequence[str] = ("SIGTERM", "SIGUSR1"),
        resume: str = "auto",
        strict: bool = False,
        seed: int = 0,
        requeue: bool = False,
        of_all_ranks: bool = False,
    ) -> None:
        super().__init__(
            Settings(
                *(folder, every_steps, every_minutes, keep, on_signal),
                *(resume, strict, requeue),
            )
        )
        self.seed = seed
        self.of_all_ranks = of_all_ranks
        self._others: list[Any] = []
        self._items: list[Item] = []
        self._saved: Saved | None = None
        # The model's configuration for `python -m tfring.checkpoint`, on rank
        # 0.
        self._config: str | None = None
        self._place: FitPlace

    def before_callbacks(self, callbacks: list[Any]) -> None:
        self._others = [each for each in callbacks if each is not self]
        for each in self._others:
            if isinstance(each, keras.callbacks.BackupAndRestore | Checkpoint):
                raise ValueError(
                    f"Checkpoint: there is a {type(each).__name__} beside it, "
                    "which restores another state. Leave one of the two out."
                )
        model = self.model
        check_built(model, "Checkpoint")
        optimizers = built_optimizers(model)
        self._saved = self._saver.find()
        if self._saved is not None:
            self.build_metrics()
            for each in self._others:
                if isinstance(each, keras.callbacks.CSVLogger):
                    each.append = True
        saved = None if self._saved is None else self._saved.items()
        self._items = items_of_model(model, optimizers, saved)
        self._config = config_of(model) if runtime.rank() == 0 else None

    def on_train_begin(self, logs: Any = None) -> None:
        self._place = FitPlace(self, self.params.get("steps"))
        saved = self._saved
        self._saver.begin(self._items, saved)
        if saved is not None:
            self._take(saved)

    def _take(self, saved: Saved) -> None:
        """Continues from a checkpoint whose variables have been restored."""
        self._place.take(saved)
        self.model._initial_epoch = self._place.epoch
        restore_callbacks(saved, self._others)
        for each in self._others:
            if isinstance(each, BroadcastGlobalVariablesCallback):
                each._done = True
        for in_round in rounds_among(self.model.variables):
            in_round.begin_fit()
        if runtime.rank() == 0:
            logging.info(
                "tfring: going on from %s: step %d, epoch %d, batch %d.",
                saved.path,
                self._saver.step,
                self._place.epoch,
                self._place.batch,
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        start_at(self._place.begin_epoch(epoch))
        saved, self._saved = self._saved, None
        if saved is None:
            return
        # A later `fit` of the model would begin at this epoch again.
        self.model._initial_epoch = None
        if self._place.goes_on:
            self._restore_metrics(saved)

    def _restore_metrics(self, saved: Saved) -> None:
        """Restores metrics, which Keras resets when the epoch begins."""
        for item in items_of_model(self.model, ()):
            rank = runtime.rank()
            if item.key.startswith("metrics/") and rank in saved.ranks_with(
                item.key
            ):
                item.assign(saved.read(rank, item.key))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # Keras calls this once for several steps per execution.
        self._saver.step += self._place.count(batch)
        # The end of the epoch, with its logs, belongs to its last step.
        is_last = self._place.batch == self.params.get("steps")
        self._saver.end_step(
            self._save,
            may_save=not is_last and not open_rounds(self.model.variables),
        )

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        next_epoch = epoch + 1
        if self.model.stop_training:
            next_epoch = max(next_epoch, int(self.params["epochs"]))
        self._place.end_epoch(next_epoch)
        self._saver.end_step(
            self._save,
            may_save=not open_rounds(self.model.variables),
            is_last=True,
        )

    def on_train_end(self, logs: Any = None) -> None:
        if not self._saver.is_saved():
            self._save()
        self._saver.wait()

    def after_fit(self) -> None:
        start_at(None)
        # The place holds the iterator of the data with its buffers.
        self.__dict__.pop("_place", None)
        self._saver.close()

    def _save(self) -> None:
        # This includes variables that a layer or a metric has made since.
        self._items = items_of_model(self.model, built_optimizers(self.model))
        self._saver.save(
            self._items,
            self._place.describe(),
            callbacks=self._others,
            config=self._config,
            iterator=self._place.iterator_state(),
        )
