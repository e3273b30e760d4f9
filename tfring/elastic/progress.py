"""How far `fit` is: the rest of its data, its logs, and their commits."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import keras

from tfring._core import runtime
from tfring._keras import sources
from tfring._keras.epochs import STEPS_BEFORE
from tfring._keras.metric_states import float_or_array
from tfring.elastic.checkpoints import Checkpoints


class History:
    """The logs of the epochs that have ended.

    Each commit copies it. Ended epochs do not change, so all copies share one
    list, of which each has the first `_count`.
    """

    def __init__(self, epochs: Iterable[dict[str, Any]] = ()) -> None:
        self._epochs = list(epochs)
        self._count = len(self._epochs)

    def append(self, logs: dict[str, Any]) -> None:
        # Epochs after the commit that was restored are trained again.
        self._epochs[self._count :] = [logs]
        self._count += 1

    def epochs(self) -> list[dict[str, Any]]:
        """Returns the logs of each epoch."""
        return self._epochs[: self._count]

    def replace(self, epochs: Iterable[dict[str, Any]]) -> None:
        """Takes the logs of epochs of an earlier job."""
        self._epochs = list(epochs)
        self._count = len(self._epochs)

    def by_name(self) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        for logs in self.epochs():
            for name, value in logs.items():
                found.setdefault(name, []).append(value)
        return found

    def __deepcopy__(self, memo: dict[int, Any]) -> History:
        copied = History()
        copied._epochs, copied._count = self._epochs, self._count
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        return History, (self.epochs(),)


class Rest(keras.utils.PyDataset):
    """This rank's batches from a place in an epoch on, and of later ones."""

    def __init__(
        self,
        data: sources.Source,
        epoch: int,
        taken: int,
        most: int | None = None,
    ) -> None:
        super().__init__(**data.loading)
        # The job may have another size by the time this dataset is read.
        rank, size = runtime.rank(), runtime.size()
        self._rest_of = functools.partial(data.rest, rank, size)
        # How far a step of all ranks moves the place in the data.
        self.taken_in_step = data.per_rank * size
        self._epoch = epoch
        self._rest = self._rest_of(epoch, taken)
        if most is not None:
            self._rest = self._rest._replace(steps=min(most, self._rest.steps))

    def __len__(self) -> int:
        return self._rest.steps

    def __getitem__(self, index: int) -> Any:
        return self._rest.batch(index)

    def begin(self, epoch: int) -> None:
        """Goes on to an epoch; Keras says `on_epoch_end` twice after some."""
        if epoch == self._epoch:
            return
        rest = self._rest_of(epoch, 0)
        if rest.steps != len(self):
            raise ValueError(
                f"tfring.elastic.fit: epoch {epoch} has {rest.steps} steps, "
                f"and the one before {len(self)}. Give all epochs equally many."
            )
        self._epoch, self._rest = epoch, rest


class Position(keras.callbacks.Callback):
    """Keeps the place in the data and the logs in the state, and saves it."""

    def __init__(
        self,
        state: Any,
        rest: Rest,
        batches_per_commit: int,
        checkpoints: Checkpoints,
    ) -> None:
        super().__init__()
        self._state = state
        self._rest = rest
        self._batches_per_commit = batches_per_commit
        self._checkpoints = checkpoints
        # The rows of this epoch that were taken before this `fit`.
        self._taken_before = 0
        # The steps of this `fit` in the epoch: all, and those committed.
        self._steps = self._committed_steps = 0

    def on_train_begin(self, logs: Any = None) -> None:
        self._checkpoints.begin_fit()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._rest.begin(epoch)
        self._taken_before = self._state.taken
        self._steps = self._committed_steps = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # Keras calls this once for several steps per execution.
        steps = min(batch + 1, len(self._rest))
        self._state.taken = (
            self._taken_before + steps * self._rest.taken_in_step
        )
        # The end of the epoch, with its logs, belongs to its last step.
        may_save = steps < len(self._rest) and not self._state._is_in_a_round()
        self._checkpoints.count(steps - self._steps)
        self._steps = steps
        if (
            may_save
            and steps - self._committed_steps >= self._batches_per_commit
        ):
            self._committed_steps = steps
            self._state.logs = _as_values(logs)
            self._state.commit()
        # Commit first, because a commit changes accumulated gradients.
        self._checkpoints.end_step(
            self._state.taken // self._rest.taken_in_step,
            lambda: _as_values(logs),
            may_save=may_save,
        )

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._state.history.append(_as_values(logs))
        self._state.epoch, self._state.taken = epoch + 1, 0
        self._state.commit()
        self._checkpoints.end_step(
            0, dict, may_save=not self._state._is_in_a_round(), is_last=True
        )


def _as_values(logs: Any) -> dict[str, Any]:
    return {name: float_or_array(value) for name, value in (logs or {}).items()}


class Progress(keras.callbacks.ProgbarLogger):
    """Keras's progress bar on rank 0, which continues an epoch's bar."""

    def __init__(self, verbose: int | str, done: int, epochs: int) -> None:
        super().__init__()
        self._shown = verbose if runtime.rank() == 0 else 0
        self._done = done
        self._all_epochs = epochs

    def set_params(self, params: Any) -> None:
        # All callbacks share this dictionary.
        params[STEPS_BEFORE] = self._done
        super().set_params(
            {
                **params,
                "verbose": self._shown,
                "epochs": self._all_epochs,
                "steps": params["steps"] + self._done,
            }
        )

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        super().on_train_batch_end(batch + self._done, logs)
