"""Warns if several ranks train and reduce nothing.

An optimizer that Keras makes from its configuration, in `load_model` and
`compile_from_config`, is no longer distributed. Each rank then trains a model
of its own, without any error.
"""

from __future__ import annotations

from tfring._core import runtime
from tfring._core.errors import NotDistributedWarning, warn_all_ranks

_warned = False


def warn_not_distributed(
    problem: str,
    remedy: str = "Compile the model with "
    "tfring.DistributedOptimizer(optimizer); load it with tfring.load_model.",
) -> None:
    """Warns of a problem on all ranks; only once in a process."""
    global _warned
    if _warned:
        return
    _warned = True
    warn_all_ranks(
        NotDistributedWarning,
        f"{problem}, so that each of {runtime.size()} ranks trains a model of "
        f"its own. {remedy}",
        is_shown=runtime.rank() == 0,
    )
