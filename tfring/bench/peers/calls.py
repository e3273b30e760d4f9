"""What the peers have in common."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np

# Those that NumPy and most libraries have in common.
DTYPES = ("float32", "float64", "int32", "int64")

# The call itself, and the array that its result is then in.
Call = tuple[Callable[[], Any], np.ndarray[Any, Any]]


def missing_dtype(dtype: str, known: Collection[str]) -> str | None:
    """Returns why a dtype is not measured; None if it is known."""
    return None if dtype in known else f"measured with {', '.join(known)} only"
