"""The names of the requests that reduce gradients.

Note [Request names]: ranks find each other's buckets by name, so a name must
not depend on what else a rank has done. For example, Keras numbers layers and
optimizers in each process, and rank 0 may have made one more. Buckets are
therefore numbered within the function being traced.
"""

from __future__ import annotations

import collections
import weakref
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfring._core.process_sets import ProcessSet
from tfring._ops.ordering import outermost_graph

# The number of names that are taken, by graph and process set. This is no
# collection of the graph, because savers would write it.
_taken: weakref.WeakKeyDictionary[Any, collections.Counter[int | None]] = (
    weakref.WeakKeyDictionary()
)


def request_names_of(
    count: int, process_set: ProcessSet, name: str
) -> Iterator[str]:
    """Yields names that are unique in this function; see the Note."""
    if tf.executing_eagerly():
        first = 0  # eager calls end one after another
    else:
        # Count names for each set: ranks of a set may differ in their other
        # sets.
        taken = _taken.setdefault(outermost_graph(), collections.Counter())
        first = taken[process_set.process_set_id]
        taken[process_set.process_set_id] += count
    return (f"{name}/{number}" for number in range(first, first + count))
