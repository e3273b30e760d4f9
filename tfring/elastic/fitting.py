"""fit: Keras's `fit`, continued when ranks are lost or join."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfring._core import runtime
from tfring._keras import sources
from tfring._keras.metric_averages import MetricAverages
from tfring._keras.untuned import Untuned
from tfring.elastic.checkpoints import Checkpoints
from tfring.elastic.progress import History, Position, Progress, Rest
from tfring.elastic.running import run
from tfring.elastic.variables import KerasState

_Callbacks = Sequence[keras.callbacks.Callback]


def fit(
    model: Any,
    x: Any,
    y: Any = None,
    *,
    batch_size: int | None = None,
    epochs: int = 1,
    shuffle: bool = True,
    seed: int = 0,
    callbacks: _Callbacks | Callable[[], _Callbacks] | None = None,
    verbose: int | str = "auto",
    batches_per_commit: int = 1,
    reset_callbacks: Iterable[Callable[[], None]] = (),
    same_seeds: bool = False,
    keep_traces: bool = False,
    **options: Any,
) -> dict[str, list[Any]]:
    """Trains a model, and continues when ranks are lost or join.

    It is `run` around `model.fit`, with a state of the model, its optimizer,
    the epoch, and the place in the data. All ranks have the same data, in the
    same order; in each step they take those that are next: `batch_size` rows
    each, or a batch each. After a new start they shard the rest of the epoch
    again. Only the rows of the steps since the last commit are trained on twice
    in an epoch. Only the rows at its end that are too few for a step of all
    ranks are left out. The progress bar continues.

    With a `tfring.callbacks.Checkpoint` a job that is lost as a whole goes on,
    too, with any number of ranks.

    After a new start callbacks begin anew: `EarlyStopping` forgets earlier
    epochs, and the metrics of that epoch cover its rest alone. Collective:
    every rank must call it.

    Args:
        model: A Keras model. It is compiled with a
            `tfring.DistributedOptimizer`, or its `train_step` uses a
            `DistributedGradientTape`.
        x: The inputs: an array, or a list or dict of arrays, of as many rows.
            Or batches, with their targets: a `keras.utils.PyDataset`, which
            each rank asks for its own batches; or a `tf.data.Dataset` of known
            cardinality, which every rank reads as a whole, and which must come
            in the same order on every rank and each time it is read. Or a
            function that makes this rank's dataset of batches: it gets the
            epoch, and how many rows all ranks have taken of it. The guide on
            elastic training has an example.
        y: The targets, likewise, for arrays; or None.
        batch_size: The rows of each rank in a step: 32 for arrays. With a
            function, the rows of its batches; batches need none.
        epochs: How often to go through all data.
        shuffle: If true, each epoch shuffles the rows of arrays, or the batches
            of a `PyDataset` (its `on_epoch_end` is not called), alike on every
            rank. A `tf.data.Dataset` keeps its order.
        seed: The seed of these orders.
        callbacks: Keras callbacks, as for `model.fit`; or a function that makes
            them, which is called after each new start. Callbacks of rank 0
            alone need the function: with a list they are lost with that rank.
            A `tfring.callbacks.Checkpoint` is the first one that is made.
        verbose: See `model.fit`; on rank 0, and 0 elsewhere.
        batches_per_commit: How many steps there are from one commit to the
            next: as many are done again, at most, when a rank is lost. With
            `sync` of `tfring.DistributedOptimizer` a commit also waits for the
            end of a round.
        reset_callbacks: See `State.register_reset_callbacks`.
        same_seeds: See `TensorFlowKerasState`.
        keep_traces: See `TensorFlowKerasState`.
        **options: Further options of `model.fit`, such as `validation_data`.

    Returns:
        The logs of all epochs, like `History.history` of Keras; also of the
        epochs before this worker joined.

    Raises:
        TypeError: An option is one that `fit` decides itself, or the data
            cannot go on in the middle of an epoch, such as a generator.
        ValueError: There are less data than one step takes, their number is
            unknown, a number is not positive, or a callback is
            `keras.callbacks.BackupAndRestore`.

    Example:

    ```python
    import keras
    import numpy as np
    import tfring

    tfring.init()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(tfring.DistributedOptimizer(keras.optimizers.SGD()), "mse")
    x, y = np.ones((64, 4)), np.ones((64, 1))
    history = tfring.elastic.fit(
        model, x, y, batch_size=2, epochs=2, verbose=0)
    assert len(history["loss"]) == 2
    ```
    """
    for name in ("initial_epoch", "steps_per_epoch"):
        if name in options:
            raise TypeError(
                f"tfring.elastic.fit: {name} follows from the data and from "
                "what has been trained. Leave it out."
            )
    if "sample_weight" in options:
        raise TypeError(
            "tfring.elastic.fit: sample_weight is not taken. Pass batches that "
            "are tuples of inputs, targets and weights."
        )
    class_weight = options.pop("class_weight", None)
    if min(batch_size or 1, epochs, batches_per_commit) < 1 or batch_size == 0:
        raise ValueError(
            "tfring.elastic.fit: batch_size, epochs and batches_per_commit "
            f"must be positive, got {batch_size}, {epochs} and "
            f"{batches_per_commit}."
        )
    data = sources.source(x, y, batch_size, seed if shuffle else None)
    state: Any = KerasState(
        model,
        same_seeds=same_seeds,
        keep_traces=keep_traces,
        epoch=0,
        taken=0,
        logs={},
        history=History(),
        steps=0,
    )
    checkpoints = Checkpoints(state, epochs)
    state.register_reset_callbacks(reset_callbacks)
    is_kept = keep_traces and state.traces_hold() and not model.run_eagerly
    if is_kept and runtime.is_beside():
        _trace(model, data, class_weight)

    def train_with(made: _Callbacks) -> None:
        while state.epoch < epochs:
            rest = Rest(data, state.epoch, state.taken)
            if len(rest) == 0 and state.taken == 0:
                raise ValueError(
                    "tfring.elastic.fit: the data are no step of "
                    f"{runtime.size()} ranks, of which each takes "
                    f"{data.per_rank} {data.unit}. Take smaller batches."
                )
            for callback in made:
                if isinstance(callback, keras.callbacks.CSVLogger):
                    # A CSVLogger continues the file that any worker began.
                    callback.append |= state.epoch > 0
            position = Position(state, rest, batches_per_commit, checkpoints)
            if len(rest) == 0:  # What is left was a step of fewer ranks.
                _end_epoch(model, state, [*made, position], epochs, options)
                checkpoints.end_fit()
                continue
            progress = Progress(
                verbose, state.taken // rest.taken_in_step, epochs
            )
            model.fit(
                Untuned(rest, class_weight),
                # Keras wants epochs of one length, so the rest of this one has
                # a fit of its own.
                epochs=state.epoch + 1 if state.taken else epochs,
                initial_epoch=state.epoch,
                shuffle=False,
                verbose=0,
                callbacks=[progress, *made, position],
                **options,
            )
            checkpoints.end_fit()
            if model.stop_training:
                state.epoch = epochs
                state.commit()
        checkpoints.end()

    @run
    def train(state: Any) -> dict[str, list[Any]]:
        made = callbacks() if callable(callbacks) else callbacks or ()
        _check_callbacks(made)
        with checkpoints.in_generation(made) as others:
            train_with(others)
        logs: History = state.history
        return logs.by_name()

    history: dict[str, list[Any]] = train(state)
    return history


def _check_callbacks(callbacks: _Callbacks) -> None:
    if any(
        isinstance(each, keras.callbacks.BackupAndRestore) for each in callbacks
    ):
        raise ValueError(
            "tfring.elastic.fit: BackupAndRestore would go back to its last "
            "epoch at each new start, and lose the steps since then. Take "
            "tfring.callbacks.Checkpoint, which a lost job goes on from."
        )


def _trace(model: Any, data: sources.Source, class_weight: Any) -> None:
    """Traces the step, but does none, while nobody waits for this worker."""
    model.make_train_function()
    step = model.train_function

    def traced(iterator: Any) -> dict[str, Any]:
        # At its end the step asks whether the iterator had enough values.
        # Autograph would write files, which a killed worker leaves.
        with contextlib.suppress(tf.errors.OperatorNotAllowedInGraphError):
            tf.function(step, autograph=False).get_concrete_function(iterator)
        for _ in range(model.steps_per_execution):
            next(iterator, None)
        return {}

    model.train_function = traced
    try:
        # Keras takes the shapes of a dataset from its first two batches.
        first = Rest(data, 0, 0, most=max(2, model.steps_per_execution))
        if len(first) > 0:
            model.fit(Untuned(first, class_weight), shuffle=False, verbose=0)
    finally:
        model.train_function = step


def _end_epoch(
    model: Any,
    state: Any,
    callbacks: _Callbacks,
    epochs: int,
    options: dict[str, Any],
) -> None:
    """Ends an epoch if the rest is too short for a step of all ranks.

    The logs are from the last commit, so all ranks have the same.
    """
    logs = dict(state.logs)
    called = keras.callbacks.CallbackList(
        [each for each in callbacks if not isinstance(each, MetricAverages)],
        model=model,
        epochs=epochs,
        steps=1,  # `None` would mean an unknown number of steps.
        verbose=0,
    )
    called.on_train_begin()
    called.on_epoch_begin(state.epoch)
    validation = options.get("validation_data")
    if validation is not None and model._should_eval(
        state.epoch, options.get("validation_freq", 1)
    ):
        x, y, weights = keras.utils.unpack_x_y_sample_weight(validation)
        results = model.evaluate(
            x,
            y,
            sample_weight=weights,
            batch_size=options.get("validation_batch_size"),
            steps=options.get("validation_steps"),
            callbacks=called,
            return_dict=True,
            verbose=0,
        )
        logs |= {f"val_{name}": value for name, value in results.items()}
    called.on_epoch_end(state.epoch, logs)
    called.on_train_end(logs)
