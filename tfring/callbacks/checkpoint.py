"""A callback that saves the best model of a job once."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import keras

from tfring._checkpoint.files import Files
from tfring._core import runtime


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """Saves the model when a metric has improved, on rank 0 alone.

    All ranks have the same weights, and ranks that write to the same file
    corrupt it, so only rank 0 writes. In `fit` with a `DistributedOptimizer`
    the metric covers all ranks' data; elsewhere put this callback after
    `MetricAverageCallback`, or the metric is that of rank 0's data. It makes no
    collective calls; pass it on every rank or on rank 0 only.

    The file is always whole: the model is saved beside it, in a directory
    `.NAME.partial`, and replaces the last model once it is on the disk. So a
    killed job, or a full disk, leaves the last model as it was. The disk must
    have room for both. At an address such as `gs://...` Keras writes in place.

    Horovod's callback has no `filepath`, because its estimators set it.

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
        # Keras's method would write into the existing file.
        path = self._get_file_path(epoch, batch, logs)
        if not self._should_save_model(epoch, batch, logs, path):
            return
        if "://" in path:
            self.model.save(path)
        else:
            # Write to the target of a symbolic link, so that the link stays.
            _save_whole(self.model, Path(path).resolve())
        if self.verbose > 0:
            print(f"\nEpoch {epoch + 1}: the model is saved to {path}")


def _save_whole(model: keras.Model, path: Path) -> None:
    """Saves a model so that readers see the old file or the new one."""
    # The name is the same each time, so that the leftover of a killed job is
    # removed. This is a directory because Keras may put other files beside the
    # model's file.
    directory = path.with_name(f".{path.name}.partial")
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    try:
        new = directory / path.name  # with the suffix that Keras needs
        model.save(new)
        if path.exists():
            shutil.copymode(path, new)
        files = Files()
        files.sync(new)
        new.replace(path)
        with contextlib.suppress(OSError):  # not possible on every file system
            files.sync(path.parent)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
