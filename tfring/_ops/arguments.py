"""Checks the arguments of collectives before any of them starts."""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfring._core import runtime
from tfring._core.errors import NotInitializedError
from tfring._core.process_sets import (
    ProcessSet,
    global_process_set,
    is_alone,
)
from tfring._ops.compression import AnyCompressor, Compression, checked
from tfring._ops.errors import InvalidArgumentError
from tfring._ops.ordering import unique_name
from tfring._ops.reductions import SUPPORTED_DTYPES, ReduceOp


def checked_tensor(function: str, value: Any) -> tf.Tensor:
    runtime.check_joined()
    is_tensor = isinstance(value, tf.Tensor)
    tensor = value if is_tensor else tf.convert_to_tensor(value)
    if tensor.dtype not in SUPPORTED_DTYPES:
        raise TypeError(
            f"{function}: tensors of dtype {tensor.dtype.name} are not "
            "supported, only floating-point numbers, integers and bool."
        )
    return tensor


def checked_tensors(function: str, tensors: Any) -> list[Any]:
    """Returns a grouped collective's tensors as a list of unchecked values."""
    single = tf.Tensor | tf.IndexedSlices | tf.Variable | str | bytes
    if isinstance(tensors, single) or not isinstance(tensors, Iterable):
        instead = function.removeprefix("grouped_")
        raise TypeError(
            f"{function} takes a list of tensors, got a single "
            f"{type(tensors).__name__}. Use {instead} for it."
        )
    return list(tensors)


def check_rows(function: str, tensor: tf.Tensor) -> None:
    if tensor.shape.rank == 0:
        raise ValueError(
            f"{function}: a scalar has no first dimension, and the ranks have "
            "nothing to share out or to join. Pass a tensor of shape (1,), or "
            "with a row for each rank."
        )


def check_rows_kept(
    function: str, compression: Any, tensor: tf.Tensor, travels: tf.Tensor
) -> None:
    if not travels.shape[:1].is_compatible_with(tensor.shape[:1]):
        raise ValueError(
            f"{function}: {compression!r}.compress made the shape "
            f"{travels.shape} of {tensor.shape}. The ranks share out rows, so "
            "there must be as many as before."
        )


def checked_op(function: str, op: Any, average: Any) -> Any:
    """Returns the reduction for `op` and the deprecated `average`."""
    if average is None:
        return ReduceOp.Average if op is None else op
    if op is not None:
        raise ValueError(
            f"{function}: op takes the place of average; give only one of "
            f"them, got op={op!r} and average={average!r}."
        )
    if average not in (True, False):
        # `hvd.allreduce(tensor, "name")` of horovod.keras passes a name here.
        raise TypeError(
            f"{function}: average must be True or False, got {average!r}. If "
            "that is the name, pass it as name=."
        )
    instead = ReduceOp.Average if average else ReduceOp.Sum
    warnings.warn(
        f"{function}: average={average!r} is deprecated, pass "
        f"op=tfring.{instead.name}.",
        DeprecationWarning,
        # The warning points to the collective's caller, behind `not_converted`.
        stacklevel=4,
    )
    return instead


def check_reduction(function: str, op: ReduceOp, dtype: tf.DType) -> None:
    if not isinstance(op, ReduceOp):
        names = ", ".join(f"tfring.{known.name}" for known in ReduceOp)
        raise TypeError(f"{function}: op must be one of {names}; got {op!r}.")
    if op is ReduceOp.Adasum:
        if function.endswith("reducescatter"):
            raise NotImplementedError(
                f"{function}: there is no Adasum of the parts of a tensor. Use "
                "allreduce, or op=tfring.Average."
            )
        if not dtype.is_floating:
            raise ValueError(
                f"{function}: Adasum is of floating-point tensors, got "
                f"{dtype.name}. Use op=tfring.Sum or tfring.Average."
            )
    if op is ReduceOp.Average and dtype == tf.bool:
        raise ValueError(
            f"{function}: bool has no average. Use op=tfring.Max for 'any', "
            "op=tfring.Min for 'all'."
        )


def check_root_rank(
    function: str,
    root_rank: Any,
    process_set: ProcessSet = global_process_set,
) -> None:
    if isinstance(root_rank, bool) or not isinstance(root_rank, int):
        raise TypeError(
            f"{function}: root_rank must be an integer, got "
            f"{root_rank!r} of type {type(root_rank).__name__}."
        )
    if not 0 <= root_rank < runtime.size():
        raise ValueError(
            f"{function}: root_rank must be in [0, {runtime.size()}), the "
            f"ranks of this job, got {root_rank}."
        )
    if root_rank not in (process_set.ranks or []):
        raise ValueError(
            f"{function}: root_rank {root_rank} is not in {process_set}. It "
            "counts as tfring.rank() does."
        )


def check_whole_number(
    function: str, argument: str, value: Any, least: int
) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(
            f"{function}: {argument} must be a whole number, got {value!r} of "
            f"type {type(value).__name__}."
        )
    if value < least:
        raise ValueError(
            f"{function}: {argument} must be at least {least}, got {value}."
        )


def checked_factor(function: str, value: Any) -> float:
    if type(value) is float:  # the usual case, without further checks
        return value
    if not isinstance(value, numbers.Real):
        raise TypeError(
            f"{function}: scale factors must be Python numbers, got {value!r} "
            f"of type {type(value).__name__}. Multiply the tensor instead."
        )
    return float(value)


def checked_compression(
    function: str, compression: Any, process_set: ProcessSet
) -> AnyCompressor:
    compression = checked(function, compression)
    # A single rank sends nothing, so its tensors keep all their bits.
    return Compression.none if is_alone(process_set) else compression


def check_is_process_set(function: str, process_set: Any) -> None:
    if not isinstance(process_set, ProcessSet):
        raise TypeError(
            f"{function}: process_set must be a tfring.ProcessSet, got "
            f"{process_set!r} of type {type(process_set).__name__}."
        )


def check_process_set(function: str, process_set: Any) -> None:
    check_is_process_set(function, process_set)
    try:
        is_included = process_set.included()
    except NotInitializedError:
        raise
    except ValueError as error:  # the set is not part of the job
        raise InvalidArgumentError(f"{function}: {error}") from None
    if not is_included:
        raise InvalidArgumentError(
            f"{function}: this rank, {runtime.rank()}, is not in "
            f"{process_set}. Only its ranks may call it: ask its included() "
            "first."
        )


def checked_name(
    kind: str,
    name: str | None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> str:
    """Returns the name by which ranks know a collective.

    A `name` within `tf.name_scope` begins with the scope.
    """
    # Call this after all other checks: a rank must not count a call that
    # raises, or all its later names would differ from the names on other ranks.
    if name is not None and (not isinstance(name, str) or not name):
        raise TypeError(
            f"{kind}: name must be a string that is not empty, got {name!r}."
        )
    if name and not ignore_name_scope:
        scope = tf.get_current_name_scope()
        name = f"{scope}/{name}" if scope else name
    if tf.executing_eagerly():
        # Without a name, the engine names the call when it is submitted. For
        # every new name here TensorFlow would make, and keep, a new kernel.
        return name or ""
    if name and tf.compat.v1.get_default_graph().building_function:
        return name
    # Names depend on the position in this graph, so that every trace of a
    # function gives the same names, regardless of how often a rank traces it.
    # The same holds for explicit names in a TensorFlow 1 graph, where two
    # operations of one name could run at the same time.
    return unique_name(name or kind, process_set)


def own_name(name: str, process_set: ProcessSet = global_process_set) -> str:
    """Returns the name of a collective that tfring calls by itself.

    So it never pairs with a collective of another purpose on another rank. In a
    graph it may be called several times, and each call gets a name of its own.
    """
    if tf.executing_eagerly():
        return name
    return unique_name(name, process_set)
