"""Collectives on Python objects, which travel pickled.

What arrives is unpickled, as it is from ranks of the same job. Pickle finds
functions and classes by name, so these must be importable on every rank.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfring import _runtime, collectives
from tfring._arguments import check_root_rank

# Sent in place of a size by a rank that cannot pickle its object, so that the
# others do not wait for it.
_FAILED = -1


def broadcast_object(
    obj: Any = None, root_rank: int = 0, *, name: str | None = None
) -> Any:
    """Gives every rank the Python object of one of them.

    For what is no tensor: settings, the epoch to resume from, a vocabulary.
    Collective: every rank must call it, eagerly, with the same `root_rank` and
    `name`.

    Args:
        obj: Anything that `pickle` takes. On other ranks than the root it does
            not count.
        root_rank: Whose object it is, from 0 to `size() - 1`.
        name: As for `tfring.allreduce`.

    Returns:
        On `root_rank` `obj` itself, on other ranks a copy of that rank's.

    Raises:
        RuntimeError: It was called while tracing a `tf.function`, or the root
            could not pickle its object; the root itself gets pickle's error.
        TypeError: `root_rank` is no integer.
        ValueError: There is no such rank, or `init` has not been called.
        tf.errors.FailedPreconditionError: The ranks did not agree.

    Example:

    ```python
    import tfring

    tfring.init()
    state = {"epoch": 7} if tfring.rank() == 0 else None
    state = tfring.broadcast_object(state, root_rank=0)
    assert state["epoch"] == 7
    ```
    """
    _check_eager("broadcast_object")
    check_root_rank("broadcast_object", root_rank)
    is_root = _runtime.rank() == root_rank
    data, error = _pickled(obj) if is_root else (b"", None)
    size = collectives.broadcast(
        tf.constant(_size(data, error), tf.int64),
        root_rank,
        name=_part(name, "size"),
    )
    if error is not None:
        raise error
    if size == _FAILED:
        raise _failed_elsewhere("broadcast_object", [root_rank])
    if not is_root:
        data = bytes(int(size))
    received = collectives.broadcast(
        np.frombuffer(data, np.uint8), root_rank, name=_part(name, "data")
    )
    return obj if is_root else pickle.loads(received.numpy())


def broadcast_object_fn(
    root_rank: int = 0, *, name: str | None = None
) -> Callable[[Any], Any]:
    """Makes a function of `broadcast_object`, with the rank and name given.

    Args:
        root_rank: As for `broadcast_object`.
        name: As for `broadcast_object`.

    Returns:
        A function of an object; every rank must call it.

    Raises:
        TypeError: `root_rank` is no integer.
        ValueError: There is no such rank, or `init` has not been called.

    Example:

    ```python
    import tfring

    tfring.init()
    from_root = tfring.broadcast_object_fn(root_rank=0)
    assert from_root(f"rank {tfring.rank()}") == "rank 0"
    ```
    """
    check_root_rank("broadcast_object_fn", root_rank)

    def broadcast(obj: Any = None) -> Any:
        return broadcast_object(obj, root_rank, name=name)

    return broadcast


def allgather_object(obj: Any, *, name: str | None = None) -> list[Any]:
    """Gives every rank a list of the Python objects of all of them.

    Collective: every rank must call it, eagerly, with the same `name`.

    Args:
        obj: Anything that `pickle` takes.
        name: As for `tfring.allreduce`.

    Returns:
        Copies of all objects, that of rank 0 first.

    Raises:
        RuntimeError: It was called while tracing a `tf.function`, or another
            rank could not pickle its object; that rank gets pickle's error.
        ValueError: `init` has not been called.
        tf.errors.FailedPreconditionError: The ranks did not agree.

    Example:

    ```python
    import tfring

    tfring.init()
    ranks = tfring.allgather_object({"rank": tfring.rank()})
    assert [each["rank"] for each in ranks] == list(range(tfring.size()))
    ```
    """
    _check_eager("allgather_object")
    data, error = _pickled(obj)
    sizes = collectives.allgather(
        tf.constant([_size(data, error)], tf.int64), name=_part(name, "size")
    ).numpy()
    if error is not None:
        raise error
    if _FAILED in sizes:
        failed = np.flatnonzero(sizes == _FAILED).tolist()
        raise _failed_elsewhere("allgather_object", failed)
    received = collectives.allgather(
        np.frombuffer(data, np.uint8), name=_part(name, "data")
    ).numpy()
    ends = np.cumsum(sizes)
    return [
        pickle.loads(received[end - size : end])
        for size, end in zip(sizes, ends, strict=True)
    ]


def _pickled(obj: Any) -> tuple[bytes, Exception | None]:
    try:
        return pickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL), None
    except Exception as error:  # Pickle, and any object's own, raise all kinds.
        return b"", error


def _size(data: bytes, error: Exception | None) -> int:
    return len(data) if error is None else _FAILED


def _part(name: str | None, part: str) -> str | None:
    return f"{name}/{part}" if name else name


def _failed_elsewhere(function: str, ranks: list[int]) -> RuntimeError:
    where = ", ".join(f"rank {rank}" for rank in ranks)
    return RuntimeError(
        f"{function}: {where} could not pickle its object; see the error "
        "there. Pass what pickle takes: data, and functions and classes of "
        "modules, but no lambdas, open files or locks."
    )


def _check_eager(function: str) -> None:
    if not tf.executing_eagerly():
        raise RuntimeError(
            f"{function} was called while tracing a tf.function. Call it "
            "eagerly; inside, use the collectives on tensors."
        )
