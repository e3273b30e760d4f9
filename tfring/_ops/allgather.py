"""allgather and grouped_allgather."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfring._core.process_sets import ProcessSet, global_process_set
from tfring._ops import gradients as gradients  # registers them
from tfring._ops.arguments import (
    check_process_set,
    check_rows,
    checked_name,
    checked_tensor,
    checked_tensors,
)
from tfring._ops.autograph import not_converted
from tfring._ops.chains import finish_allgather, start_allgather
from tfring._ops.groups import Request, in_order, requests_of
from tfring._ops.ordering import Started


@not_converted
def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Concatenates the tensors of all ranks along their first dimension.

    Collective: every rank must call it, with the same dtype, `name` and
    dimensions. Only the first dimension may differ, and it may be 0. Not
    supported under `jit_compile=True`, where shapes are static.

    Its gradient is this rank's rows of the average of the ranks' gradients, as
    in Horovod. The exact gradient of the sum of the ranks' losses would be
    `size()` times as large.

    Args:
        tensor: A tensor with at least one dimension, of a dtype that
            `allreduce` takes.
        name: See `allreduce`.
        ignore_name_scope: See `allreduce`.
        process_set: See `allreduce`.

    Returns:
        The rows of rank 0, then the rows of rank 1, and so on.

    Raises:
        NotImplementedError: It is being traced for XLA.
        TypeError: The dtype is not supported.
        ValueError: `tensor` is a scalar, or `init` has not been called.
        tf.errors.FailedPreconditionError: The ranks did not agree.

    Example:
    ```python
    import tensorflow as tf
    import tfring

    tfring.init()
    ranks = tfring.allgather(tf.constant([tfring.rank()]))
    assert ranks.numpy().tolist() == list(range(tfring.size()))
    ```
    """
    check_process_set("allgather", process_set)
    tensor = checked_tensor("allgather", tensor)
    check_rows("allgather", tensor)
    name = checked_name("allgather", name, ignore_name_scope, process_set)
    gathering = start_gather(
        [tensor], name=name, tensor_names=[name], process_set=process_set
    )
    [result], _ = finish_gather(gathering)
    return result


@not_converted
def grouped_allgather(
    tensors: Iterable[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Gathers several tensors, with one request for each dtype.

    It is faster than as many calls of `allgather`, and equivalent to them.
    `tensors` is a list of tensors, of any dtypes and numbers of rows. All other
    arguments, and the errors, are those of `allgather`.

    Collective: every rank must call it, with the same number of tensors, and
    tensors that `allgather` would take together.

    Returns:
        The results, in the order of `tensors`; an empty list for no tensors.

    Example:
    ```python
    import tensorflow as tf
    import tfring

    tfring.init()
    labels, scores = tfring.grouped_allgather(
        [tf.constant([tfring.rank()]), tf.constant([[0.5, 0.5]])]
    )
    assert labels.shape == [tfring.size()]
    assert scores.shape == [tfring.size(), 2]
    ```
    """
    function = "grouped_allgather"
    check_process_set(function, process_set)
    tensors = [
        checked_tensor(function, tensor)
        for tensor in checked_tensors(function, tensors)
    ]
    for tensor in tensors:
        check_rows(function, tensor)
    if not tensors:
        return []
    name = checked_name("allgather", name, ignore_name_scope, process_set)
    results, _ = finish_gather(
        start_gather(tensors, name=name, process_set=process_set)
    )
    return results


@dataclasses.dataclass(frozen=True)
class Gathering:
    """An allgather of several tensors that has been started."""

    requests: Sequence[tuple[Request, Started]]

    @property
    def starts(self) -> list[Started]:
        return [started for _, started in self.requests]


def start_gather(
    tensors: Sequence[tf.Tensor],
    *,
    name: str,
    tensor_names: Sequence[str] | None = None,
    previous: Started | None = None,
    last: bool = True,
    process_set: ProcessSet,
) -> Gathering:
    """Starts gathering checked tensors, after `previous` in its chain."""
    started = previous
    requests = []
    for request in requests_of(tensors, name, tensor_names):
        started = start_allgather(
            request.tensors,
            request_name=request.request_name,
            tensor_names=request.tensor_names,
            previous=started,
            process_set=process_set,
            last=last and request.last,
        )
        requests.append((request, started))
    return Gathering(requests)


def finish_gather(gathering: Gathering) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Returns the results of `start_gather` and the number of contributors.

    Contributors are the ranks that have not joined; their number is int64.
    """
    results = []
    for request, started in gathering.requests:
        # A rank takes part in all requests of a chain, or in none.
        gathered, contributors = finish_allgather(started)
        results.append((request, gathered))
    return in_order(results), contributors
