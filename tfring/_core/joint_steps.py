"""Steps of `init` that succeed on every rank, or raise on every rank.

If one rank failed alone, the others would wait inside MPI. So before and after
each step the ranks report the outcome to rank 0. Rank 0 answers with the first
failure, or with the numbers of late ranks. No rank is in a blocking call of MPI
meanwhile.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from tfring._core import native

if TYPE_CHECKING:
    from mpi4py import MPI

_T = TypeVar("_T")

# Tags from here on are below the largest tag that every MPI allows.
_FIRST_TAG = 31000
_TAGS = 1000
_LONGEST_POLL_SECONDS = 0.01
# How long rank 0 has to answer after its deadline.
_ANSWER_SECONDS = 10.0
# MPI sends reports of this length eagerly, without waiting for a receive.
_LONGEST_TEXT = 1500

# The number of failed agreements. Each may leave unread reports, so the next
# one has another tag; all ranks have seen the failure.
_failures = 0
# Buffers of reports, kept because MPI may still read from them.
_sent: list[Any] = []

# Errors of other classes become a RuntimeError: another rank may lack the
# class.
_KINDS = (ImportError, RuntimeError, TimeoutError, TypeError, ValueError)


class Party:
    """The ranks that join one job."""

    def __init__(
        self, comm: MPI.Intracomm, members: Sequence[int], limit: float
    ) -> None:
        """`members` are ranks of `comm`; `limit` is in seconds, 0 for never."""
        self._comm = comm
        self._members = list(members)
        self._me = self._members.index(comm.rank)
        self._limit = limit
        # The time of the first agreement, before which no rank waits.
        self._begin: float | None = None

    def agree(self, error: Exception | None) -> None:
        """Agrees on the outcome of a step that this rank has taken.

        Raises:
            Exception: `error`, or that of another rank.
        """
        step: Future[None] = Future()
        if error is None:
            step.set_result(None)
        else:
            step.set_exception(error)
        self._agree_on(step)

    def run(self, work: Callable[[], _T]) -> _T:
        """Takes a step that waits for all ranks, in another thread.

        Raises:
            Exception: `work` raised it, here or on another rank; `work` may
                then still be running.
        """
        step: Future[_T] = Future()
        # A daemon thread, so that the process can end while the step hangs.
        threading.Thread(
            target=_take, args=[step, work], name="tfring.init", daemon=True
        ).start()
        self._agree_on(step)
        return step.result()

    def _agree_on(self, step: Future[Any]) -> None:
        global _failures
        tag = _FIRST_TAG + _failures % _TAGS
        if len(self._members) == 1:
            step.exception()  # `exception` waits
            answer = None
        elif self._me == 0:
            answer = self._collect(step, tag)
        else:
            answer = self._ask(step, tag)
        if answer is not None:
            _failures += 1
        if step.done():
            step.result()  # the error of this rank is more precise
        if answer is not None:
            raise answer

    def _collect(self, step: Future[Any], tag: int) -> Exception | None:
        """On rank 0: receives all reports; returns its answer to all ranks."""
        MPI = native.mpi()  # noqa: N806
        ranks = {member: rank for rank, member in enumerate(self._members)}
        heard: dict[int, Exception | None] = {}
        answer: Exception | None = None
        for _ in self._polls(0.0):
            if step.done():
                heard[0] = _report(step, 0)
            try:
                status = MPI.Status()
                while self._comm.iprobe(MPI.ANY_SOURCE, tag, status):
                    source = status.Get_source()
                    heard[ranks[source]] = self._comm.recv(None, source, tag)
            except MPI.Exception as error:
                answer = RuntimeError(f"a rank is lost: {error}")
                break
            reports = (heard[rank] for rank in sorted(heard))
            answer = next(filter(None, reports), None)
            if answer is not None or len(heard) == len(self._members):
                break
        else:
            missing = [r for r in range(len(self._members)) if r not in heard]
            answer = TimeoutError(self._too_late(missing))
        for member in self._members[1:]:
            _send(self._comm, answer, member, tag)
        return answer

    def _ask(self, step: Future[Any], tag: int) -> Exception | None:
        """On other ranks: reports to rank 0, and returns its answer."""
        MPI = native.mpi()  # noqa: N806
        root = self._members[0]
        told = False
        for _ in self._polls(_ANSWER_SECONDS):
            try:
                if not told and step.done():
                    told = True
                    _send(self._comm, _report(step, self._me), root, tag)
                if self._comm.iprobe(root, tag):
                    answer: Exception | None = self._comm.recv(None, root, tag)
                    return answer
            except MPI.Exception as error:
                return RuntimeError(f"rank 0 is lost: {error}")
        return TimeoutError(self._too_late([0]))

    def _polls(self, grace: float) -> Iterator[None]:
        """Yields at short intervals until the time is over."""
        pause = 0.0002
        if self._begin is None:
            self._begin = time.monotonic()
        end = self._begin + (self._limit + grace if self._limit else math.inf)
        while True:
            yield
            if time.monotonic() > end:
                return
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_POLL_SECONDS)

    def _too_late(self, missing: Sequence[int]) -> str:
        some = ", ".join(map(str, missing[:8]))
        more = ", ..." if len(missing) > 8 else ""
        return (
            f"tfring.init takes all {len(self._members)} ranks of the job, and "
            f"rank{'s' * (len(missing) > 1)} {some}{more} did not come, or not "
            f"through it, in {self._limit:g} s. Look there for what it waits "
            "for; TFRING_INIT_TIMEOUT_SECONDS is the limit."
        )


def _take(step: Future[_T], work: Callable[[], _T]) -> None:
    try:
        step.set_result(work())
    except BaseException as error:
        step.set_exception(error)


def _report(step: Future[Any], rank: int) -> Exception | None:
    """Returns the error for all ranks if the step has failed on `rank`."""
    error = step.exception()
    if error is None:
        return None
    kind = next((k for k in _KINDS if isinstance(error, k)), RuntimeError)
    text = f"tfring.init failed on rank {rank}: {error}"
    return kind(text[:_LONGEST_TEXT])


def _send(comm: Any, message: Any, rank: int, tag: int) -> None:
    MPI = native.mpi()  # noqa: N806
    try:
        _sent.append(comm.isend(message, rank, tag))
        _sent[:] = [request for request in _sent if not request.Test()]
    except MPI.Exception:  # the rank is lost
        pass
