"""Checks of what collectives are given, before any of them starts."""

from __future__ import annotations

import numbers
from typing import Any

import tensorflow as tf

from tfring import _runtime
from tfring.chains import SUPPORTED_DTYPES, ReduceOp


def checked_tensor(function: str, value: Any) -> tf.Tensor:
    _runtime.size()  # raises before init
    tensor = tf.convert_to_tensor(value)
    if tensor.dtype not in SUPPORTED_DTYPES:
        raise TypeError(
            f"{function}: tensors of dtype {tensor.dtype.name} are not "
            "supported, only floating-point numbers, integers and bool."
        )
    return tensor


def check_reduction(function: str, op: ReduceOp, dtype: tf.DType) -> None:
    if not isinstance(op, ReduceOp):
        raise TypeError(
            f"{function}: op must be one of tfring.Average, Sum, Min, Max and "
            f"Product, got {op!r}."
        )
    if op is ReduceOp.Average and dtype == tf.bool:
        raise ValueError(
            f"{function}: bool has no average. Use op=tfring.Max for 'any', "
            "op=tfring.Min for 'all'."
        )


def check_root_rank(function: str, root_rank: Any) -> None:
    if isinstance(root_rank, bool) or not isinstance(root_rank, int):
        raise TypeError(
            f"{function}: root_rank must be an integer, got "
            f"{root_rank!r} of type {type(root_rank).__name__}."
        )
    if not 0 <= root_rank < _runtime.size():
        raise ValueError(
            f"{function}: root_rank must be in [0, {_runtime.size()}), the "
            f"ranks of this job, got {root_rank}."
        )


def checked_factor(function: str, value: Any) -> float:
    if not isinstance(value, numbers.Real):
        raise TypeError(
            f"{function}: scale factors must be Python numbers, got {value!r} "
            f"of type {type(value).__name__}. Multiply the tensor instead."
        )
    return float(value)


def checked_name(kind: str, name: str | None) -> str:
    # After all other checks: a rank whose call raises has not counted it, or
    # from then on its names would be other than those of the other ranks.
    if name is not None:
        if not isinstance(name, str) or not name:
            raise TypeError(
                f"{kind}: name must be a string that is not empty, got "
                f"{name!r}."
            )
        return name
    if tf.executing_eagerly():
        # Named by the engine, as it comes: for every new name here TensorFlow
        # would make a new kernel, and keep it.
        return ""
    # By the position in this graph, so that every trace of a function gives
    # the same names, however often a rank traces it.
    return str(tf.compat.v1.get_default_graph().unique_name(kind))
