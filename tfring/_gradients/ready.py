"""A gradient that the ranks share, in the form that is sent."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any


class Kind(enum.IntEnum):
    """How gradients are reduced. Buckets finish in the order of the kinds."""

    INTEGERS = 0  # an average by itself, after all starts
    DENSE = 1  # an allreduce
    SPARSE = 2  # an allgather of rows


@dataclasses.dataclass(frozen=True)
class Ready:
    """A gradient, or what is sent in its place.

    Attributes:
        index: Its number among the gradients of a step.
        variable: The variable, or other source, that it belongs to.
        name: The name in error messages.
        kind: How it is reduced.
        value: A tensor or `tf.IndexedSlices`.
        decompress: Makes the gradient of the reduced tensor.
    """

    index: int
    variable: Any
    name: str
    kind: Kind
    value: Any
    decompress: Callable[[Any], Any] = lambda reduced: reduced
