"""The `fit`s that run in this process, and which of them end rounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tfring._state.kinds import open_rounds


@dataclasses.dataclass
class RunningFit:
    """A `fit` that runs.

    Attributes:
        model: The model that it trains.
        ends_rounds: True if the rounds of all variables of the model end with
            this `fit`.
    """

    model: Any
    ends_rounds: bool = False


_NOT_FOUND = (
    "and fit does not find it: the ranks would not get the same weights at the "
    "end. Compile the model with it, or make it an attribute of the model, or "
    "of an object or a list in an attribute."
)

# The fits that run in this process, the innermost last.
_fits: list[RunningFit] = []


@contextmanager
def known_to_fit(model: Any) -> Iterator[RunningFit]:
    """Refuses steps in rounds by optimizers that `fit` does not find.

    Such a step is refused when it is traced. If it was traced before, the end
    of the `fit` notices the round that it has left open.
    """
    fit = RunningFit(model)
    open_before = set(open_rounds(model.variables))
    _fits.append(fit)
    try:
        yield fit
    finally:
        _fits.pop()
    if not open_before.issuperset(open_rounds(model.variables)):
        raise RuntimeError(
            f"A step of the model '{model.name}' was by an optimizer in rounds "
            f"(sync=), {_NOT_FOUND}"
        )


def check_is_found(optimizer: Any, variables: Sequence[Any]) -> None:
    """Refuses a step of a `fit` that does not know of this optimizer."""
    is_found = bool(optimizer._tfring_models())
    if is_found and all(fit.ends_rounds for fit in _fits):
        return  # an eager step has no search for its model
    fit = _fit_of(variables)
    if fit is not None and not (is_found and fit.ends_rounds):
        raise RuntimeError(
            f"The optimizer '{optimizer.name}' trains the model "
            f"'{fit.model.name}' in rounds (sync=), {_NOT_FOUND}"
        )


def _fit_of(variables: Sequence[Any]) -> RunningFit | None:
    """Returns the innermost `fit` whose model has one of the variables."""
    stepped = set(map(id, variables))
    for fit in reversed(_fits):
        if not stepped.isdisjoint(map(id, fit.model.variables)):
            return fit
    return None
