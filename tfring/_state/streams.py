"""Whole values on one rank, one at a time, while the others do other work.

Note [Streams]: a model may be larger than the memory of the rank that saves it.
So `whole_states` with a root gathers nothing on entry. To read a value, the
root broadcasts the number of the shard, all ranks that have elements of the
value send them, and the root drops the value when it reads another one. On the
other ranks a thread answers, so that their main threads may go on, for example
to a collective in a callback that the root calls later. The requests have names
of their own, so other collectives may run in the meantime. Until the root
leaves the context, it broadcasts every ten seconds that it is still there. So a
file that takes long does not count as a stalled collective, and a lost rank
ends the wait. The other ranks wait for the root when they leave, because their
shards must not change earlier.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np
import tensorflow as tf

from tfring._core import runtime
from tfring._core.process_sets import ProcessSet
from tfring._ops.broadcast import broadcast

# The root broadcasts the number of a shard, or one of these.
_END, _WAIT = -1, -2
# This is less than the 30 s after which a collective counts as stalled.
_SECONDS_BETWEEN_WAITS = 10.0

# The streams that are open on this rank, of any process set.
_open: list[Stream] = []
# The threads of streams that this rank has left by an exception.
_left: list[threading.Thread] = []


class Stream:
    """A context in which one rank can read whole values.

    Collective: all ranks of the process set enter and leave it, in the same
    order of contexts. See Note [Streams].

    Args:
        shards: The `Shard`s that are spread over these ranks, in the same order
            on each rank.
        root_rank: The rank that reads.
        process_set: The ranks of the context, including the root.
    """

    def __init__(
        self,
        shards: Sequence[Any],
        root_rank: int,
        process_set: ProcessSet,
    ) -> None:
        self.root_rank = root_rank
        self.is_root = runtime.rank() == root_rank
        self.shards = shards
        self._process_set = process_set
        # The state of each shard on entry, by id.
        self.states = {id(shard): shard.state() for shard in shards}
        self._number_of = {id(shard): i for i, shard in enumerate(shards)}
        self._name = ""
        self._last: tuple[Any, np.ndarray] | None = None
        # The root has at most one request in flight.
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._is_broken = False
        # The error that has ended the thread of a rank other than the root.
        self._error: Exception | None = None
        target = self._keep_waiting if self.is_root else self._answer
        self._thread = threading.Thread(
            target=target, name="tfring-whole-states", daemon=True
        )

    def __enter__(self) -> Stream:
        while _left:
            _left.pop().join()
        depth = sum(each._process_set is self._process_set for each in _open)
        # TensorFlow keeps a kernel for each name of an eager collective, so
        # contexts that follow each other share a name.
        self._name = f"whole_states/{depth}"
        _open.append(self)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _open.remove(self)
        self._last = None
        if self.is_root:
            self._end(kind is None)
        elif kind is not None:
            # The root may wait for this rank elsewhere: raise at once.
            _left.append(self._thread)
        else:
            self._thread.join()
            if self._error is not None:
                raise self._error

    def read(self, shard: Any) -> np.ndarray:
        """Returns the whole value of a shard, on the root."""
        with self._lock:
            if self._last is not None and self._last[0] is shard:
                return self._last[1]
            self._last = None  # frees it before the next one is gathered
            if self._is_broken:
                raise RuntimeError(
                    f"{shard.description}: the ranks cannot put it together, "
                    "because an error has ended an earlier read in this "
                    "tfring.whole_states. Enter it again on every rank."
                )
            number = self._number_of[id(shard)]
            self._is_broken = True  # until the collectives have succeeded
            self._command(number)
            try:
                value = self._gather(number)
            except RuntimeError:  # another rank has changed its shard
                self._is_broken = False
                raise
            self._is_broken = False
            assert value is not None
            self._last = shard, value
            return value

    def _end(self, raises: bool) -> None:
        """Ends the threads of all ranks."""
        self._ends.set()
        self._thread.join()
        if self._is_broken:
            return
        try:
            self._command(_END)
        except Exception:
            if raises:
                raise

    def _keep_waiting(self) -> None:
        """Keeps the other ranks waiting while the root does not read."""
        while not self._ends.wait(_SECONDS_BETWEEN_WAITS):
            with self._lock:
                if self._is_broken:
                    return
                try:
                    self._command(_WAIT)
                except Exception:
                    return  # The next request fails, too, on the main thread.

    def _answer(self) -> None:
        """Sends this rank's elements whenever the root asks for a shard."""
        try:
            while (number := self._command(_WAIT)) != _END:
                if number != _WAIT:
                    self._gather(number)
        except Exception as error:
            self._error = error

    def _command(self, number: int) -> int:
        """Broadcasts the root's number, and returns it."""
        with tf.device("CPU:0"):
            received = broadcast(
                tf.constant(number, tf.int64),
                self.root_rank,
                name=f"{self._name}/number",
                ignore_name_scope=True,
                process_set=self._process_set,
            )
        return int(received)

    def _gather(self, number: int) -> np.ndarray | None:
        shard = self.shards[number]
        if self.root_rank not in (shard.process_set.ranks or []):
            return None  # The root gathers from its own set, which has copies.
        value: np.ndarray | None = shard.gather(
            self.root_rank,
            name=f"{self._name}/gathered",
            sends=shard.state() == self.states[id(shard)],
        )
        return value


def streams_to(root_rank: int, shards: Sequence[Any]) -> list[Stream]:
    """Returns the streams, one per process set, for all shards of a root."""
    by_set: dict[ProcessSet, list[Any]] = {}
    for shard in shards:
        if shard.size > 1 and root_rank in (shard.all_ranks.ranks or []):
            by_set.setdefault(shard.all_ranks, []).append(shard)
    return [
        Stream(of_set, root_rank, process_set)
        for process_set, of_set in by_set.items()
    ]
