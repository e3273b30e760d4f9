"""The names of the requests that reduce gradients.

Note [Request names]: ranks find each other's buckets by name, so a name must
not depend on what else a rank has done: Keras numbers layers and optimizers by
how many the process has made, and rank 0 may well have made one more. Buckets
are therefore numbered within the function being traced.
"""

from __future__ import annotations

import collections
import weakref
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfring._core.process_sets import ProcessSet
from tfring._ops.ordering import outermost_graph

# The number of names that are taken, by graph and process set. A collection of
# the graph would be written by savers.
_taken: weakref.WeakKeyDictionary[Any, collections.Counter[int | None]] = (
    weakref.WeakKeyDictionary()
)


def request_names_of(
    count: int, process_set: ProcessSet, name: str = "gradients"
) -> Iterator[str]:
    """Names that no other reduction of this function has; see the Note."""
    if tf.executing_eagerly():
        first = 0  # Each call has ended before the next one begins.
    else:
        # Names are counted for each set: other ranks of the set may be in other
        # sets, too.
        taken = _taken.setdefault(outermost_graph(), collections.Counter())
        first = taken[process_set.process_set_id]
        taken[process_set.process_set_id] += count
    return (f"{name}/{number}" for number in range(first, first + count))
