"""fit: Keras's `fit` that goes on when ranks are lost, or join."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np

from tfring._core import runtime
from tfring.elastic.running import run
from tfring.elastic.variables import KerasState


def fit(
    model: Any,
    x: Any,
    y: Any = None,
    *,
    batch_size: int = 32,
    epochs: int = 1,
    shuffle: bool = True,
    seed: int = 0,
    callbacks: Sequence[keras.callbacks.Callback] | None = None,
    verbose: int | str = "auto",
    batches_per_commit: int = 1,
    reset_callbacks: Iterable[Callable[[], None]] = (),
    same_seeds: bool = False,
    **options: Any,
) -> dict[str, list[float]]:
    """Trains a model, and goes on where it was when ranks are lost or join.

    It is `run` around `model.fit`, with a state of the model, its optimizer,
    the epoch, and the place in the data. All ranks have the same data, in the
    same order; in each step they take `batch_size` rows each of those that are
    next. After a new start they share out what is left of the epoch anew,
    however many they are: no row is trained on twice in an epoch but those of
    the steps since the last commit, and none is left out but the last ones that
    make no step for all ranks. The progress bar goes on, too.

    After a new start, callbacks begin as at the beginning of training, on which
    `EarlyStopping` forgets what it has seen, and the metrics of that epoch are
    those of what was left of it. Collective: every rank must call it.

    Args:
        model: A Keras model, compiled with a `tfring.DistributedOptimizer`, or
            whose `train_step` uses a `DistributedGradientTape`.
        x: The inputs: an array, or a list or dict of arrays, of as many rows.
        y: The targets, likewise; or None.
        batch_size: The rows of each rank in a step.
        epochs: How often to go through all rows.
        shuffle: If true, the rows come in another order in each epoch, the same
            on every rank.
        seed: Of these orders.
        callbacks: Keras callbacks, as for `model.fit`.
        verbose: As for `model.fit`; on rank 0, and 0 elsewhere.
        batches_per_commit: How many steps there are from one commit to the
            next: as many are done again, at most, when a rank is lost.
        reset_callbacks: See `State.register_reset_callbacks`.
        same_seeds: See `TensorFlowKerasState`.
        **options: What else `model.fit` takes, such as `validation_data`.

    Returns:
        The logs of all epochs, as `history` of what `model.fit` returns; of
        epochs that were over before this worker joined, too.

    Raises:
        TypeError: An option is one that `fit` decides itself.
        ValueError: There are fewer rows than one step takes, or a number is
            not positive.

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
    if min(batch_size, epochs, batches_per_commit) < 1:
        raise ValueError(
            "tfring.elastic.fit: batch_size, epochs and batches_per_commit "
            f"must be positive, got {batch_size}, {epochs} and "
            f"{batches_per_commit}."
        )
    data = _Data(x, y, batch_size, seed if shuffle else None)
    state: Any = KerasState(
        model, same_seeds=same_seeds, epoch=0, row=0, history={}
    )
    state.register_reset_callbacks(reset_callbacks)

    @run
    def train(state: Any) -> None:
        while state.epoch < epochs:
            batches = data.batches(state.epoch, state.row)
            if batches == 0 and state.row == 0:
                raise ValueError(
                    f"tfring.elastic.fit: {data.rows} rows are no step of "
                    f"{runtime.size()} ranks with batch_size={batch_size}. "
                    "Take a smaller one."
                )
            if batches == 0:  # Of the last ones, with fewer ranks before.
                state.epoch, state.row = state.epoch + 1, 0
                continue
            rest = _Rest(data, state.epoch, state.row)
            position = _Position(state, rest, batches_per_commit)
            done = state.row // data.step_rows
            model.fit(
                rest,
                # The rest of an epoch is shorter than the others.
                epochs=state.epoch + 1 if state.row else epochs,
                initial_epoch=state.epoch,
                shuffle=False,
                verbose=0,
                callbacks=[
                    _Progress(verbose, done, epochs),
                    *(callbacks or ()),
                    position,
                ],
                **options,
            )
            if model.stop_training:
                state.epoch = epochs
                state.commit()

    train(state)
    return {name: list(values) for name, values in state.history.items()}


class _Data:
    """The rows of all ranks, in the order of each epoch."""

    def __init__(
        self, x: Any, y: Any, batch_size: int, seed: int | None
    ) -> None:
        self._parts = (x,) if y is None else (x, y)
        counts = {len(part) for part in keras.tree.flatten(self._parts)}
        if len(counts) != 1:
            raise ValueError(
                "tfring.elastic.fit: x and y must have as many rows, got "
                f"{sorted(counts)}."
            )
        [self.rows] = counts
        self._batch_size = batch_size
        self._seed = seed

    @property
    def step_rows(self) -> int:
        """The rows of all ranks in a step."""
        return self._batch_size * runtime.size()

    def order(self, epoch: int) -> Any:
        """The rows of an epoch, in their order."""
        if self._seed is None:
            return np.arange(self.rows)
        generator = np.random.default_rng([self._seed, epoch])
        return generator.permutation(self.rows)

    def batches(self, epoch: int, row: int) -> int:
        """How many steps of all ranks are left from a row of an epoch on."""
        return (self.rows - row) // self.step_rows

    def batch(self, order: Any, row: int) -> tuple[Any, ...]:
        """This rank's part of the step that begins at a row of the order."""
        first, last = row + runtime.rank(), row + self.step_rows
        own = order[first : last : runtime.size()]
        parts: tuple[Any, ...] = keras.tree.map_structure(
            lambda part: part[own], self._parts
        )
        return parts


class _Rest(keras.utils.PyDataset):
    """This rank's batches from a row of an epoch on, and of those after it."""

    def __init__(self, data: _Data, epoch: int, row: int) -> None:
        super().__init__()
        self._data = data
        self._epoch = epoch
        self._row = row
        self._count = data.batches(epoch, row)
        # The job may have another size when this one is still asked.
        self.step_rows = data.step_rows
        self._order = data.order(epoch)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return self._data.batch(self._order, self._row + index * self.step_rows)

    def begin(self, epoch: int) -> None:
        """Goes on to an epoch; Keras says `on_epoch_end` twice after some."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = self._data.order(epoch)


class _Position(keras.callbacks.Callback):
    """Keeps the place in the data and the logs in the state, and commits it."""

    def __init__(
        self, state: Any, rest: _Rest, batches_per_commit: int
    ) -> None:
        super().__init__()
        self._state = state
        self._rest = rest
        self._batches_per_commit = batches_per_commit
        self._batches = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._rest.begin(epoch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._state.row += self._rest.step_rows
        self._batches += 1
        # The end of the epoch, with its logs, belongs to its last step.
        if (
            batch + 1 < self.params["steps"]
            and self._batches % self._batches_per_commit == 0
        ):
            self._state.commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        for name, value in (logs or {}).items():
            self._state.history.setdefault(name, []).append(float(value))
        self._state.epoch, self._state.row = epoch + 1, 0
        self._state.commit()


class _Progress(keras.callbacks.ProgbarLogger):
    """Keras's progress bar on rank 0, which begins where an epoch was."""

    def __init__(self, verbose: int | str, done: int, epochs: int) -> None:
        super().__init__()
        self._shown = verbose if runtime.rank() == 0 else 0
        self._done = done
        self._all_epochs = epochs

    def set_params(self, params: Any) -> None:
        super().set_params({**params, "verbose": self._shown})
        self.epochs = self._all_epochs
        if params.get("steps") is not None:
            self.target = params["steps"] + self._done

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        super().on_train_batch_end(batch + self._done, logs)
