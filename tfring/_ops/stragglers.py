"""Reports which rank the others wait for, and why it is late.

Note [Samples]: once a minute the ranks compare figures. Counting delays each
collective by about 0.4 us (100 small allreduces in a tf.function on two ranks:
8.2 us each without and 8.6 us with it). So ranks count only in the last tenth
of the minute, or in all of it if that tenth has too few steps.

A thread compares, so that a training of any kind goes on meanwhile. All ranks
compare at the same times, counted from the beginning of their job. So a rank
that could not take part, because it had joined, takes part the next time.
"""

from __future__ import annotations

import dataclasses
import math
import platform
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from tfring._core import monitor, native, runtime, settings
from tfring._ops.gather_json import gather_by_rank

_SAMPLED = 0.1
_LEAST_STEPS = 10
# A rank is late if the others wait for it for this part of each step.
_LEAST_PART = 0.05
# The time of a sample is divided into this many equal parts. A part in which
# some rank had no collective says nothing.
_PARTS = 20
_LEAST_PARTS = 10
# After this many comparisons, the same result is reported again.
_LOOKS_BETWEEN_REPORTS = 10


@dataclasses.dataclass(frozen=True)
class Sample:
    """What one rank did in a sample of steps.

    Attributes:
        host: The name of its machine.
        seconds: How long the sample is.
        steps: The number of steps in the sample.
        requests: The number of this rank's collectives in the sample.
        wait_seconds: How long these collectives waited for other ranks, in
            total.
        input_seconds: How long the rank waited for its input.
        parts: How many collectives there were in each of the sample's equal
            parts of time, and how long they waited, in seconds.
    """

    host: str
    seconds: float
    steps: int
    requests: int
    wait_seconds: float
    input_seconds: float
    parts: list[tuple[int, float]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A rank that the others wait for.

    Attributes:
        rank: The number of the rank.
        waits_for_input: True if its input delays it, False if its computation.
        text: The report, with figures.
    """

    rank: int
    waits_for_input: bool
    text: str


def verdict_on(samples: Mapping[int, Sample]) -> Verdict | None:
    """Returns the rank that the others wait for; None if there is none.

    The last rank's collectives wait for no rank. Its lateness is the difference
    from the median of the other ranks' waits. Ranks that are late in turn wait
    equally long.

    Args:
        samples: By rank, the same steps on at least two ranks.
    """
    waits = {
        rank: each.wait_seconds / max(each.requests, 1)
        for rank, each in samples.items()
    }
    last = min(waits, key=waits.__getitem__)
    own = samples[last]

    def above_the_others(figures: Mapping[int, float]) -> float:
        return figures[last] - statistics.median_low(
            figure for rank, figure in figures.items() if rank != last
        )

    late = -above_the_others(waits)
    step = own.seconds / max(own.steps, 1)
    if late < _LEAST_PART * step:
        return None
    for_input = above_the_others(
        {
            rank: each.input_seconds / max(each.steps, 1)
            for rank, each in samples.items()
        }
    )
    share = _share_as_the_last(last, samples)
    often = (
        ""
        if share is None
        else f"It was the last in {share:.0%} of that time. "
    )
    waits_for_input = for_input >= late / 2
    reason = (
        "It waits for its input pipeline for "
        f"{_milliseconds(for_input)} longer than the median of the others."
        if waits_for_input
        else "Its input pipeline does not cause that, so its computation does: "
        "another program on its cores, a slower machine, or more work than "
        "the others have."
    )
    return Verdict(
        last,
        waits_for_input,
        f"rank {last} ({own.host}) is behind. In the last {own.steps} steps "
        f"the other ranks waited for it for {_milliseconds(late)} of each "
        f"step of {_milliseconds(step)}. {often}{reason}",
    )


def _share_as_the_last(
    rank: int, samples: Mapping[int, Sample]
) -> float | None:
    """Returns the share of a sample's time in which a rank was the last.

    The share of the steps is not known, because ranks do not report each step.
    Returns None if too few parts have collectives of all ranks.
    """
    was_last = []
    for parts in zip(*(each.parts for each in samples.values()), strict=False):
        if all(requests > 0 for requests, _ in parts):
            waits = [seconds / requests for requests, seconds in parts]
            was_last.append([*samples][waits.index(min(waits))] == rank)
    if len(was_last) < _LEAST_PARTS:
        return None
    return sum(was_last) / len(was_last)


class StragglerWatch:
    """Compares ranks from time to time, in a thread, and warns on rank 0.

    Args:
        period: The seconds between comparisons.
        clock: Returns the time in seconds.
        wait: Waits for some seconds, or until `close` is called; returns True
            if it was called.
        gather: Returns each rank's value by rank. Collective.
    """

    def __init__(
        self,
        period: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], bool] | None = None,
        gather: Callable[[Any], dict[int, Any]] | None = None,
    ) -> None:
        self._period = period
        self._clock = clock
        self._ended = threading.Event()
        self._wait = self._ended.wait if wait is None else wait
        self._gather = _gather if gather is None else gather
        # The last reported result, and how many comparisons ago that was.
        self._said: tuple[int, bool] | None = None
        self._looks_since = 0
        self._thread = threading.Thread(
            target=self.run, name="tfring-stragglers", daemon=True
        )

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def end(self) -> None:
        """Asks the thread to end, which may still be in a collective."""
        self._ended.set()

    def join(self) -> None:
        """Waits for the end of the thread."""
        self._thread.join()

    def run(self) -> None:
        """Compares at the end of each period, until `end` is called."""
        if not tf.executing_eagerly():
            # Operations would become a part of the program's own graph.
            return
        began = self._clock()
        is_counting = False
        look = 0
        while True:
            look += 1
            at = began + look * self._period
            if not is_counting:
                if self._wait(at - _SAMPLED * self._period - self._clock()):
                    return
                monitor.start_counting()
                before, since = monitor.current(), self._clock()
                parts: list[tuple[int, float]] = []
                is_counting = True
            if self._count_until(at, parts):
                break
            seconds = self._clock() - since
            own = _sample(before, monitor.current(), seconds, parts)
            try:
                samples = self._gather(dataclasses.asdict(own))
            except Exception as error:
                # The training notices the end of the job itself, and a rank
                # that has joined takes part again later.
                logging.debug("tfring: ranks were not compared: %s", error)
                if runtime.reason_of_end() is not None:
                    break
                continue
            everyones = {rank: Sample(**each) for rank, each in samples.items()}
            if min(each.steps for each in everyones.values()) < _LEAST_STEPS:
                continue
            monitor.stop_counting()
            is_counting = False
            if len(everyones) > 1:
                self._report(verdict_on(everyones))
        monitor.stop_counting()

    def _count_until(self, at: float, parts: list[tuple[int, float]]) -> bool:
        """Adds parts of a sample; returns True if `end` was called."""
        before = monitor.current()
        for left in range(_PARTS, 0, -1):
            if self._wait((at - self._clock()) / left):
                return True
            now = monitor.current()
            waited = now.negotiation_seconds - before.negotiation_seconds
            parts.append((now.requests - before.requests, waited))
            before = now
        return False

    def _report(self, verdict: Verdict | None) -> None:
        self._looks_since += 1
        if verdict is None:
            return
        said = verdict.rank, verdict.waits_for_input
        if said == self._said and self._looks_since < _LOOKS_BETWEEN_REPORTS:
            return
        self._said, self._looks_since = said, 0
        if runtime.rank() == 0:
            logging.warning(
                "tfring: %s TFRING_STRAGGLERS=0 turns this off.", verdict.text
            )


_watch: StragglerWatch | None = None


def watch_where_asked() -> None:
    """Compares ranks if rank 0's settings say so, until `shutdown`. Collective.

    Raises:
        ValueError: The setting has an unusable value.
    """
    global _watch
    period = runtime.job().agreed(settings.seconds("TFRING_STRAGGLERS", 60))
    if not period or runtime.size() == 1 or runtime.is_beside():
        return
    _watch = StragglerWatch(period)
    _watch.start()


@runtime.at_shutdown
def _end() -> None:
    # A forked child has no such thread.
    if _watch is not None and not native.is_disowned():
        _watch.end()


@runtime.after_shutdown
def _join() -> None:
    global _watch
    if _watch is not None:
        _watch.join()
        _watch = None


@runtime.after_restart
def _go_on_with_the_ranks_left() -> None:
    _join()
    watch_where_asked()


def _sample(
    before: monitor.Statistics,
    now: monitor.Statistics,
    seconds: float,
    parts: list[tuple[int, float]],
) -> Sample:
    return Sample(
        platform.node(),
        seconds,
        now.steps - before.steps,
        now.requests - before.requests,
        now.negotiation_seconds - before.negotiation_seconds,
        now.input_seconds - before.input_seconds,
        parts,
    )


def _gather(own: Any) -> dict[int, Any]:
    with tf.device("CPU:0"):
        return gather_by_rank(own, name="tfring/stragglers")


def _milliseconds(seconds: float) -> str:
    digits = max(0, 1 - math.floor(math.log10(max(seconds * 1000, 1e-3))))
    return f"{seconds * 1000:.{min(digits, 2)}f} ms"
