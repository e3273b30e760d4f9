"""Checkpoints of a training loop of a user's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfring._checkpoint.contents import (
    Item,
    built_optimizers,
    items_of_model,
    items_of_variables,
)
from tfring._checkpoint.saver import Saver, Settings
from tfring._core import runtime
from tfring._state.kinds import are_in_a_round


class Checkpoint:
    """Saves the training of a loop now and then, and goes on from it.

    It is `tfring.callbacks.Checkpoint` for a loop without `fit`: the same files
    and the same rules. The place in the data is the loop's: it counts with
    `step` and `end_epoch`, and after `restore` skips the `batch` first batches
    of `epoch`, in an order that is a function of the epoch.

    Args:
        folder: The folder, the same on all ranks.
        model: A Keras model that has been built.
        optimizer: Its optimizer; by default that of `model.compile`, and those
            in the model's attributes.
        variables: Further variables, alike on all ranks.
        every_steps: See `tfring.callbacks.Checkpoint`.
        every_minutes: See `tfring.callbacks.Checkpoint`.
        keep: See `tfring.callbacks.Checkpoint`.
        on_signal: See `tfring.callbacks.Checkpoint`.
        resume: See `tfring.callbacks.Checkpoint`.
        strict: See `tfring.callbacks.Checkpoint`.
        requeue: See `tfring.callbacks.Checkpoint`.

    Attributes:
        epoch: The number of epochs that are done.
        batch: The number of batches that are done of the next epoch; 0 after
            `restore` on another number of ranks.

    Raises:
        TypeError: An argument has another type.
        ValueError: An argument is none of these, or the model has not been
            built.

    Example:

    ```python
    import keras
    import tensorflow as tf
    import tfring

    tfring.init()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    optimizer = tfring.DistributedOptimizer("adam")
    tfring.broadcast_variables(model.variables)
    checkpoint = tfring.Checkpoint("checkpoints", model, optimizer)
    checkpoint.restore()
    for epoch in range(checkpoint.epoch, 3):
        order = tf.data.Dataset.range(64).shuffle(64, seed=epoch).batch(8)
        for rows in order.skip(checkpoint.batch):
            features = tf.random.stateless_normal([8, 4], [0, rows[0]])
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(features) ** 2)
            weights = model.trainable_variables
            optimizer.apply(tape.gradient(loss, weights), weights)
            checkpoint.step()
        checkpoint.end_epoch()
    checkpoint.close()
    ```
    """

    def __init__(
        self,
        folder: str | Path,
        model: Any,
        optimizer: Any = None,
        *,
        variables: Iterable[Any] = (),
        every_steps: int | None = None,
        every_minutes: float | None = 10,
        keep: int = 3,
        on_signal: Sequence[str] = ("SIGTERM", "SIGUSR1"),
        resume: str = "auto",
        strict: bool = False,
        requeue: bool = False,
    ) -> None:
        self._saver = Saver(
            Settings(
                *(folder, every_steps, every_minutes, keep, on_signal),
                *(resume, strict, requeue),
            )
        )
        if not model.built:
            raise ValueError(
                "Checkpoint: the model must be built first. Give it an Input, "
                "or call model.build(input_shape)."
            )
        self._model = model
        self._optimizer = optimizer
        self._variables = list(variables)
        self._has_begun = False
        self.epoch = self.batch = 0

    def restore(self) -> bool:
        """Goes on from the newest checkpoint that is whole, and begins.

        Call it once before the loop, after a broadcast of variables.
        Collective.

        Returns:
            True if there was one.

        Raises:
            NotImplementedError: See `tfring.callbacks.Checkpoint`.
            RuntimeError: See `tfring.callbacks.Checkpoint`.
            ValueError: The checkpoint is of another training.
        """
        saved = self._saver.find()
        items = self._items(None if saved is None else saved.items())
        self._saver.begin(items, saved)
        self._has_begun = True
        if saved is None:
            return False
        place = saved.of_rank(runtime.rank(), "place")
        self.epoch = place["epoch"]
        is_same = saved.size == runtime.size()
        self.batch = place["batch"] if is_same else 0
        return True

    def step(self) -> None:
        """Counts a step, and saves if that is due. Collective.

        Raises:
            RuntimeError: `restore` has not been called; or, with `strict`, a
                checkpoint could not be written.
            SystemExit: A signal has asked for the end of the job.
        """
        self._check_has_begun("step")
        self.batch += 1
        self._saver.step += 1
        self._end_step(is_last=False)

    def end_epoch(self) -> None:
        """Counts an epoch, and saves if that is due. Collective.

        Raises:
            RuntimeError: See `step`.
            SystemExit: See `step`.
        """
        self._check_has_begun("end_epoch")
        self.epoch, self.batch = self.epoch + 1, 0
        self._end_step(is_last=True)

    def save(self) -> None:
        """Saves now, whether or not that is due. Collective."""
        self._check_has_begun("save")
        place = {"epoch": self.epoch, "batch": self.batch}
        self._saver.save(self._items(), place)

    def close(self) -> None:
        """Saves the last state, and waits until it is on the disk. Collective.

        Call it after the loop.
        """
        if not self._saver.is_saved():
            self.save()
        self._saver.wait()
        self._saver.close()

    def _end_step(self, *, is_last: bool) -> None:
        in_a_round = are_in_a_round(self._model.variables)
        self._saver.end_step(
            self.save, may_save=not in_a_round, is_last=is_last
        )

    def _check_has_begun(self, method: str) -> None:
        if not self._has_begun:
            raise RuntimeError(
                f"Checkpoint: call restore() once before {method}(), also "
                "where there is nothing to restore yet."
            )

    def _items(self, saved: Mapping[str, Any] | None = None) -> list[Item]:
        optimizers = built_optimizers(self._model, self._optimizer)
        return [
            *items_of_model(self._model, optimizers, saved),
            *items_of_variables(self._variables),
        ]
