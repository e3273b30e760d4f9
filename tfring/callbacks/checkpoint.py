"""A callback that saves the best model of a job once."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any

import keras

from tfring._core import runtime


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """Saves the model when a metric has improved, on rank 0 alone.

    All ranks have the same weights, and ranks that write to the same file spoil
    it; so rank 0 writes, and the others never do. In `fit` with a
    `DistributedOptimizer` the metric is over all ranks' data; elsewhere put it
    after `MetricAverageCallback`, or it is that of rank 0's. It makes no
    collective calls; pass it on every rank or on rank 0 only.

    A file is whole or not there: the model is saved beside it, in a directory
    `.NAME.partial`, and takes the place of the last one when it is on the disk.
    So a job that is killed, or a disk that is full, leaves the last model as it
    was. There must be room for both. At an address, such as `gs://...`, Keras
    writes in place.

    Horovod's has no `filepath`, which its estimators set.

    Args:
        filepath: The file, which ends in `.keras`, and may have placeholders
            as in `keras.callbacks.ModelCheckpoint`.
        monitor: The metric.
        verbose: 1 prints a line on rank 0 when the model is saved.
        mode: "min", "max", or "auto", by the metric's name.
        save_freq: "epoch", or a number of batches, whose metrics are those of
            rank 0.

    Raises:
        ValueError: `filepath` does not end in `.keras` or `.h5`.

    Example:

    ```python
    model.fit(x, y, callbacks=[
        tfring.callbacks.MetricAverageCallback(),
        tfring.callbacks.BestModelCheckpoint("best.keras", monitor="loss")])
    ```
    """

    def __init__(
        self,
        filepath: str | Path,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: str | int = "epoch",
    ) -> None:
        super().__init__(
            filepath,
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=False,
            mode=mode,
            save_freq=save_freq,
        )

    def _save_model(self, epoch: int, batch: int | None, logs: Any) -> None:
        if runtime.rank() != 0:
            return
        # Keras's own writes into the file that is there.
        path = self._get_file_path(epoch, batch, logs)
        if not self._should_save_model(epoch, batch, logs, path):
            return
        if "://" in path:
            self.model.save(path)
        else:
            # A link stays one.
            _save_whole(self.model, Path(path).resolve())
        if self.verbose > 0:
            print(f"\nEpoch {epoch + 1}: the model is saved to {path}")


def _save_whole(model: keras.Model, path: Path) -> None:
    """Saves a model so that readers see the old file or the new one."""
    # The same name each time: a killed job's leftover is found and removed. A
    # directory, as Keras may put files of its own beside the model's.
    directory = path.with_name(f".{path.name}.partial")
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    try:
        new = directory / path.name  # Keras looks at the suffix.
        model.save(new)
        if path.exists():
            shutil.copymode(path, new)
        _sync(new)
        new.replace(path)
        with contextlib.suppress(OSError):  # not on every file system
            _sync(path.parent)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _sync(path: Path) -> None:
    """Waits until the file or the directory's entries are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
