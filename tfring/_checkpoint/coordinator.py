"""Lets all ranks save together, and learn together that all have saved.

Note [Two phases]: after the copy in memory each rank's thread writes its part.
When all threads are done, the ranks exchange the names, sizes and checksums of
their files, and rank 0's thread writes the manifest. When that is done, the
ranks exchange whether it has gone well. The threads call no collectives: all
ranks end a phase in the same step, because they vote on it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from tfring._checkpoint.contents import Item, own_items, size_bytes
from tfring._checkpoint.folder import FORMAT, Folder
from tfring._checkpoint.host_copy import (
    Array,
    HostCopy,
    host_array,
    needed_bytes,
)
from tfring._checkpoint.requeue import requeue
from tfring._checkpoint.schedule import Schedule, Signals
from tfring._core import runtime
from tfring._ops.allreduce import allreduce
from tfring._ops.gather_json import gather_json
from tfring._ops.reductions import ReduceOp


class Wish(NamedTuple):
    """The agreement of the ranks at the end of a step.

    Attributes:
        saves: A checkpoint is due.
        signal: The number of the signal that asks the job to end, or 0.
    """

    saves: bool
    signal: int


class _Writing(NamedTuple):
    """A checkpoint that is not complete yet.

    Attributes:
        number: The checkpoint's number.
        step: The number of training steps before it.
        future: The work of this rank's thread; None if it has nothing to do.
        part: The manifest's entry for this rank's part, without the files; None
            in the second phase, see Note [Two phases].
    """

    number: int
    step: int
    future: Future[Any] | None
    part: dict[str, Any] | None


class Coordinator:
    """Saves checkpoints of all ranks in one folder.

    Args:
        folder: The folder.
        schedule: When checkpoints are due.
        signals: Which signals ask for a checkpoint.
        keep: How many complete checkpoints are kept.
        strict: True if a checkpoint that cannot be written is an error.
        requeues: True if Slurm shall start the job again after a signal.
    """

    def __init__(
        self,
        folder: Folder,
        schedule: Schedule,
        signals: Signals,
        *,
        keep: int,
        strict: bool,
        requeues: bool,
    ) -> None:
        self._folder = folder
        self._schedule = schedule
        self._signals = signals
        self._keep = keep
        self._strict = strict
        self._requeues = requeues
        self._thread = ThreadPoolExecutor(1, "tfring checkpoint")
        self._memory = HostCopy()
        self._writing: _Writing | None = None
        self._number = 0
        self._next_vote = 0
        self._is_due = False
        # The signal that the ranks have agreed on.
        self._signal = 0
        self._has_failed = False

    def begin(
        self, step: int, items: Sequence[Item], *, goes_on: bool = False
    ) -> None:
        """Begins to count steps, and to take signals. Collective.

        Args:
            step: How many steps there have been.
            items: The parts of the training's state.
            goes_on: True if the training goes on with other ranks. An
                unfinished checkpoint is given up, and is due again.
        """
        known = {
            "number": max(self._folder.next_number(), self._number),
            "last step": self._schedule.last_step,
            "was writing": self._writing is not None,
        }
        everyones = gather_json(known, name="checkpoint/begin")
        # Take a number that no rank has used: a rank's thread may still be
        # writing.
        self._number = max(each["number"] for each in everyones)
        self._writing = None
        self._signal = 0
        if goes_on:
            last_step = max(each["last step"] for each in everyones)
            # The training may have gone back to a commit.
            self._schedule.go_on(step, min(last_step, step))
        else:
            self._schedule.begin(step)
        self._is_due = goes_on and any(e["was writing"] for e in everyones)
        self._next_vote = step + 1
        self._signals.install()
        values = [item.value() for item in items]
        own = own_items(items, values, runtime.rank(), runtime.size())
        needed = needed_bytes(size_bytes(values[n]) for n in own)
        self._thread.submit(self._memory.reserve, needed)

    def vote(self, step: int, *, is_last: bool = False) -> Wish:
        """Has the ranks agree at the end of a step, or of an epoch.

        Collective, in the steps on which the ranks have agreed.

        Args:
            step: How many steps there have been.
            is_last: True if the ranks shall agree now in any case.
        """
        if is_last or step >= self._next_vote:
            self._agree(step)
        self._is_due |= self._schedule.is_due_by_steps(step)
        return Wish(self._is_due or self._signal != 0, self._signal)

    def _agree(self, step: int) -> None:
        writing = self._writing
        future = writing.future if writing is not None else None
        own = [
            self._signals.received,
            int(self._schedule.is_due_by_time()),
            int(future is not None and not future.done()),
            self._schedule.steps_until_vote(step),
        ]
        received, is_due, is_busy, pause = allreduce(
            tf.constant(own, tf.int64),
            op=ReduceOp.Max,
            name="checkpoint/vote",
        ).numpy()
        self._next_vote = step + int(pause)
        self._is_due |= bool(is_due)
        self._signal = self._signal or int(received)
        if writing is not None and not is_busy:
            self._end_phase()

    def save(
        self,
        step: int,
        items: Sequence[Item],
        extras: Mapping[str, Any],
        states: Mapping[str, Any],
    ) -> None:
        """Lets the threads copy the training's state and write it. Collective.

        The training may go on at once; see `host_copy`.

        Args:
            step: How many steps there have been.
            items: The parts of the training's state.
            extras: Further arrays of this rank, and tensors of variants, by
                their keys.
            states: Further state of this rank, as JSON values.
        """
        self.wait()
        values = [item.value() for item in items]
        chosen = own_items(items, values, runtime.rank(), runtime.size())
        own = {items[n].key: host_array(values[n]) for n in chosen}
        # Variants never change, so they are written without a copy.
        variants = {k: v for k, v in extras.items() if isinstance(v, tf.Tensor)}
        own |= {k: np.array(v) for k, v in extras.items() if k not in variants}
        part = {
            **states,
            "rank": runtime.rank(),
            "items": [
                *(items[n].describe(values[n]) for n in chosen),
                *({"key": key, "rule": "extra"} for key in extras),
            ],
        }
        number, self._number = self._number, self._number + 1
        future = self._thread.submit(
            self._write_part, number, runtime.rank(), own, variants
        )
        self._writing = _Writing(number, step, future, part)
        self._schedule.begin(step)
        self._next_vote = step + 1
        self._is_due = False

    def _write_part(
        self,
        number: int,
        rank: int,
        own: dict[str, Array],
        variants: Mapping[str, tf.Tensor],
    ) -> Any:
        copies = self._memory.take(own) | dict(variants)
        return self._folder.write_part(number, rank, copies)

    def wait(self) -> None:
        """Waits until the last checkpoint is complete. Collective."""
        while self._writing is not None:
            self._end_phase()

    def _end_phase(self) -> None:
        """Ends a phase on all ranks; see Note [Two phases]. Collective."""
        writing = self._writing
        assert writing is not None
        self._writing = None
        result, error = _outcome(writing.future)
        own = {"result": result, "error": error, "part": writing.part}
        everyones = gather_json(own, name="checkpoint/phase")
        failed = [
            (r, o["error"]) for r, o in enumerate(everyones) if o["error"]
        ]
        if failed:
            self._note_failure(writing, *failed[0])
        elif writing.part is None:
            self._note_success(writing)
        else:
            parts = [{**o["part"], "files": o["result"]} for o in everyones]
            future = None
            if runtime.rank() == 0:
                future = self._thread.submit(self._finish, writing, parts)
            self._writing = writing._replace(future=future, part=None)

    def _finish(self, writing: _Writing, parts: list[dict[str, Any]]) -> None:
        self._folder.finish(
            writing.number,
            {
                "format": FORMAT,
                "step": writing.step,
                "ranks": len(parts),
                "versions": {
                    "keras": keras.__version__,
                    "tensorflow": tf.__version__,
                },
                "parts": parts,
            },
        )
        try:
            self._folder.remove_old(writing.number, self._keep)
        except OSError as error:
            logging.warning(
                "tfring: old checkpoints could not be removed: %s.", error
            )

    def _note_success(self, writing: _Writing) -> None:
        if self._has_failed and runtime.rank() == 0:
            logging.warning(
                "tfring: the checkpoint of step %d is written again, in %s.",
                writing.step,
                self._folder.path,
            )
        self._has_failed = False

    def _note_failure(self, writing: _Writing, rank: int, error: str) -> None:
        text = (
            f"the checkpoint of step {writing.step} has not been written to "
            f"{self._folder.path}: on rank {rank}, {error}."
        )
        if self._strict:
            raise RuntimeError(f"Checkpoint: {text}")
        if runtime.rank() != 0:
            return
        self._thread.submit(self._folder.remove, writing.number)
        if not self._has_failed:
            logging.error(
                "tfring: %s The training goes on, and tries again when the "
                "next one is due. With strict=True this would end it.",
                text,
            )
        self._has_failed = True

    def leave(self, step: int, number: int) -> int:
        """Completes the last checkpoint, and says why the job ends.

        Collective.

        Returns:
            The exit status.
        """
        self.wait()
        if runtime.rank() == 0:
            logging.warning(
                "tfring: %s at step %d: the job ends with status %d, which "
                "asks for another start. %s",
                signal.Signals(number).name,
                step,
                os.EX_TEMPFAIL,
                "Its last checkpoint could not be written."
                if self._has_failed
                else f"Its state is in {self._folder.path}.",
            )
            if self._requeues:
                logging.warning("tfring: %s", requeue())
        self.close()
        return os.EX_TEMPFAIL

    def let_leave(self) -> None:
        """Completes the last checkpoint, and passes on SIGTERM.

        In an elastic job the worker that has got SIGTERM then leaves, and the
        others go on. Collective.
        """
        self.wait()
        self._signal = 0
        self._signals.pass_on(signal.SIGTERM)

    def close(self) -> None:
        """Restores the signals' handlers. Threads go on writing."""
        if runtime.may_grow():
            self._signals.pass_on(signal.SIGTERM)
        self._signals.restore()


def _outcome(future: Future[Any] | None) -> tuple[Any, str | None]:
    """Returns a thread's result, and its error in words."""
    if future is None:
        return None, None
    try:
        return future.result(), None
    except OSError as error:
        return None, str(error)
    except Exception as error:  # the other ranks must not wait forever
        return None, f"{type(error).__name__}: {error}"
