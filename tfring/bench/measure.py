"""Times contestants, on all ranks together.

Rounds are interleaved: each contestant has a turn in each round, so that
varying load affects all of them.
"""

from __future__ import annotations

import abc
import ctypes
import dataclasses
import gc
import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tfring
from tfring._core import monitor
from tfring.bench.statistics import Costs, Row

# The length of a contestant's turn in a round, if one call takes less.
_TURN_SECONDS = 0.05
_MOST_CALLS = 200
_WARM_UP_CALLS = 3
# A call that takes longer than this needs no second call to warm up.
_LONG_CALL_SECONDS = 0.5


class Contestant(abc.ABC):
    """Does a task with one library, to be timed. Every rank takes part."""

    # A contestant that does nothing has no bandwidth.
    moves_bytes = True

    def __init__(self, name: str) -> None:
        self.name = name
        # The number of operations in a call.
        self.operations_per_call = 1

    @abc.abstractmethod
    def call(self) -> Any:
        """Does the task once, to its end."""

    @abc.abstractmethod
    def check(self) -> None:
        """Does the task once and compares the result.

        Raises:
            AssertionError: The result is wrong.
        """

    def seconds(self, calls: int) -> float:
        """Returns the mean time of a call, of `calls` calls."""
        start = time.perf_counter()
        for _ in range(calls):
            self.call()
        return (time.perf_counter() - start) / calls


class Simple(Contestant):
    """A contestant that is one function with an expected result."""

    def __init__(
        self,
        name: str,
        function: Callable[[], Any],
        expected: Any = None,
    ) -> None:
        super().__init__(name)
        self._function = function
        self._expected = expected

    def call(self) -> Any:
        return self._function()

    def check(self) -> None:
        expect(self._function(), self._expected)


def expect(result: Any, expected: Any, relative: float = 0) -> None:
    """Compares arrays, or lists of them; an expected None matches anything.

    Raises:
        AssertionError: They differ by more than `relative` of the expected
            value.
    """
    if isinstance(expected, list | tuple):
        for part, expected_part in zip(result, expected, strict=True):
            expect(part, expected_part, relative)
    elif expected is not None:
        np.testing.assert_allclose(np.asarray(result), expected, rtol=relative)


@dataclasses.dataclass
class _Rounds:
    """A contestant that is warm, and what its turns have taken."""

    contestant: Contestant
    calls: int
    added_bytes: int | None
    # For each turn the costs of an operation, by rank.
    turns: list[list[Costs]] = dataclasses.field(default_factory=list)

    def take_turn(self) -> None:
        tfring.barrier()
        cpu_before, sent_before = cpu_seconds(), sent_bytes()
        seconds = self.contestant.seconds(self.calls)
        operations = self.calls * self.contestant.operations_per_call
        cpu = (cpu_seconds() - cpu_before) / operations
        sent = (sent_bytes() - sent_before) / operations
        self.turns.append(_gathered((seconds, cpu, sent)))

    def row(self, case: str, count_bytes: int, bus_factor: float) -> Row:
        name, moves_bytes = self.contestant.name, self.contestant.moves_bytes
        row = Row.of_turns(
            case, count_bytes, name, self.turns, added_bytes=self.added_bytes
        )
        bandwidth = count_bytes * moves_bytes / row.seconds.median
        return dataclasses.replace(
            row,
            algorithm_bandwidth=bandwidth,
            bus_bandwidth=bandwidth * bus_factor,
        )


def measure(
    contestants: Sequence[Contestant],
    *,
    rounds: int,
    case: str,
    count_bytes: int = 0,
    bus_factor: float = 0.0,
    progress: Callable[[], None] = lambda: None,
) -> list[Row]:
    """Checks the contestants, warms them up, and times them.

    Collective.

    The contestants are in the same order on every rank. `case` names their task
    in the rows, and `count_bytes` is 0 for tasks without a bandwidth.
    `progress` is called after each round.

    Returns:
        A row for each contestant, the same on every rank.

    Raises:
        RuntimeError: A contestant's result is wrong on some rank.
    """
    warm = [_warmed_up(contestant, case) for contestant in contestants]
    for _ in range(rounds):
        for each in warm:
            each.take_turn()
        progress()
    return [each.row(case, count_bytes, bus_factor) for each in warm]


def _warmed_up(contestant: Contestant, case: str) -> _Rounds:
    """Checks a contestant, and finds how many calls fill a turn."""
    _give_free_memory_back()
    before = memory_bytes("VmRSS")
    start = time.perf_counter()
    _check(contestant, case)
    taken_by_check = max(_gathered(time.perf_counter() - start))
    is_long = taken_by_check > _LONG_CALL_SECONDS
    warm_up_calls = 1 if is_long else _WARM_UP_CALLS
    added_bytes = _added_bytes(contestant, before, warm_up_calls)
    # The contestant is warm by now.
    once = max(_gathered(contestant.seconds(warm_up_calls)))
    calls = round(_TURN_SECONDS / max(once, _TURN_SECONDS / _MOST_CALLS))
    return _Rounds(contestant, max(1, calls), added_bytes)


def costs_of(work: Callable[[], Any], count: int) -> Costs:
    """Calls `work`, and returns what a call costs this rank."""
    sent, cpu, start = sent_bytes(), cpu_seconds(), time.perf_counter()
    for _ in range(count):
        work()
    seconds = time.perf_counter() - start
    cpu, sent = cpu_seconds() - cpu, sent_bytes() - sent
    return seconds / count, cpu / count, sent / count


def cpu_seconds() -> float:
    """Returns the CPU time of all threads of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def sent_bytes() -> int:
    """Returns the bytes of this rank's collectives that it has sent."""
    sent = monitor.current().sent_bytes
    return sum(sent.values()) - sent["control"]


def _gathered(value: Any) -> list[Any]:
    """Returns the values of all ranks, in a job with or without MPI."""
    # Imported here, so that checking flags and --help do not load TensorFlow.
    from tfring._ops.gather_json import gather_json

    return gather_json(value, name="tfring-bench")


def _check(contestant: Contestant, case: str) -> None:
    complaint = None
    try:
        contestant.check()
    except AssertionError as error:
        complaint = str(error)
    for rank, text in enumerate(_gathered(complaint)):
        if text is not None:
            raise RuntimeError(
                f"{contestant.name}, {case}: wrong result on rank {rank}: "
                f"{text}"
            )


def _added_bytes(contestant: Contestant, before: int, calls: int) -> int | None:
    """Returns the peak memory of a few calls beyond `before`."""
    try:
        # Writing 5 resets the peak to the memory in use now.
        Path("/proc/self/clear_refs").write_text("5")
        is_reset = True
    except OSError:  # not on Linux, or not permitted
        is_reset = False
    contestant.seconds(calls)
    added = memory_bytes("VmHWM") - before
    of_ranks = _gathered(added if is_reset else None)
    return None if None in of_ranks else max(0, *of_ranks)


def _give_free_memory_back() -> None:
    gc.collect()
    # glibc would otherwise reuse memory that another contestant has freed.
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


def memory_bytes(field: str) -> int:
    """Returns VmRSS (memory in use) or VmHWM (its peak); 0 without Linux."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return 0
