"""Finds callbacks that decide or write files, which ranks must agree on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfring._keras.metric_averages import MetricAverages

# Callbacks that write files, and the attribute that has the path.
_WRITERS = {
    "BackupAndRestore": "backup_dir",
    "CSVLogger": "filename",
    "ModelCheckpoint": "filepath",
    "OrbaxCheckpoint": "directory",
}
# Callbacks that change the training, which every rank therefore needs.
_STEERING = (
    keras.callbacks.EarlyStopping,
    keras.callbacks.LearningRateScheduler,
    keras.callbacks.ReduceLROnPlateau,
    keras.callbacks.SwapEMAWeights,
    keras.callbacks.TerminateOnNaN,
)
_BATCH_HOOKS = (
    "on_batch_begin",
    "on_batch_end",
    "on_train_batch_begin",
    "on_train_batch_end",
)


def is_ours(callback: Any) -> bool:
    return type(callback).__module__.startswith("tfring.")


def joins(callback: Any) -> bool:
    return getattr(callback, "lets_ranks_be_uneven", False)


def averages_metrics(callback: Any) -> bool:
    return isinstance(callback, MetricAverages)


def must_be_alike(callback: Any) -> bool:
    return written_by(callback) is None and (
        is_ours(callback) or isinstance(callback, _STEERING)
    )


def needs_averages(callbacks: list[Any]) -> bool:
    """Tells whether a callback decides by metrics that are not averaged yet."""
    for callback in callbacks:
        if averages_metrics(callback):
            return False
        if decides(callback):
            return True
    return False


def decides(callback: Any) -> bool:
    """Tells whether a callback acts on a metric that it monitors."""
    return isinstance(
        callback,
        keras.callbacks.EarlyStopping | keras.callbacks.ReduceLROnPlateau,
    ) or getattr(callback, "save_best_only", False)


def looks_at_batches(callback: Any) -> bool:
    """Tells whether a callback may stop the training within an epoch."""
    if isinstance(callback, keras.callbacks.TerminateOnNaN):
        return True
    for name in _BATCH_HOOKS:
        module = getattr(getattr(callback, name), "__module__", None) or ""
        if module.partition(".")[0] not in ("keras", "tfring"):
            return True
    return False


def written_by(callback: Any) -> list[str] | None:
    """Returns a writer's class and path; None if a callback writes no file."""
    for kind, attribute in _WRITERS.items():
        # Older versions of Keras lack OrbaxCheckpoint.
        if isinstance(callback, getattr(keras.callbacks, kind, ())):
            path = str(getattr(callback, attribute))
            return [kind, path if "://" in path else str(Path(path).absolute())]
    return None


def backups(callbacks: list[Any]) -> list[Any]:
    """Returns the paths of `written_by` that can be restored."""
    return [
        written_by(each)
        for each in callbacks
        if isinstance(each, keras.callbacks.BackupAndRestore)
        and tf.io.gfile.isdir(each.backup_dir)
        and tf.io.gfile.listdir(each.backup_dir)
    ]


def check_goes_with_shards(callbacks: list[Any], feature: str) -> None:
    """Refuses callbacks that need the whole weights on one rank.

    Raises:
        NotImplementedError: The message names the callback and `feature`.
    """
    _check_goes_along(
        callbacks,
        swap=f"whole averages, and with {feature} each rank has a part of "
        "them. Leave one of the two out; ema_overwrite_frequency of the "
        f"optimizer goes with {feature}.",
        join=f"with {feature} each rank takes part in every step, with its "
        "part of the weights or states",
    )


def check_goes_with_parameters(callbacks: list[Any]) -> None:
    """Refuses callbacks that read sharded parameters as tensors.

    Raises:
        NotImplementedError: The message names the callback.
    """
    for callback in callbacks:
        if getattr(callback, "histogram_freq", 0):
            raise NotImplementedError(
                f"fit: a {type(callback).__name__} with histogram_freq="
                f"{callback.histogram_freq} reads all weights, and each rank "
                "has a part of them (tfring.shard_parameters). Leave "
                "histogram_freq out."
            )


def check_goes_with_rounds(callbacks: list[Any]) -> None:
    """Refuses callbacks that need common weights in every step.

    Raises:
        NotImplementedError: The message names the callback.
    """
    _check_goes_along(
        callbacks,
        swap="this rank's averages, and with sync the ranks train apart. "
        "Leave one of the two out.",
        join="with sync all ranks must make the steps of a round",
    )


def _check_goes_along(callbacks: list[Any], *, swap: str, join: str) -> None:
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.SwapEMAWeights):
            raise NotImplementedError(
                f"fit: keras.callbacks.SwapEMAWeights swaps weights with {swap}"
            )
        if joins(callback):
            raise NotImplementedError(
                "fit: tfring.callbacks.JoinCallback lets ranks stand by while "
                f"others train, and {join}. Leave one of the two out, and give "
                "every rank equally many batches."
            )
