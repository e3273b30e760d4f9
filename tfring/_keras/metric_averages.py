"""Replaces each rank's metrics by metrics of all ranks' data."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfring._core.process_sets import (
    ProcessSet,
    global_process_set,
    is_alone,
)
from tfring._keras.metric_states import (
    State,
    consists_of_sums,
    float_or_array,
    in_shapes,
    metrics_of,
    set_state,
    state_of,
)
from tfring._ops.allgather import allgather
from tfring._ops.allreduce import allreduce
from tfring._ops.devices import on_device
from tfring._ops.gather_json import gather_json
from tfring._ops.reductions import ReduceOp


class MetricNotes(keras.callbacks.Callback):
    """Notes the metrics' states of an epoch, before another callback acts.

    Validation resets the metrics, and so does a callback that evaluates the
    model.
    """

    def __init__(self) -> None:
        super().__init__()
        self.of_training: State | None = None
        self.of_validation: State | None = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.of_training = self.of_validation = None

    def on_test_begin(self, logs: Any = None) -> None:
        self.note_training()

    def on_test_end(self, logs: Any = None) -> None:
        if self.of_validation is None:
            self.of_validation = state_of(self.model)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.note_training()

    def note_training(self) -> None:
        if self.of_training is None:
            self.of_training = state_of(self.model)


class MetricAverages(keras.callbacks.Callback):
    """Makes an epoch's logs cover all ranks' data for later callbacks.

    Args:
        device: The device that adds up the numbers.
        process_set: The ranks.
        strict: If True, all ranks must have the same metrics. If False, metrics
            that some rank lacks do not change.

    Attributes:
        notes: A callback that `fit` puts before all others. It notes each state
            once.
    """

    def __init__(
        self,
        device: str = "",
        process_set: ProcessSet = global_process_set,
        *,
        strict: bool,
    ) -> None:
        super().__init__()
        self.device = device
        self.notes = MetricNotes()
        self._process_set = process_set
        self._strict = strict

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        self.notes.set_model(model)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.notes.on_epoch_begin(epoch)

    def on_test_begin(self, logs: Any = None) -> None:
        self.notes.on_test_begin()

    def on_test_end(self, logs: Any = None) -> None:
        self.notes.on_test_end()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        # A rank without logs takes part, because other ranks may have logs.
        if not is_alone(self._process_set):
            with on_device(self.device):
                self._average({} if logs is None else logs)

    def _average(self, logs: Any) -> None:
        names, validated = self._of_all_ranks(
            {
                name: list(np.shape(value))
                for name, value in sorted(logs.items())
                if is_number(value)
            }
        )
        if not names:
            return
        self.notes.note_training()
        now = state_of(self.model)
        of_validation = [
            name for name in names if validated and name.startswith("val_")
        ]
        self._replace(logs, of_validation, "val_", self.notes.of_validation)
        of_training = [name for name in names if name not in of_validation]
        self._replace(logs, of_training, "", self.notes.of_training)
        set_state(self.model, now)

    def _replace(
        self, logs: Any, names: list[str], prefix: str, state: State | None
    ) -> None:
        """Replaces the values of `names`, which have a prefix, in the logs."""
        if not names or state is None:
            return
        set_state(self.model, state)
        own = self.model.get_metrics_result()
        samples = _samples(self.model)
        set_state(self.model, self._added_up(state))
        of_all = self.model.get_metrics_result()

        def value(name: str) -> Any:
            metric = name.removeprefix(prefix)
            logged = logs[name]
            # Keep a value that another callback has put into the logs. With
            # NumPy before 2.4 Keras logs an array of one element as a number.
            if metric in own and np.array_equal(
                np.ravel(own[metric]), np.ravel(logged)
            ):
                return np.reshape(of_all[metric], np.shape(logged))
            return logged

        averages = self._weighted_averages(
            [np.asarray(value(name), np.float64) for name in names], samples
        )
        logs.update(zip(names, averages, strict=True))

    def _added_up(self, state: State) -> State:
        """Returns the state that the metrics have after all ranks' samples."""
        is_sum = [
            consists_of_sums(metric)
            for metric in metrics_of(self.model)
            for _ in metric.variables
        ]
        own = [v for v, add in zip(state, is_sum, strict=True) if add]
        if not own:
            return state
        flat = np.concatenate([value.ravel() for value in own])
        sums = allreduce(
            tf.constant(flat, tf.float64),
            op=ReduceOp.Sum,
            name="metrics/state",
            process_set=self._process_set,
        ).numpy()
        added_up = iter(in_shapes(sums, [value.shape for value in own]))
        return [
            next(added_up) if add else value
            for value, add in zip(state, is_sum, strict=True)
        ]

    def _weighted_averages(
        self, values: list[np.ndarray[Any, Any]], samples: float
    ) -> list[Any]:
        """Returns averages: floats for numbers, float64 arrays for arrays."""
        flat = [np.ravel(value) for value in values]
        everyones = allgather(
            tf.constant([np.concatenate([[samples], *flat])], tf.float64),
            name="metrics/values",
            process_set=self._process_set,
        ).numpy()
        weights = everyones[:, 0]
        if not weights.any():  # a `train_step` that counts nothing
            weights = np.ones_like(weights)
        of_ranks = everyones[weights > 0, 1:]
        averages = np.average(of_ranks, axis=0, weights=weights[weights > 0])
        shapes = [value.shape for value in values]
        return list(map(float_or_array, in_shapes(averages, shapes)))

    def _of_all_ranks(
        self, shapes: dict[str, list[int]]
    ) -> tuple[list[str], bool]:
        """Returns the names that all ranks have, and if all have validated.

        Args:
            shapes: The shapes of this rank's numbers, by sorted name.
        """
        # Validation on rank 0 alone is a common mistake, and averaging by
        # position would hide it.
        of_rank = gather_json(
            [shapes, self.notes.of_validation is not None],
            name="metrics/names",
            process_set=self._process_set,
        )
        everyones = [of_one for of_one, _ in of_rank]
        for rank, others in enumerate(everyones):
            if self._strict and others != everyones[0]:
                raise ValueError(
                    "MetricAverageCallback: the ranks have different metrics. "
                    f"Rank 0 has {_named(everyones[0])}; rank {rank} has "
                    f"{_named(others)}. Give every rank the same metrics and "
                    "validation data."
                )
        names = [
            name
            for name, shape in shapes.items()
            if all(others.get(name) == shape for others in everyones)
        ]
        return names, all(validated for _, validated in of_rank)


def is_number(value: Any) -> bool:
    """Tells whether a value of the logs is a number, or an array of numbers."""
    try:
        dtype = tf.as_dtype(np.asarray(value).dtype)
    except Exception:  # any class may raise anything
        return False
    return bool(dtype.is_floating or dtype.is_integer)


def _named(shapes: dict[str, list[int]]) -> str:
    return ", ".join(
        f"'{name}'" + (f" {tuple(shape)}" if shape else "")
        for name, shape in shapes.items()
    )


def _samples(model: Any) -> float:
    """Returns how many samples the state of the metrics has seen."""
    for metric in model.metrics:
        if metric.name == "loss" and isinstance(metric, keras.metrics.Mean):
            return float(metric.count)
    return 0.0
