"""fit: Keras's `fit`, continued when ranks are lost or join."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import keras

from tfring._core import runtime
from tfring._keras import sources
from tfring.elastic.checkpoints import Checkpoints
from tfring.elastic.progress import History
from tfring.elastic.running import run
from tfring.elastic.training import Callbacks, Training
from tfring.elastic.variables import KerasState


def fit(
    model: Any,
    x: Any,
    y: Any = None,
    *,
    batch_size: int | None = None,
    epochs: int = 1,
    shuffle: bool = True,
    seed: int = 0,
    callbacks: Callbacks | Callable[[], Callbacks] | None = None,
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

    A new start resets callbacks: `EarlyStopping` forgets earlier epochs, and
    the metrics of that epoch cover only its rest. Collective: every rank must
    call it.

    Args:
        model: A Keras model. It is compiled with a
            `tfring.DistributedOptimizer`, or its `train_step` uses a
            `DistributedGradientTape`.
        x: The inputs, in one of three forms. The first is an array, or a list
            or dict of arrays with equally many rows. The second is batches with
            their targets: a `keras.utils.PyDataset`, which each rank asks for
            its own batches; or a `tf.data.Dataset` of known cardinality, which
            every rank reads as a whole, and which must come in the same order
            on every rank and each time it is read. The third is a function that
            makes this rank's dataset of batches: it gets the epoch, and how
            many rows all ranks have taken of it. The guide on elastic training
            has an example.
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
    _check(options, batch_size, epochs, batches_per_commit)
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
    training = Training(
        model,
        sources.source(x, y, batch_size, seed if shuffle else None),
        state,
        checkpoints,
        epochs,
        batches_per_commit,
        verbose,
        options.pop("class_weight", None),
        options,
    )
    state.register_reset_callbacks(reset_callbacks)
    is_kept = keep_traces and state.traces_hold() and not model.run_eagerly
    if is_kept and runtime.is_beside():
        training.trace()

    @run
    def train(state: Any) -> dict[str, list[Any]]:
        made = callbacks() if callable(callbacks) else callbacks or ()
        _check_callbacks(made)
        with checkpoints.in_generation(made) as others:
            training.go_on(others)
        logs: History = state.history
        return logs.by_name()

    history: dict[str, list[Any]] = train(state)
    return history


def _check(
    options: Mapping[str, Any],
    batch_size: int | None,
    epochs: int,
    batches_per_commit: int,
) -> None:
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
    if min(batch_size or 1, epochs, batches_per_commit) < 1 or batch_size == 0:
        raise ValueError(
            "tfring.elastic.fit: batch_size, epochs and batches_per_commit "
            f"must be positive, got {batch_size}, {epochs} and "
            f"{batches_per_commit}."
        )


def _check_callbacks(callbacks: Callbacks) -> None:
    if any(
        isinstance(each, keras.callbacks.BackupAndRestore) for each in callbacks
    ):
        raise ValueError(
            "tfring.elastic.fit: BackupAndRestore would go back to its last "
            "epoch at each new start, and lose the steps since then. Take "
            "tfring.callbacks.Checkpoint, which a lost job goes on from."
        )
