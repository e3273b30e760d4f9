"""Which gradients a distributed tape has reduced before an optimizer sees them.

Note [A tape and an optimizer]: a script may use both, although one is enough.
The average of averages is the same average, but nothing else may be applied
twice: not the division of a local gradient, nor a sum over the ranks. So a tape
notes what it has reduced. In a graph it notes the variables, because gradients
are often clipped on their way to the optimizer. Eagerly it notes the tensors,
because another step may take the same variables' gradients from a plain tape.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfring._gradients.gradient_options import GradientOptions
from tfring._gradients.local_variables import variable_key
from tfring._ops.ordering import outermost_graph
from tfring._ops.reductions import ReduceOp

# The keys of the variables, by graph, and the tensors of eager steps, by id.
_variables: weakref.WeakKeyDictionary[Any, set[Any]] = (
    weakref.WeakKeyDictionary()
)
_tensors: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def note_reduced(gradients: Sequence[Any], variables: Sequence[Any]) -> None:
    """Notes the results of a distributed tape."""
    for gradient, variable in zip(gradients, variables, strict=True):
        if gradient is None:
            continue
        if tf.executing_eagerly():
            _tensors[id(gradient)] = gradient
        else:
            known = _variables.setdefault(outermost_graph(), set())
            known.add(variable_key(variable))


def is_reduced(gradient: Any, variable: Any) -> bool:
    """Tells whether a distributed tape has given the gradient of a variable."""
    if gradient is None:
        return False
    if tf.executing_eagerly():
        return _tensors.get(id(gradient)) is gradient
    return variable_key(variable) in _variables.get(outermost_graph(), ())


def check_reduced_once(
    gradients: Sequence[Any],
    variables: Iterable[Any],
    options: GradientOptions,
) -> None:
    """Refuses to reduce gradients again by what is not an average.

    Raises:
        ValueError: A tape has reduced them, and a second reduction would give
            another result.
    """
    if options.op is ReduceOp.Average and options.low_rank is None:
        return
    for gradient, variable in zip(gradients, variables, strict=True):
        if is_reduced(gradient, variable):
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
