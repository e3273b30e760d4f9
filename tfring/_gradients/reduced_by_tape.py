"""Notes the gradients that a distributed tape has reduced for an optimizer.

Note [A tape and an optimizer]: a script may use both, although one is enough.
The average of averages is the same average, but the division of a local
gradient and a sum over the ranks must not be applied twice. So a tape notes the
variables whose gradients it has reduced. It notes variables and not tensors,
because gradients are often clipped on their way to the optimizer. A note in a
graph lasts as long as the graph; an eager one lasts until an optimizer takes a
gradient of the variable, which may be a plain tape's in the next step.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfring._gradients.gradient_options import GradientOptions
from tfring._gradients.local_variables import inner_variable, variable_key
from tfring._ops.ordering import outermost_graph
from tfring._ops.reductions import ReduceOp

# The keys of noted variables by graph, and the noted variables of eager steps
# by key.
_in_graphs: weakref.WeakKeyDictionary[Any, set[Any]] = (
    weakref.WeakKeyDictionary()
)
_in_steps: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()


def note_reduced(gradients: Sequence[Any], variables: Sequence[Any]) -> None:
    """Notes the results of a distributed tape."""
    for gradient, variable in zip(gradients, variables, strict=True):
        if gradient is None:
            continue
        if tf.executing_eagerly():
            _in_steps[variable_key(variable)] = inner_variable(variable)
        else:
            known = _in_graphs.setdefault(outermost_graph(), set())
            known.add(variable_key(variable))


def take_reduced(
    gradients: Sequence[Any],
    variables: Iterable[Any],
    options: GradientOptions,
) -> list[bool]:
    """Tells which gradients a distributed tape has reduced.

    An optimizer calls it once in a step, with the gradients that it takes.

    Raises:
        ValueError: A tape has reduced them, and a second reduction would give
            another result.
    """
    keys = [
        None if gradient is None else variable_key(variable)
        for gradient, variable in zip(gradients, variables, strict=True)
    ]
    if tf.executing_eagerly():
        reduced = [_in_steps.pop(key, None) is not None for key in keys]
    else:
        known = _in_graphs.get(outermost_graph(), ())
        reduced = [key in known for key in keys]
    if any(reduced) and (
        options.op is not ReduceOp.Average or options.low_rank is not None
    ):
        how = (
            "compression=tfring.PowerSGD"
            if options.low_rank is not None
            else f"op=tfring.{options.op.name}"
        )
        raise ValueError(
            "DistributedOptimizer: a tfring.DistributedGradientTape has "
            "reduced these gradients already, and the optimizer would "
            f"reduce them again by {how}, which changes them. Take a plain "
            "tf.GradientTape, or a plain optimizer."
        )
    return reduced
