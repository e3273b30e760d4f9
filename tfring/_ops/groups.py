"""Grouped collectives: tensors of mixed dtypes as one chain of requests.

A request has one dtype, so a group has one for each of its dtypes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Request:
    """The tensors of one dtype, as `chains.start_*` takes them."""

    positions: list[int]  # indices in the list of all tensors
    tensors: list[tf.Tensor]
    request_name: str
    tensor_names: list[str]
    last: bool


def requests_of(
    tensors: Sequence[tf.Tensor],
    name: str,
    tensor_names: Sequence[str] | None = None,
) -> Iterator[Request]:
    """Splits tensors by dtype, in the order the dtypes first appear.

    Args:
        tensors: At least one tensor.
        name: The first request's name; later requests append their dtype. ""
            leaves all names to the engine.
        tensor_names: Names of the tensors in errors; by default numbers.
    """
    if len(tensors) == 1 and tensor_names is not None:
        yield Request([0], [*tensors], name, [*tensor_names], last=True)
        return
    if tensor_names is None:
        tensor_names = [f"tensor {i}" for i in range(len(tensors))]
    of_dtype: dict[tf.DType, list[int]] = {}
    for position, tensor in enumerate(tensors):
        of_dtype.setdefault(tensor.dtype, []).append(position)
    for number, (dtype, positions) in enumerate(of_dtype.items()):
        yield Request(
            positions,
            [tensors[i] for i in positions],
            f"{name}/{dtype.name}" if name and number > 0 else name,
            [tensor_names[i] for i in positions],
            last=number == len(of_dtype) - 1,
        )


def in_order(
    results: Sequence[tuple[Request, Sequence[tf.Tensor]]],
) -> list[tf.Tensor]:
    """Returns the results of all requests in the order of their tensors.

    In a TensorFlow 1 graph, fetching one result runs all requests: a session
    would otherwise leave some requests in flight.
    """
    if tf.executing_eagerly() and len(results) == 1:
        return list(results[0][1])
    by_position = {
        position: result
        for request, of_request in results
        for position, result in zip(request.positions, of_request, strict=True)
    }
    ordered = [by_position[i] for i in range(len(by_position))]
    if not tf.executing_eagerly():
        graph = tf.compat.v1.get_default_graph()
        if not graph.building_function:
            return list(tf.tuple(ordered))
    return ordered
