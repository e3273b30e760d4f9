"""predict: all ranks' predictions, in the order of the whole data."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from tfring._core import runtime
from tfring._core.process_sets import ProcessSet, global_process_set
from tfring._ops.allgather import grouped_allgather
from tfring._ops.arguments import check_process_set
from tfring._ops.objects import allgather_object
from tfring.metrics._parts import as_text, has_samples, raise_errors

_FUNCTION = "tfring.metrics.predict"


def predict(
    model: Any,
    x: Any = None,
    *,
    batch_size: int | None = None,
    verbose: Any = "auto",
    steps: int | None = None,
    callbacks: Sequence[Any] | None = None,
    order: Literal["dealt", "blocks"] = "dealt",
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Predicts on all ranks, each for its part; all ranks get all results.

    Every rank calls `model.predict`. The predictions are then gathered, and put
    into the order that the samples had before they were distributed. A rank may
    have no data.

    Collective: every rank must call it, with the same weights in the model.

    Args:
        model: A Keras model.
        x: This rank's part: a dataset, arrays, or any other input of
            `model.predict`. None or an empty input: this rank has no data.
        batch_size: As for `model.predict`, like the arguments below.
        verbose: As for `model.predict`. Only rank 0 shows a progress bar, of
            its own part.
        steps: How many batches of an infinite dataset are used.
        callbacks: Callbacks, which are called on this rank for its part.
        order: How the samples were distributed. "dealt": one after the other to
            the ranks of `process_set`, as by `tfring.data.shard` and
            `x[rank()::size()]`. Batch the samples after that, because dealt
            batches cannot be told from samples. "blocks": each rank has a
            contiguous part, as from `np.array_split`. Must agree across ranks.
        process_set: Which ranks predict together.

    Returns:
        On every rank the result of `model.predict` for all the data: an
        array, or a structure of arrays, one for each output. After
        `tfring.data.shard(..., remainder="keep")` there is a row for each
        element; with "pad" those that were repeated are at the end.

    Raises:
        Exception: Any error of `model.predict` on this rank.
        RuntimeError: `model.predict` raised an error on another rank.
        TypeError: An output is ragged or sparse, or of a dtype that `allgather`
            does not take, or the outputs are in a class that cannot be pickled.
        ValueError: `order` is neither of these; or, on every rank, none has
            data, the outputs of ranks do not fit together, or ranks do not have
            as many samples as if they had been dealt out.

    Example:

    ```python
    import keras
    import numpy as np
    import tfring

    tfring.init()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    tfring.broadcast_variables(model.variables, 0)
    x = np.random.default_rng(0).normal(size=(9, 4))
    mine = x[tfring.rank() :: tfring.size()]
    assert tfring.metrics.predict(model, mine, verbose=0).shape == (9, 1)
    ```
    """
    check_process_set(_FUNCTION, process_set)
    if order not in ("dealt", "blocks"):
        raise ValueError(
            f"{_FUNCTION}: order must be 'dealt' or 'blocks', got {order!r}."
        )
    outputs, error, own = None, None, None
    try:
        if has_samples(x):
            outputs = model.predict(
                x,
                batch_size=batch_size,
                verbose=verbose if runtime.rank() == 0 else 0,
                steps=steps,
                callbacks=callbacks,
            )
            own = _described(outputs)
    except Exception as raised:  # the other ranks wait
        error = raised
    everyones = allgather_object(
        (runtime.rank(), own, as_text(error)),
        name="predict/begin",
        process_set=process_set,
    )
    raise_errors(_FUNCTION, error, {rank: text for rank, _, text in everyones})
    structure, kinds = _checked({rank: of for rank, of, _ in everyones})
    counts = [0 if of is None else of[2] for _, of, _ in everyones]
    places = _places(counts, order)
    if outputs is None:
        leaves = [np.empty((0, *shape), dtype) for dtype, shape in kinds]
    else:
        leaves = keras.tree.flatten(outputs)
    results = _gathered(leaves, places, process_set)
    return keras.tree.pack_sequence_as(structure, results)


def _described(outputs: Any) -> tuple[Any, list[Any], int]:
    """Returns the outputs' structure, dtypes and row shapes, and the rows."""
    leaves = keras.tree.flatten(outputs)
    for leaf in leaves:
        if not isinstance(leaf, np.ndarray):
            raise TypeError(
                f"{_FUNCTION}: an output is no array, but a "
                f"{type(leaf).__name__}. Make it dense in the model."
            )
    counts = {len(leaf) for leaf in leaves}
    if len(counts) != 1:
        raise ValueError(
            f"{_FUNCTION}: the outputs have different numbers of rows, "
            f"{sorted(counts)}. Each needs one for every sample."
        )
    structure = keras.tree.map_structure(lambda _: 0, outputs)
    try:
        pickle.dumps(structure)
    except Exception as error:  # the other ranks wait
        raise TypeError(
            f"{_FUNCTION}: the outputs' {type(outputs).__name__!r} cannot be "
            f"pickled for ranks without data: {error}. Define the classes of "
            "outputs in a module."
        ) from error
    return (
        structure,
        [(str(leaf.dtype), leaf.shape[1:]) for leaf in leaves],
        counts.pop(),
    )


def _checked(of_ranks: dict[int, Any]) -> tuple[Any, list[Any]]:
    """Returns the structure of all outputs, and their dtypes and row shapes."""
    with_data = {rank: of for rank, of in of_ranks.items() if of is not None}
    if not with_data:
        raise ValueError(
            f"{_FUNCTION}: none of the ranks {list(of_ranks)} has data. Pass "
            "some on one of them at least."
        )
    root, first = next(iter(with_data.items()))
    for rank, of_rank in with_data.items():
        if of_rank[:2] != first[:2]:
            raise ValueError(
                f"{_FUNCTION}: the outputs of ranks do not fit together. As "
                "structure, and dtype and shape of a row, rank "
                f"{root} has {first[:2]}; rank {rank} has {of_rank[:2]}. Pad "
                "the data to one length on all ranks."
            )
    return first[0], first[1]


def _places(counts: list[int], order: str) -> Any:
    """Returns the index of each gathered row in the whole."""
    if order == "blocks":
        return np.arange(sum(counts))
    places = np.concatenate(
        [i + len(counts) * np.arange(count) for i, count in enumerate(counts)]
    )
    if places.size and places.max() >= places.size:
        raise ValueError(
            f"{_FUNCTION}: the ranks have {counts} samples, which were not "
            "dealt out one after the other: the first ones would have at most "
            "one more than the others. Share the data out by "
            'tfring.data.shard(..., remainder="keep"), or pass order="blocks" '
            "if each rank has a contiguous part."
        )
    return places


def _gathered(
    leaves: list[Any], places: Any, process_set: ProcessSet
) -> list[Any]:
    """Returns the rows of all ranks, each at its place. Collective."""
    gathered = grouped_allgather(
        [tf.constant(leaf) for leaf in leaves],
        name="predict/rows",
        process_set=process_set,
    )
    results = []
    for rows in gathered:
        whole = np.empty(rows.shape, rows.dtype.as_numpy_dtype)
        whole[places] = rows.numpy()
        results.append(whole)
    return results
