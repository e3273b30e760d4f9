"""The training of `fit`, which each new start continues."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfring._core import runtime
from tfring._keras import sources
from tfring._keras.metric_averages import MetricAverages
from tfring._keras.untuned import Untuned
from tfring.elastic.checkpoints import Checkpoints
from tfring.elastic.progress import Position, Progress, Rest

Callbacks = Sequence[keras.callbacks.Callback]


@dataclasses.dataclass(frozen=True)
class Training:
    """A model with its data and the options of `fit`.

    Attributes:
        model: The model.
        data: The data of all ranks.
        state: The elastic state, which has the epoch and the place in the data.
        checkpoints: Saves the training.
        epochs: How often to go through the data.
        batches_per_commit: The steps from one commit to the next.
        verbose: The `verbose` of the progress bar.
        class_weight: The option of `model.fit`.
        options: Further options of `model.fit`.
    """

    model: Any
    data: sources.Source
    state: Any
    checkpoints: Checkpoints
    epochs: int
    batches_per_commit: int
    verbose: int | str
    class_weight: Any
    options: dict[str, Any]

    def trace(self) -> None:
        """Traces the step without running it, while the other ranks train."""
        model = self.model
        model.make_train_function()
        step = model.train_function

        def traced(iterator: Any) -> dict[str, Any]:
            # At its end the step asks whether the iterator had enough values.
            # Autograph would write files, which a killed worker leaves.
            with contextlib.suppress(tf.errors.OperatorNotAllowedInGraphError):
                tf.function(step, autograph=False).get_concrete_function(
                    iterator
                )
            for _ in range(model.steps_per_execution):
                next(iterator, None)
            return {}

        model.train_function = traced
        try:
            # Keras takes the shapes of a dataset from its first two batches.
            most = max(2, model.steps_per_execution)
            first = Rest(self.data, 0, 0, most=most)
            if len(first) > 0:
                model.fit(
                    Untuned(first, self.class_weight), shuffle=False, verbose=0
                )
        finally:
            model.train_function = step

    def go_on(self, callbacks: Callbacks) -> None:
        """Trains until the last epoch has ended. Collective.

        Raises:
            ValueError: The data are too few for a step of all ranks.
        """
        while self.state.epoch < self.epochs:
            self._fit(callbacks)
            self.checkpoints.end_fit()
        self.checkpoints.end()

    def _fit(self, callbacks: Callbacks) -> None:
        """Trains for the rest of an epoch that has begun, or for all epochs."""
        state = self.state
        rest = Rest(self.data, state.epoch, state.taken)
        if len(rest) == 0 and state.taken == 0:
            raise ValueError(
                "tfring.elastic.fit: the data are no step of "
                f"{runtime.size()} ranks, of which each takes "
                f"{self.data.per_rank} {self.data.unit}. Take smaller batches."
            )
        for callback in callbacks:
            if isinstance(callback, keras.callbacks.CSVLogger):
                # A CSVLogger continues the file that any worker began.
                callback.append |= state.epoch > 0
        position = Position(
            state, rest, self.batches_per_commit, self.checkpoints
        )
        if len(rest) == 0:  # What is left was a step of fewer ranks.
            self._end_epoch([*callbacks, position])
            return
        done = state.taken // rest.taken_in_step
        self.model.fit(
            Untuned(rest, self.class_weight),
            # Keras wants epochs of one length, so the rest of this one has a
            # fit of its own.
            epochs=state.epoch + 1 if state.taken else self.epochs,
            initial_epoch=state.epoch,
            shuffle=False,
            verbose=0,
            callbacks=[
                Progress(self.verbose, done, self.epochs),
                *callbacks,
                position,
            ],
            **self.options,
        )
        if self.model.stop_training:
            state.epoch = self.epochs
            state.commit()

    def _end_epoch(self, callbacks: Callbacks) -> None:
        """Ends an epoch if the rest is too short for a step of all ranks.

        The logs are from the last commit, so all ranks have the same.
        """
        logs = dict(self.state.logs)
        epoch = self.state.epoch
        called = keras.callbacks.CallbackList(
            [
                each
                for each in callbacks
                if not isinstance(each, MetricAverages)
            ],
            model=self.model,
            epochs=self.epochs,
            steps=1,  # `None` would mean an unknown number of steps.
            verbose=0,
        )
        called.on_train_begin()
        called.on_epoch_begin(epoch)
        validation = self.options.get("validation_data")
        if validation is not None and self.model._should_eval(
            epoch, self.options.get("validation_freq", 1)
        ):
            x, y, weights = keras.utils.unpack_x_y_sample_weight(validation)
            results = self.model.evaluate(
                x,
                y,
                sample_weight=weights,
                batch_size=self.options.get("validation_batch_size"),
                steps=self.options.get("validation_steps"),
                callbacks=called,
                return_dict=True,
                verbose=0,
            )
            logs |= {f"val_{name}": value for name, value in results.items()}
        called.on_epoch_end(epoch, logs)
        called.on_train_end(logs)
