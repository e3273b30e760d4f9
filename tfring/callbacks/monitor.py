"""A callback that reports how fast ranks train, and their delays."""

from __future__ import annotations

import os
import time
from typing import Any

import keras
import tensorflow as tf

from tfring._core import monitor, runtime
from tfring._ops.gather_json import gather_json


class MonitorCallback(keras.callbacks.Callback):
    """Shows a job to TensorBoard and Prometheus while it trains.

    At the end of each epoch rank 0 writes scalars to `log_dir`: the time of a
    step on the slowest rank, the bytes that a rank has brought to collectives
    in a step, how much of their time nothing waited for them (overlap), how
    late each rank has come to a collective on average, how long it has waited
    for its input in a step, reports of stalls, and how often the job has
    started again without a lost rank (generation).

    Each rank also counts its steps and their time for Prometheus, and serves
    them at `TFRING_METRICS_PORT`. With that setting, statistics of the engine
    count from `init` on, and otherwise from the beginning of training.

    Collective at the end of an epoch: pass it on every rank.

    Args:
        log_dir: The folder that TensorBoard reads; only rank 0's argument
            matters. Default: no scalars.

    Example:

    ```python
    model.fit(x, y, callbacks=[tfring.callbacks.MonitorCallback("logs")])
    ```

    Reference: docs/guides/watching.md has the names.
    """

    def __init__(self, log_dir: str | os.PathLike[str] | None = None) -> None:
        super().__init__()
        self._clock = time.perf_counter
        self._log_dir = None if log_dir is None else os.fspath(log_dir)
        self._writer: Any = None
        self._batch_began = (0, 0.0)
        self._before: dict[str, float] = {}

    def on_train_begin(self, logs: Any = None) -> None:
        monitor.start_counting()
        if self._log_dir is not None and runtime.rank() == 0:
            self._writer = tf.summary.create_file_writer(self._log_dir)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._before = _figures()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._batch_began = (batch, self._clock())

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        first, began = self._batch_began
        # With steps_per_execution this is more than one step.
        monitor.add_steps(batch - first + 1, self._clock() - began)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        now = _figures()
        own = {name: now[name] - self._before.get(name, 0) for name in now}
        everyones = gather_json(own, name="monitor/epoch")
        if self._writer is None:
            return
        with self._writer.as_default(step=epoch):
            for name, value in _scalars(everyones).items():
                tf.summary.scalar(f"tfring/{name}", value)
        self._writer.flush()

    def on_train_end(self, logs: Any = None) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _figures() -> dict[str, float]:
    """Returns statistics of this rank, which only grow."""
    totals = monitor.current()
    steps, step_seconds = monitor.steps()
    return {
        "steps": steps,
        "step_seconds": step_seconds,
        "requests": totals.requests,
        "negotiation_seconds": totals.negotiation_seconds,
        "input_seconds": totals.input_seconds,
        "tensor_bytes": totals.tensor_bytes,
        "running_seconds": totals.running_seconds,
        "exposed_seconds": totals.exposed_seconds,
        "stalls": totals.stalls,
    }


def _scalars(everyones: list[dict[str, float]]) -> dict[str, float]:
    """Returns the scalars of an epoch from the statistics of all ranks."""

    def in_a_step(value: float, of_rank: dict[str, float]) -> float:
        return value / max(of_rank["steps"], 1)

    waits = [
        each["negotiation_seconds"] / max(each["requests"], 1)
        for each in everyones
    ]
    running = sum(each["running_seconds"] for each in everyones)
    exposed = sum(each["exposed_seconds"] for each in everyones)
    scalars = {
        "step_seconds": max(
            in_a_step(each["step_seconds"], each) for each in everyones
        ),
        "bytes_per_step": max(
            in_a_step(each["tensor_bytes"], each) for each in everyones
        ),
        "overlap": 1 - exposed / running if running else 0.0,
        "stalls": float(sum(each["stalls"] for each in everyones)),
        "generation": float(monitor.generation()),
    }
    for rank, each in enumerate(everyones):
        scalars[f"late_seconds/rank_{rank}"] = max(waits) - waits[rank]
        scalars[f"input_seconds/rank_{rank}"] = in_a_step(
            each["input_seconds"], each
        )
    return scalars
