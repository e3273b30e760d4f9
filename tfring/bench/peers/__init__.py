"""Other libraries that do the same, measured in the same rounds.

Each takes NumPy arrays, one by one. To add a library, add a module with the
functions of `Peer`, and an entry to `PEERS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tfring.bench.kinds import Array
from tfring.bench.measure import Contestant, Simple
from tfring.bench.peers import gloo, mpi
from tfring.bench.peers.calls import Call


class Peer(Protocol):
    """The functions of a library's module."""

    def missing(self, dtype: str) -> str | None:
        """Returns why it cannot take part with a dtype; None if it can."""

    def call(
        self, kind: str, mine: Array, expected: Array, in_place: bool
    ) -> Call | None:
        """Returns a call of the collective; None if the library has none.

        Args:
            kind: "allreduce", ...
            mine: This rank's input.
            expected: An array with the shape and dtype of this rank's result.
            in_place: If the result takes the input's place.
        """


PEERS: dict[str, Peer] = {"mpi": mpi, "gloo": gloo}


def missing(peer: str, dtype: str) -> str | None:
    """Returns why `peer` cannot take part; None if it can."""
    reason = PEERS[peer].missing(dtype)
    return None if reason is None else f"{peer}: {reason}"


def contestants(
    peer: str, kind: str, mine: Sequence[Array], expected: Sequence[Array]
) -> list[Contestant]:
    """Returns contestants for each variant of the collective that `peer` has.

    Args:
        peer: One of `PEERS`, if it is not `missing`.
        kind: "allreduce", ...
        mine: This rank's inputs, in one or several arrays.
        expected: This rank's results.

    Returns:
        The contestants; an empty list if the peer does not have the collective.
    """
    result: list[Contestant] = []
    for in_place in (False, True):
        calls = [
            PEERS[peer].call(kind, one, result_of_one, in_place)
            for one, result_of_one in zip(mine, expected, strict=True)
        ]
        if any(call is None for call in calls):
            continue
        name = f"{peer} in place" if in_place else peer
        result.append(
            _Together(name, [call for call in calls if call], list(expected))
        )
    return result


class _Together(Simple):
    """Calls on several arrays, in order."""

    def __init__(
        self, name: str, calls: Sequence[Call], expected: list[Array]
    ) -> None:
        functions = [function for function, _ in calls]
        self._results = [result for _, result in calls]

        def run() -> list[Array]:
            for function in functions:
                function()
            return self._results

        super().__init__(name, run, expected)

    def check(self) -> None:
        super().check()
        # Sums in place grow from call to call.
        for result in self._results:
            result.fill(0)
