"""Collectives on Python objects, which are sent pickled.

Received data is unpickled, because it comes from ranks of the same job. Pickle
finds functions and classes by name, so these must be importable on every rank.
If cloudpickle is installed, it is used for objects that pickle cannot take,
such as a lambda.
"""

from __future__ import annotations

import contextlib
import importlib
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfring._core import runtime
from tfring._core.process_sets import ProcessSet, global_process_set
from tfring._ops.allgather import allgather
from tfring._ops.arguments import check_process_set, check_root_rank
from tfring._ops.autograph import not_converted
from tfring._ops.broadcast import broadcast

# A rank that cannot pickle its object sends this in place of a size, so that no
# rank waits for the object.
_FAILED = -1


@not_converted
def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    session: tf.compat.v1.Session | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Gives every rank the Python object of one of them.

    Use it for objects that are not tensors: settings, the epoch to resume from,
    a vocabulary. Collective: every rank of the process set must call it, with
    the same `root_rank` and `name`; eagerly, or in a session.

    Args:
        obj: Anything that `pickle` takes, or cloudpickle if that is installed.
            It is ignored on all ranks except the root.
        root_rank: The rank of the object, from 0 to `size() - 1`.
        session: For programs of TensorFlow 1: the session to run in. Operations
            are added to its graph. By default the default session.
        name: See `tfring.allreduce`.
        process_set: See `tfring.allreduce`.

    Returns:
        On `root_rank` `obj` itself; on any other rank a copy of the root's
        `obj`.

    Raises:
        RuntimeError: It was called in a graph and no session, or the root
            could not pickle its object; the root itself gets pickle's error.
        TypeError: `root_rank` is no integer.
        ValueError: There is no such rank in the process set, this rank is not
            in it, or `init` has not been called.
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
    check_process_set("broadcast_object", process_set)
    check_root_rank("broadcast_object", root_rank, process_set)
    session = _session("broadcast_object", session)
    is_root = runtime.rank() == root_rank

    def received(value: Any, part: str) -> Any:
        result = broadcast(
            value,
            root_rank,
            name=_part(name, part),
            process_set=process_set,
        )
        return result.numpy() if session is None else session.run(result)

    with _graph(session):
        data, error = _pickled(obj) if is_root else (b"", None)
        size = received(np.int64(_size(data, error)), "size")
        if error is not None:
            raise error
        if size == _FAILED:
            raise _failed_elsewhere("broadcast_object", [root_rank])
        if not is_root:
            data = bytes(int(size))
        data = received(np.frombuffer(data, np.uint8), "data")
    return obj if is_root else pickle.loads(data)


def broadcast_object_fn(
    root_rank: int = 0,
    session: tf.compat.v1.Session | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Binds all arguments of `broadcast_object` except the object.

    Returns:
        A function of an object; every rank must call it.

    Raises:
        TypeError: `root_rank` is no integer.
        ValueError: See `broadcast_object`.

    Example:

    ```python
    import tfring

    tfring.init()
    from_root = tfring.broadcast_object_fn(root_rank=0)
    assert from_root(f"rank {tfring.rank()}") == "rank 0"
    ```
    """
    check_process_set("broadcast_object_fn", process_set)
    check_root_rank("broadcast_object_fn", root_rank, process_set)

    def broadcast(obj: Any = None) -> Any:
        return broadcast_object(obj, root_rank, session, name, process_set)

    return broadcast


@not_converted
def allgather_object(
    obj: Any,
    session: tf.compat.v1.Session | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Gives every rank a list of the Python objects of all of them.

    Collective: every rank of the process set must call it, with the same
    `name`; eagerly, or in a session.

    Args:
        obj: Anything that `pickle` takes.
        session: See `broadcast_object`.
        name: See `tfring.allreduce`.
        process_set: See `tfring.allreduce`.

    Returns:
        Copies of all objects, in the order of ranks.

    Raises:
        RuntimeError: It was called in a graph and no session, or another
            rank could not pickle its object; that rank gets pickle's error.
        ValueError: This rank is not in the process set, or `init` has not been
            called.
        tf.errors.FailedPreconditionError: The ranks did not agree.

    Example:

    ```python
    import tfring

    tfring.init()
    ranks = tfring.allgather_object({"rank": tfring.rank()})
    assert [each["rank"] for each in ranks] == list(range(tfring.size()))
    ```
    """
    check_process_set("allgather_object", process_set)
    session = _session("allgather_object", session)

    def gathered(value: Any, part: str) -> Any:
        result = allgather(
            value, name=_part(name, part), process_set=process_set
        )
        return result.numpy() if session is None else session.run(result)

    with _graph(session):
        data, error = _pickled(obj)
        # The rank is sent, too, because ranks that have joined send nothing.
        own = np.array([[runtime.rank(), _size(data, error)]], np.int64)
        ranks, sizes = gathered(own, "size").T
        if error is not None:
            raise error
        if _FAILED in sizes:
            failed = ranks[sizes == _FAILED]
            raise _failed_elsewhere("allgather_object", failed.tolist())
        received = gathered(np.frombuffer(data, np.uint8), "data")
    ends = np.cumsum(sizes)
    return [
        pickle.loads(received[end - size : end])
        for size, end in zip(sizes, ends, strict=True)
    ]


def _pickled(obj: Any) -> tuple[bytes, Exception | None]:
    try:
        return pickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL), None
    # Pickling runs the object's own code, which may raise anything.
    except Exception as error:
        failure = error
    with contextlib.suppress(Exception):
        return importlib.import_module("cloudpickle").dumps(obj), None
    return b"", failure


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


def _session(
    function: str, session: tf.compat.v1.Session | None
) -> tf.compat.v1.Session | None:
    """Returns the session to run in; None means eagerly."""
    if session is not None or tf.executing_eagerly():
        return session
    if not tf.compat.v1.get_default_graph().building_function:
        session = tf.compat.v1.get_default_session()
    if session is None:
        raise RuntimeError(
            f"{function} was called in a graph. Call it eagerly, or in a "
            "session of TensorFlow 1, which is the default one or passed as "
            "session=; inside a tf.function, use the collectives on tensors."
        )
    return session


def _graph(session: tf.compat.v1.Session | None) -> Any:
    """Enters the session's graph; does nothing without a session."""
    if session is None:
        return contextlib.nullcontext()
    return session.graph.as_default()
