"""The PowerSGD states of gradient tapes.

A user makes a new tape in each step, so the state belongs to the compressor.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from tfring._gradients.powersgd import LowRank
from tfring._ops.compression import PowerSGD

_of_tapes: weakref.WeakKeyDictionary[PowerSGD, LowRank] = (
    weakref.WeakKeyDictionary()
)
# States of a restored checkpoint that no tape's compressor has taken yet.
_restored: list[LowRank] = []


def low_rank_of(compression: PowerSGD) -> LowRank:
    """Returns the state that all tapes with this object share.

    Raises:
        ValueError: A checkpoint has a state of another low rank.
    """
    if compression not in _of_tapes:
        low_rank = _restored.pop(0) if _restored else LowRank(compression)
        low_rank.belong_to(compression)
        _of_tapes[compression] = low_rank
    return _of_tapes[compression]


def low_ranks(ranks: Sequence[int] | None) -> list[LowRank]:
    """Returns the states of all tapes that have reduced gradients as factors.

    Args:
        ranks: The low ranks of the states in a checkpoint that is restored, or
            None. States that no tape has yet are kept for later tapes.
    """
    found = [each for each in _of_tapes.values() if each.has_state()]
    if ranks is not None:
        _restored[:] = [LowRank(PowerSGD(r)) for r in ranks[len(found) :]]
    return [*found, *_restored]
