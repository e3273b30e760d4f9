"""Gathers small Python values, so that ranks can compare them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import tensorflow as tf

from tfring._core import runtime
from tfring._core.process_sets import ProcessSet, global_process_set
from tfring._ops.allgather import allgather


def gather_json(
    own: Any, *, name: str, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Returns the values of all ranks that have not joined, in their order.

    Collective, and eager. It is meant for small values.
    """
    line = json.dumps(own).encode() + b"\n"
    gathered = allgather(
        tf.constant(np.frombuffer(line, np.uint8)),
        name=name,
        # A name scope may be an optimizer's, whose number differs between
        # ranks.
        ignore_name_scope=True,
        process_set=process_set,
    )
    return [json.loads(line) for line in bytes(gathered.numpy()).splitlines()]


def gather_by_rank(
    own: Any, *, name: str, process_set: ProcessSet = global_process_set
) -> dict[int, Any]:
    """Returns the values by rank, without ranks that have joined."""
    own = [runtime.rank(), own]
    return dict(gather_json(own, name=name, process_set=process_set))
