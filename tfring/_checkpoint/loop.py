"""Checkpoints of a training loop of a user's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from absl import logging

from tfring._checkpoint.contents import (
    Item,
    built_optimizers,
    items_of_model,
    items_of_variables,
)
from tfring._checkpoint.restoring import Saved
from tfring._checkpoint.saver import Saver, Settings
from tfring._core import runtime
from tfring._keras import iterator_states
from tfring._state.kinds import open_rounds
from tfring._state.model_state import check_built

# The attribute of an elastic state that is the place in the data.
_PLACE = "tfring_checkpoint_place"


class Checkpoint:
    """Saves the state of a training loop periodically, and continues from it.

    This is `tfring.callbacks.Checkpoint` for a loop without `fit`, with the
    same files and rules. The loop keeps its own place in the data: it counts by
    `step` and `end_epoch`, and after `restore` it skips the first `batch`
    batches of `epoch`, whose order must be a function of the epoch. `taken` is
    a place for any number of ranks, for example for `tfring.data.shard(...,
    seed=epoch, skip=taken * batch_size)`.

    On the same number of ranks, `restore` moves a `tf.data.Iterator` to its
    place, even if its order has no seed. On another number of ranks the
    iterator stays where it is, and a warning says so.

    In a loop of `tfring.elastic.run` pass the state, and call `restore` in the
    function itself. The state then keeps the place, too. `step` and `end_epoch`
    commit it, so the loop needs no commits of its own.

    Args:
        folder: The folder, the same on all ranks.
        model: A Keras model that has been built.
        optimizer: Its optimizer; by default that of `model.compile`, and those
            in the model's attributes.
        variables: Further variables, equal on all ranks.
        every_steps: See `tfring.callbacks.Checkpoint`.
        every_minutes: See `tfring.callbacks.Checkpoint`.
        keep: See `tfring.callbacks.Checkpoint`.
        on_signal: See `tfring.callbacks.Checkpoint`.
        resume: See `tfring.callbacks.Checkpoint`.
        strict: See `tfring.callbacks.Checkpoint`.
        requeue: See `tfring.callbacks.Checkpoint`.
        iterator: This rank's iterator of a `tf.data.Dataset`, which is saved
            with the place; None if the loop finds the place by itself.
        state: The state of `tfring.elastic.run`, which has this model; None in
            other loops. Each worker must make it and this object before it
            calls the function.

    Attributes:
        epoch: The number of epochs that are done.
        batch: The number of batches that this rank has done of the next epoch;
            0 after `restore` on another number of ranks.
        taken: The number of batches that all ranks have done of it together.

    Raises:
        TypeError: An argument has another type.
        ValueError: An argument has an invalid value, the model has not been
            built, or both `iterator` and `state` are given.

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
        iterator: tf.data.Iterator | None = None,
        state: Any = None,
    ) -> None:
        self._saver = Saver(
            Settings(
                *(folder, every_steps, every_minutes, keep, on_signal),
                *(resume, strict, requeue),
            ),
            "a loop",
        )
        check_built(model, "Checkpoint")
        self._model = model
        self._optimizer = optimizer
        self._variables = list(variables)
        if not isinstance(iterator, tf.data.Iterator | None):
            raise TypeError(
                "Checkpoint: iterator must be the iterator of a "
                f"tf.data.Dataset, iter(dataset), got {iterator!r}."
            )
        if iterator is not None and state is not None:
            raise ValueError(
                "Checkpoint: in a loop of tfring.elastic.run the ranks change, "
                "and the place of an iterator is one rank's own. Leave "
                "iterator out, and find the place by `taken`."
            )
        self._iterator = iterator
        self._has_begun = False
        self.epoch = self.batch = self.taken = 0
        self._state = state
        if state is not None:
            if not hasattr(state, "_add"):
                raise TypeError(
                    "Checkpoint: state must be a state of tfring.elastic with "
                    f"attributes, such as TensorFlowKerasState, got {state!r}."
                )
            state._add(_PLACE, {})

    def restore(self) -> bool:
        """Restores the newest complete checkpoint, and starts saving.

        Call it once before the loop, after a broadcast of variables. In a
        function of `tfring.elastic.run` call it at each start: after a commit
        the place is that of the commit. Collective.

        Returns:
            True if there was a checkpoint, or a commit.

        Raises:
            NotImplementedError: See `tfring.callbacks.Checkpoint`; or the
                iterator has a state that TensorFlow cannot save.
            RuntimeError: See `tfring.callbacks.Checkpoint`; or it is called
                outside of the function.
            ValueError: The checkpoint is of another training, or of an iterator
                of another dataset.
        """
        if self._state is not None and self._state._commits < 0:
            raise RuntimeError(
                "Checkpoint: with a state, call restore() in the function of "
                "tfring.elastic.run."
            )
        self._has_begun = True
        if self._state is not None:
            self._saver.close()
            place = getattr(self._state, _PLACE)
            if self._state._commits > 0 and place:
                self._saver.go_on(self._items(), place["step"])
                self._take(place)
                return True
        self._iterator_state()  # Raises now if the state cannot be saved.
        saved = self._saver.find(is_elastic=self._state is not None)
        items = self._items(None if saved is None else saved.items())
        self._saver.begin(items, saved)
        self.epoch = self.batch = self.taken = 0
        if saved is not None:
            self._take(saved.own("place"))
            self._move_iterator(saved)
        self._note_place()
        return saved is not None

    def _iterator_state(self) -> tf.Tensor | None:
        if self._iterator is None:
            return None
        try:
            return iterator_states.state_of(self._iterator)
        except NotImplementedError as error:
            raise NotImplementedError(
                f"Checkpoint: the iterator cannot be saved: {error}. Leave "
                "iterator out, and skip the first `batch` batches of the epoch."
            ) from None

    def _move_iterator(self, saved: Saved) -> None:
        if self._iterator is None:
            return
        rank = runtime.rank()
        ranks = saved.ranks_with(iterator_states.KEY)
        if saved.size != runtime.size() or rank not in ranks:
            if rank == 0:
                logging.warning(
                    "tfring: the iterator stays at its beginning: %s has %d "
                    "iterators of %d ranks, and this job has %d ranks.",
                    *(saved.path, len(ranks), saved.size, runtime.size()),
                )
            return
        state = saved.read_variant(rank, iterator_states.KEY)
        try:
            iterator_states.restore(self._iterator, state)
        except ValueError as error:
            raise ValueError(
                f"Checkpoint: the iterator is of another dataset than that in "
                f"{saved.path}: {error}. Pass the same dataset, or leave "
                "iterator out."
            ) from None

    def _take(self, place: dict[str, Any]) -> None:
        self.epoch, self.taken = place["epoch"], place["taken"]
        is_same = place["size"] == runtime.size()
        self.batch = place["batch"] if is_same else 0

    def _note_place(self) -> None:
        """Makes the place a part of the state's next commit."""
        if self._state is not None:
            setattr(self._state, _PLACE, self._place())

    def _place(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "batch": self.batch,
            "taken": self.taken,
            "step": self._saver.step,
            "size": runtime.size(),
        }

    def step(self) -> None:
        """Counts a step, and saves if that is due. Collective.

        With a state it commits that.

        Raises:
            HostsUpdatedInterrupt: See `tfring.elastic.State.commit`.
            RuntimeError: `restore` has not been called; or, with `strict`, a
                checkpoint could not be written.
            SystemExit: A signal has asked for the end of the job.
        """
        self._check_has_begun("step")
        self.batch += 1
        self.taken += runtime.size()
        self._saver.step += 1
        self._end_step(is_last=False)

    def end_epoch(self) -> None:
        """Counts an epoch, and saves if that is due. Collective.

        With a state it commits that.

        Raises:
            HostsUpdatedInterrupt: See `tfring.elastic.State.commit`.
            RuntimeError: See `step`.
            SystemExit: See `step`.
        """
        self._check_has_begun("end_epoch")
        self.epoch, self.batch, self.taken = self.epoch + 1, 0, 0
        self._end_step(is_last=True)

    def save(self) -> None:
        """Saves now, whether or not that is due. Collective."""
        self._check_has_begun("save")
        self._saver.save(
            self._items(), self._place(), iterator=self._iterator_state()
        )

    def close(self) -> None:
        """Saves the last state, and waits until it is on the disk. Collective.

        Call it after the loop.
        """
        if not self._saver.is_saved():
            self.save()
        self._saver.wait()
        self._saver.close()

    def _end_step(self, *, is_last: bool) -> None:
        self._note_place()
        if self._state is not None:
            # Commit first, because a commit changes accumulated gradients.
            self._state.commit()
        in_a_round = bool(open_rounds(self._model.variables))
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
