"""Callbacks that set the learning rate: schedules and warm-up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from tfring._core import runtime
from tfring._keras.epochs import STEPS_BEFORE


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Sets the learning rate to `initial_lr * multiplier` in some epochs.

    Args:
        initial_lr: The learning rate to multiply, after scaling it by the
            number of ranks if you do.
        multiplier: A function of the epoch, or a number: the decay from one
            epoch to the next, `multiplier ** (epoch - start_epoch)`.
        start_epoch: The callback's first epoch, counted from 0.
        end_epoch: The epoch after the callback's last one; by default there is
            none.
        staircase: If true, the learning rate changes only at the beginning of
            an epoch. Otherwise it changes before every batch, and `multiplier`
            is given a fractional epoch.
        momentum_correction: If true, the velocities of SGD and RMSprop, which
            contain the learning rate, are scaled along with it.
        steps_per_epoch: Batches of an epoch on this rank; needed only with
            `staircase=False` and a dataset of unknown length.

    Raises:
        ValueError: When training starts, if the optimizer's learning rate
            cannot be set because it is a schedule or there are several, or if
            `steps_per_epoch` is missing.

    Example:

    ```python
    model.fit(x, y, epochs=90, callbacks=[
        tfring.callbacks.LearningRateWarmupCallback(0.1 * tfring.size()),
        tfring.callbacks.LearningRateScheduleCallback(
            0.1 * tfring.size(), lambda epoch: 0.1 ** (epoch // 30),
            start_epoch=5)])
    ```

    Reference: [Goyal et al., 2017](https://arxiv.org/abs/1706.02677).
    """

    _log_name = "learning_rate"

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        self.initial_lr = initial_lr
        self.multiplier = (
            multiplier
            if callable(multiplier)
            else lambda epoch: multiplier ** (epoch - start_epoch)
        )
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self._epoch = 0
        # set when training begins
        self._epochs_per_batch = 0.0
        self._steps_before = 0

    def on_train_begin(self, logs: Any = None) -> None:
        rate = getattr(self.model.optimizer, "learning_rate", None)
        if not hasattr(rate, "assign"):
            raise ValueError(
                f"{type(self).__name__} sets the optimizer's learning rate, "
                f"and that of {type(self.model.optimizer).__name__} cannot be "
                "set: it is a LearningRateSchedule, or there are several. "
                "Create the optimizer with a float learning_rate."
            )
        if not self.staircase:
            steps = self.steps_per_epoch or self.params.get("steps")
            if not steps:
                raise ValueError(
                    f"{type(self).__name__} cannot tell how many batches an "
                    "epoch has. Pass steps_per_epoch to it."
                )
            self._steps_before = self.params.get(STEPS_BEFORE, 0)
            if not self.steps_per_epoch:
                steps += self._steps_before
            self._epochs_per_batch = 1 / steps

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._epoch < self.start_epoch:
            return
        if self.end_epoch is not None and self._epoch >= self.end_epoch:
            return
        if not self.staircase:
            self._set_learning_rate(
                self._epoch
                + (self._steps_before + batch) * self._epochs_per_batch
            )
        elif batch == 0:
            self._set_learning_rate(self._epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if logs is not None:
            logs[self._log_name] = float(self.model.optimizer.learning_rate)

    def _set_learning_rate(self, epoch: float) -> None:
        optimizer = self.model.optimizer
        before = float(optimizer.learning_rate)
        optimizer.learning_rate = self.initial_lr * self.multiplier(epoch)
        after = float(optimizer.learning_rate)
        if self.momentum_correction and before > 0 and after != before:
            for velocity in self._velocities(optimizer):
                velocity.assign(velocity * (after / before))

    def _velocities(self, optimizer: Any) -> list[Any]:
        """Returns the slot variables that sum gradients times learning rates.

        The next step adds a gradient times the *new* rate to a velocity built
        with the old one. Goyal et al. correct the momentum of that step for it;
        scaling the velocity is the same, and unlike Keras's momentum, a number
        that is traced into the step, it can be done.
        """
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        velocities: list[Any] = []
        if isinstance(optimizer, keras.optimizers.SGD):
            velocities = getattr(optimizer, "momentums", [])
        elif isinstance(optimizer, keras.optimizers.RMSprop):
            velocities = getattr(optimizer, "_momentums", [])
        return [velocity for velocity in velocities if velocity is not None]


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from `initial_lr / size` to `initial_lr`.

    A large batch needs a large learning rate, which is harmful in the first
    epochs. So the learning rate grows linearly with every batch, up to
    `initial_lr` at the end of the last epoch of the warm-up.

    Args:
        initial_lr: The learning rate after the warm-up: the one scaled by
            `tfring.size()`.
        warmup_epochs: How many epochs the warm-up takes.
        momentum_correction: As for `LearningRateScheduleCallback`.
        steps_per_epoch: As for `LearningRateScheduleCallback`.
        verbose: 1 prints a line on rank 0 when the warm-up is over.

    Raises:
        ValueError: As for `LearningRateScheduleCallback`.

    Example:

    ```python
    model.fit(x, y, callbacks=[
        tfring.callbacks.LearningRateWarmupCallback(1e-3 * tfring.size())])
    ```

    Reference: [Goyal et al., 2017](https://arxiv.org/abs/1706.02677).
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            # The last batch of the warm-up already has the full rate.
            done = (epoch + self._epochs_per_batch) / warmup_epochs
            return (1 + done * (runtime.size() - 1)) / runtime.size()

        super().__init__(
            initial_lr,
            multiplier,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        if self.verbose and epoch + 1 == self.end_epoch and runtime.rank() == 0:
            rate = float(self.model.optimizer.learning_rate)
            print(f"\nEpoch {epoch + 1}: learning rate warmed up to {rate:g}.")
