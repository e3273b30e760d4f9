"""The notes of tfring on a variable of a model or an optimizer.

All notes are in one record, the one attribute that tfring adds to variables of
Keras and TensorFlow. A dictionary cannot hold them: `==` of Keras variables
compares values, and the id of a variable may be reused after the variable is
freed.
"""

from __future__ import annotations

import dataclasses
from typing import Any

_ATTRIBUTE = "_tfring"


@dataclasses.dataclass(slots=True)
class Record:
    """The notes on one variable.

    Attributes:
        state_for: The trained variable to which this state of an optimizer
            belongs.
        accumulated_by: The optimizer that adds up a rank's gradients in this
            variable.
        shard: The `Shard` of a table or of an optimizer's state that this
            variable is.
        rounds: The `Round` of each optimizer that exchanges the variable.
        compared_in: The jobs and process sets in which ranks have compared the
            variable.
    """

    state_for: Any = None
    accumulated_by: Any = None
    shard: Any = None
    rounds: tuple[Any, ...] = ()
    compared_in: frozenset[tuple[int, int | None]] = frozenset()


_EMPTY = Record()


def notes_on(variable: Any) -> Record:
    """Returns the notes on a variable, to read."""
    record: Record = getattr(variable, _ATTRIBUTE, _EMPTY)
    return record


def record_of(variable: Any) -> Record:
    """Returns a variable's own record, to write to."""
    if not hasattr(variable, _ATTRIBUTE):
        setattr(variable, _ATTRIBUTE, Record())
    record: Record = getattr(variable, _ATTRIBUTE)
    return record
