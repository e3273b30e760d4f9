"""Metrics of all ranks' data, in place of each rank's own."""

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
from tfring._ops.agreement import gather_json
from tfring._ops.allgather import allgather
from tfring._ops.allreduce import allreduce
from tfring._ops.devices import on_device
from tfring._ops.reductions import ReduceOp
from tfring._training.metric_states import (
    State,
    consists_of_sums,
    metrics_of,
    set_state,
    state_of,
)


class MetricAverages(keras.callbacks.Callback):
    """Has the logs of an epoch tell of all ranks' data, for who comes after it.

    Args:
        device: Where numbers are added up.
        process_set: The ranks.
        strict: If True, all ranks must have the same metrics. If not, those
            that some rank lacks remain as they are.
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
        self._process_set = process_set
        self._strict = strict
        # Validation resets the metrics; so they are noted before and after.
        self._of_training: State | None = None
        self._of_validation: State | None = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._of_training = self._of_validation = None

    def on_test_begin(self, logs: Any = None) -> None:
        self._of_training = state_of(self.model)

    def on_test_end(self, logs: Any = None) -> None:
        self._of_validation = state_of(self.model)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        # Also without logs, as other ranks may have some.
        if not is_alone(self._process_set):
            with on_device(self.device):
                self._average({} if logs is None else logs)

    def _average(self, logs: Any) -> None:
        names = sorted(
            name
            for name, value in logs.items()
            if isinstance(value, float | np.floating)
        )
        names = self._of_all_ranks(names)
        if not names:
            return
        now = state_of(self.model)
        of_validation = []
        if self._of_validation is not None:
            of_validation = [name for name in names if name.startswith("val_")]
        if of_validation and self._of_validation is not None:
            self._replace(logs, of_validation, "val_", self._of_validation)
        of_training = [name for name in names if name not in of_validation]
        self._replace(logs, of_training, "", self._of_training or now)
        set_state(self.model, now)

    def _replace(
        self, logs: Any, names: list[str], prefix: str, state: State
    ) -> None:
        """Replaces the values of `names`, which have a prefix, in the logs."""
        set_state(self.model, state)
        own = self.model.get_metrics_result()
        samples = _samples(self.model)
        set_state(self.model, self._added_up(state))
        of_all = self.model.get_metrics_result()

        def value(name: str) -> float:
            metric = name.removeprefix(prefix)
            # Unless the logs have it from another source.
            if metric in own and float(own[metric]) == logs[name]:
                return float(of_all[metric])
            return float(logs[name])

        averages = self._weighted_average(
            [value(name) for name in names], samples
        )
        logs.update(zip(names, averages, strict=True))

    def _added_up(self, state: State) -> State:
        """The state that the metrics have after all ranks' samples."""
        is_sum = [
            consists_of_sums(metric)
            for metric in metrics_of(self.model)
            for _ in metric.variables
        ]
        own = [v.ravel() for v, add in zip(state, is_sum, strict=True) if add]
        if not own:
            return state
        sums = allreduce(
            tf.constant(np.concatenate(own), tf.float64),
            op=ReduceOp.Sum,
            name="metrics/state",
            process_set=self._process_set,
        ).numpy()
        result = []
        for value, add in zip(state, is_sum, strict=True):
            if add:
                own_sums, sums = np.split(sums, [value.size])
                value = own_sums.reshape(value.shape)
            result.append(value)
        return result

    def _weighted_average(
        self, values: list[float], samples: float
    ) -> list[float]:
        everyones = allgather(
            tf.constant([[samples, *values]], tf.float64),
            name="metrics/values",
            process_set=self._process_set,
        ).numpy()
        weights = everyones[:, 0]
        if not weights.any():
            weights = np.ones_like(
                weights
            )  # a `train_step` that counts nothing
        of_ranks = everyones[weights > 0, 1:]
        averages = np.average(of_ranks, axis=0, weights=weights[weights > 0])
        return [float(average) for average in averages]

    def _of_all_ranks(self, names: list[str]) -> list[str]:
        # Validation on rank 0 alone is a common mistake, and averaging by
        # position would hide it.
        of_rank = gather_json(
            names, name="metrics/names", process_set=self._process_set
        )
        for rank, others in enumerate(of_rank):
            if self._strict and others != of_rank[0]:
                raise ValueError(
                    "MetricAverageCallback: the ranks have different metrics. "
                    f"Rank 0 has {of_rank[0]}; rank {rank} has {others}. Give "
                    "every rank the same metrics and validation data."
                )
        return sorted(set(names).intersection(*of_rank))


def _samples(model: Any) -> float:
    """Returns how many samples the state of the metrics has seen."""
    for metric in model.metrics:
        if metric.name == "loss" and isinstance(metric, keras.metrics.Mean):
            return float(metric.count)
    return 0.0
