"""Loads the states of outer optimizers, which some files lack."""

from __future__ import annotations

import warnings
from typing import Any


def load_if_saved(outer: Any) -> None:
    """Lets an outer optimizer start fresh if a file has no state of it.

    A file of a training without rounds has no such state, and Keras would warn
    that it skips variables, although all weights and momenta are loaded.

    Args:
        outer: A Keras optimizer, which is changed.
    """
    load = type(outer).load_own_variables

    def load_own_variables(store: Any) -> None:
        saved, own = len(store.keys()), len(outer.variables)
        if saved == own:
            load(outer, store)
        elif saved:
            warnings.warn(
                "tfring: the file has the state of another outer optimizer "
                f"({saved} variables) than this one, '{outer.name}' ({own} "
                "variables), which starts afresh. Weights and the inner "
                "optimizer's state are loaded. For all of it, pass the sync= "
                "of the training that has saved the file.",
                stacklevel=2,
            )

    # Attribute tracking is bypassed.
    outer.__dict__["load_own_variables"] = load_own_variables
