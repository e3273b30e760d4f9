"""State that is committed, restored and shared with all ranks."""

from __future__ import annotations

import copy
import enum
import queue
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from tfring._core import runtime
from tfring._core.errors import HostsUpdatedInterrupt
from tfring.elastic.termination import leave_if_asked


class HostUpdateResult(enum.IntFlag):
    """Changes of the hosts; see `State.on_hosts_updated`."""

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added


class LostStateError(RuntimeError):
    """The ranks that are left cannot put the last commit together."""


class State:
    """Base class of the state that `run` saves, restores and shares.

    Subclasses have `save`, `restore` and `sync`, and may have `reset`.

    Args:
        bcast_object: A function that gives every rank rank 0's object.
        get_rank: Ignored; Horovod has this argument.
    """

    def __init__(
        self,
        bcast_object: Callable[[Any], Any],
        get_rank: Callable[[], int] | None = None,
    ) -> None:
        self._bcast_object = bcast_object
        # A SimpleQueue, because a signal handler may put into it.
        self._updates: queue.SimpleQueue[tuple[float, int]] = (
            queue.SimpleQueue()
        )
        self._last_update = 0.0
        self._reset_callbacks: list[Callable[[], None]] = []
        # The number of commits since the job began; -1 before `run` has shared
        # the state.
        self._commits = -1
        # Whether this rank may leave after the last commit.
        self._may_leave = True
        # Whether the launcher has heard of this state since the last new start.
        self._is_told = False

    def share(self) -> None:
        """Gives every rank rank 0's state, and its number of commits.

        Collective; `run` calls it.
        """
        self.sync()
        self._is_told = False
        commits = max(self._commits, 0)
        if runtime.may_grow():
            # Other ranks may have made more or fewer commits.
            commits = self._bcast_object(commits)
        self._commits = commits

    def register_reset_callbacks(
        self, callbacks: Iterable[Callable[[], None]]
    ) -> None:
        """Adds functions that every rank calls after each new start.

        They are called before `sync`, with the new `tfring.size()`, by which
        they may scale a learning rate or distribute data again.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Called by `run` after each new start."""
        while not self._updates.empty():
            self._updates.get()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Asks for a new start at the next commit.

        In Horovod the elastic launcher calls it. Here a script may call it, for
        example in a signal handler. Only rank 0's calls count. It is not needed
        for workers that the launcher starts.

        Args:
            timestamp: The time of the update. An update that is not later than
                the last one is ignored.
            update_res: A `HostUpdateResult`. With `removed` alone, `run` leaves
                out `sync`.
        """
        self._updates.put((timestamp, update_res))

    def commit(self) -> None:
        """Saves the state, and checks whether to start again.

        If a rank is lost meanwhile, the last commit remains.

        It copies the state, and broadcasts a small object: once in some batches
        may be enough. Within a round (`sync` of `tfring.DistributedOptimizer`)
        it does nothing, because the ranks have no common state. Collective:
        every rank must call it.

        Raises:
            HostsUpdatedInterrupt: As for `check_host_updates`.
        """
        if self._is_in_a_round():
            return
        # A GPU that waits for a lost rank is released with undefined values. If
        # the ranks reach each other after its work, the values are valid.
        if tf.executing_eagerly():
            tf.test.experimental.sync_devices()
        update = self._take_update()
        self.save()
        if self._commits >= 0:
            self._commits += 1
        if not self._is_told:  # a step may have made variables
            self._is_told = True
            runtime.tell_of_state(self._describe)
        if self._may_leave:
            leave_if_asked()
        if update is not None:
            raise update

    def check_host_updates(self) -> None:
        """Checks for updates that `on_hosts_updated` got on rank 0. Collective.

        Within a round it does nothing; see `commit`.

        Raises:
            HostsUpdatedInterrupt: There was an update. It is raised on every
                rank.
        """
        if self._is_in_a_round():
            return
        if (update := self._take_update()) is not None:
            # A commit copies shards from rank to rank, so it comes before any
            # rank leaves.
            self.save()
            raise update

    def _take_update(self) -> HostsUpdatedInterrupt | None:
        """Returns the interrupt of an update, the same on every rank."""
        latest, kinds = self._last_update, 0
        while not self._updates.empty():
            timestamp, kind = self._updates.get()
            if timestamp > latest:
                latest, kinds = timestamp, kinds | kind
        updated, is_forming, latest, kinds = self._bcast_object(
            (
                latest > self._last_update,
                runtime.has_waiting(),
                latest,
                kinds,
            )
        )
        self._last_update = latest
        if is_forming:
            return HostsUpdatedInterrupt()
        if not updated:
            return None
        return HostsUpdatedInterrupt(kinds == HostUpdateResult.removed)

    def save(self) -> None:
        """Saves a copy of the state."""
        raise NotImplementedError

    def restore(self) -> None:
        """Restores the state that `save` has copied."""
        raise NotImplementedError

    def sync(self) -> None:
        """Gives every rank rank 0's state, and saves it. Collective."""
        raise NotImplementedError

    def _describe(self) -> list[tuple[str, str]] | None:
        """Returns the parts that ranks must share, with names, or None.

        A worker with another state cannot join.
        """
        return None

    def _is_in_a_round(self) -> bool:
        """Tells whether the ranks' weights differ within a round."""
        return False

    def reset(self) -> None:
        """Adapts the state to the new ranks. Called before the callbacks."""


class ObjectState(State):
    """Python objects, as attributes.

    Args:
        bcast_object: As for `State`.
        get_rank: As for `State`.
        **kwargs: The attributes and their first values: anything that can be
            copied and pickled.

    Example:

    ```python
    import tfring

    tfring.init()
    state = tfring.elastic.ObjectState(
        tfring.broadcast_object, tfring.rank, epoch=0)
    state.epoch = 3
    state.commit()
    state.epoch = 4
    state.restore()
    assert state.epoch == 3
    ```
    """

    def __init__(
        self,
        bcast_object: Callable[[Any], Any],
        get_rank: Callable[[], int] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(bcast_object, get_rank)
        self._names = tuple(kwargs)
        for name, value in kwargs.items():
            setattr(self, name, value)
        # A collective could fail if a rank is lost, which only `run` survives.
        self._saved = self._snapshot(is_collective=False)

    def _add(self, name: str, value: Any) -> None:
        """Adds an attribute; every worker must, before `run`."""
        if name not in self._names:
            self._names += (name,)
        self._saved[name] = copy.deepcopy(value)
        setattr(self, name, value)

    def save(self) -> None:
        # If a commit fails, the previous commit stays complete.
        self._keep(self._snapshot())

    def _keep(self, snapshot: dict[str, Any]) -> None:
        """Makes a snapshot the last commit."""
        self._saved = snapshot

    def restore(self) -> None:
        self._assign(self._saved)

    def sync(self) -> None:
        self._share_values()
        self._keep(self._snapshot())

    def _describe(self) -> list[tuple[str, str]]:
        return [(f"attribute {name!r}", "") for name in sorted(self._names)]

    def _snapshot(self, is_collective: bool = True) -> dict[str, Any]:
        """Returns copies, because values such as lists may change in place.

        Subclasses add items, under names that no attribute has.

        Args:
            is_collective: If true, the ranks copy each other's shards.
        """
        return {
            name: copy.deepcopy(getattr(self, name)) for name in self._names
        }

    def _assign(self, snapshot: dict[str, Any]) -> None:
        for name in self._names:
            setattr(self, name, copy.deepcopy(snapshot[name]))

    def _share_values(self) -> None:
        """Gives every rank rank 0's values, without saving them."""
        if self._names:
            values = {name: getattr(self, name) for name in self._names}
            for name, value in self._bcast_object(values).items():
                setattr(self, name, value)
