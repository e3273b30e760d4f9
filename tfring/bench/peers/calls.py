"""Code that all peers share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

# The dtypes that NumPy and most libraries support.
_DTYPES = ("float32", "float64", "int32", "int64")

# The call itself, and the array that its result is then in.
Call = tuple[Callable[[], Any], np.ndarray[Any, Any]]


def missing_dtype(dtype: str) -> str | None:
    """Returns why a dtype is not measured; None if it is."""
    known = ", ".join(_DTYPES)
    return None if dtype in _DTYPES else f"measured with {known} only"
