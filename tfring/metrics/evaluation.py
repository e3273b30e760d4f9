"""evaluate: the metrics of all ranks' data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfring._core import runtime
from tfring._core.process_sets import ProcessSet, global_process_set
from tfring._keras.metric_states import (
    State,
    consists_of_sums,
    float_or_array,
    in_shapes,
    metrics_of,
    set_state,
    state_of,
)
from tfring._ops.allreduce import allreduce
from tfring._ops.arguments import check_process_set
from tfring._ops.gather_json import gather_by_rank
from tfring._ops.objects import broadcast_object
from tfring._ops.reductions import ReduceOp
from tfring.metrics._parts import as_text, has_samples, raise_errors

_FUNCTION = "tfring.metrics.evaluate"

# The values of a rank without data, which do not change a reduction.
_NEUTRAL = {
    ReduceOp.Sum: 0.0,
    ReduceOp.Max: -np.inf,
    ReduceOp.Min: np.inf,
    ReduceOp.Product: 1.0,
}


def evaluate(
    model: Any,
    x: Any = None,
    y: Any = None,
    *,
    batch_size: int | None = None,
    verbose: Any = "auto",
    sample_weight: Any = None,
    steps: int | None = None,
    callbacks: Sequence[Any] | None = None,
    merge: Mapping[str, ReduceOp] | None = None,
    process_set: ProcessSet = global_process_set,
) -> dict[str, Any]:
    """Evaluates a model on all ranks' data, each rank on its own part.

    The results equal those of one process with all the data, up to rounding:
    every rank calls `model.evaluate`, and the states of the metrics, such as
    the numbers of correct and of all samples, are added up before the results
    are computed. So AUC, a root of a mean and weighted metrics are correct,
    too, however unequal the parts are. A rank may have no data.

    That holds for Keras's own metrics, subclasses of them that inherit
    `update_state`, and subclasses of `keras.metrics.Mean` and `Sum` that add no
    variables. For other metrics, `merge` says how to combine the states.

    Collective: every rank must call it, with the same weights in the model.

    Args:
        model: A compiled Keras model.
        x: This rank's part: a dataset, such as `tfring.data.shard` gives,
            arrays, or any other input of `model.evaluate`. None or an empty
            input: this rank has no data.
        y: As for `model.evaluate`, like the arguments below.
        batch_size: How many samples are evaluated at a time.
        verbose: As for `model.evaluate`. Only rank 0 shows a progress bar, of
            its own part.
        sample_weight: Weights of the samples in `x`.
        steps: How many batches of an infinite dataset are evaluated.
        callbacks: Callbacks, which are called on this rank for its part.
        merge: How to reduce the ranks' values of a metric's variables, by the
            metric's name: `tfring.Sum`, `Max`, `Min` or `Product`. Must agree
            across ranks.
        process_set: Which ranks evaluate together.

    Returns:
        The result of each metric by its name, the same on all ranks: a number,
        or an array if the metric returns one. The loss is "loss".

    Raises:
        Exception: Any error of `model.evaluate` on this rank.
        RuntimeError: `model.evaluate` raised an error on another rank.
        TypeError: `merge` is not a dictionary of these reductions.
        ValueError: On every rank: none has data, ranks have different metrics,
            a metric's state cannot be merged, or the model's `test_step`
            returns values that are from no metric.

    Example:

    ```python
    import keras
    import numpy as np
    import tensorflow as tf
    import tfring

    tfring.init()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(loss="mse")
    tfring.broadcast_variables(model.variables, 0)
    data = np.ones((9, 4)), np.ones((9, 1))
    rows = tf.data.Dataset.from_tensor_slices(data)
    mine = tfring.data.shard(rows, seed=None, remainder="keep").batch(2)
    print(tfring.metrics.evaluate(model, mine, verbose=0)["loss"])
    ```
    """
    check_process_set(_FUNCTION, process_set)
    merge = _checked_merge(merge)
    kinds, strange, state, error = None, [], [], None
    try:
        if has_samples(x):
            logs = model.evaluate(
                x,
                y,
                batch_size=batch_size,
                verbose=verbose if runtime.rank() == 0 else 0,
                sample_weight=sample_weight,
                steps=steps,
                callbacks=callbacks,
                return_dict=True,
            )
            state = state_of(model)
            kinds, strange = _kinds(model, merge), _strange(model, logs)
    except Exception as raised:  # the other ranks wait
        error = raised
    everyones = gather_by_rank(
        {"error": as_text(error), "metrics": kinds, "strange": strange},
        name="evaluate/begin",
        process_set=process_set,
    )
    raise_errors(
        _FUNCTION, error, {r: each["error"] for r, each in everyones.items()}
    )
    root, metrics = _checked(everyones, merge)
    merged = _merged(state, metrics, process_set)
    return _results(model, state, merged, root, process_set)


def _checked_merge(
    merge: Mapping[str, ReduceOp] | None,
) -> Mapping[str, ReduceOp]:
    if merge is None:
        return {}
    if not isinstance(merge, Mapping) or not all(
        isinstance(op, ReduceOp) and op in _NEUTRAL for op in merge.values()
    ):
        raise TypeError(
            f"{_FUNCTION}: merge must be a dictionary such as "
            f"{{'my_metric': tfring.Max}}, of Sum, Max, Min and Product, got "
            f"{merge!r}."
        )
    return merge


def _kinds(model: Any, merge: Mapping[str, ReduceOp]) -> list[Any]:
    """Returns the name, class, reduction and shapes of each metric."""
    kinds = []
    for metric in metrics_of(model):
        op = merge.get(metric.name)
        if op is None and (not metric.variables or consists_of_sums(metric)):
            op = ReduceOp.Sum
        shapes = [list(v.shape) for v in metric.variables]
        name = op and ReduceOp(op).name
        kinds.append([metric.name, type(metric).__name__, name, shapes])
    return kinds


def _strange(model: Any, logs: Mapping[str, Any]) -> list[str]:
    """Returns the names of `test_step`'s results that are no metrics."""
    return sorted(set(logs) - set(model.get_metrics_result()))


def _checked(
    everyones: dict[int, Any], merge: Mapping[str, ReduceOp]
) -> tuple[int, list[Any]]:
    """Returns the first rank with data, and its metrics.

    Raises:
        ValueError: No rank has data, or metrics do not fit. It is raised on
            every rank.
    """
    with_data = {
        rank: each for rank, each in everyones.items() if each["metrics"]
    }
    if not with_data:
        raise ValueError(
            f"{_FUNCTION}: none of the ranks {list(everyones)} has data and "
            "metrics. Pass data on one of them at least, to a compiled model."
        )
    root, first = next(iter(with_data.items()))
    for rank, each in with_data.items():
        if each["metrics"] != first["metrics"]:
            raise ValueError(
                f"{_FUNCTION}: the ranks have different metrics. As name, "
                "class, reduction and shapes of the state, rank "
                f"{root} has {first['metrics']}; rank {rank} has "
                f"{each['metrics']}. Compile the model alike on every rank."
            )
        if each["strange"]:
            raise ValueError(
                f"{_FUNCTION}: the model's test_step returns "
                f"{', '.join(each['strange'])}, which is the result of none of "
                "model.metrics, and cannot be computed for all ranks. Keep it "
                "in a metric that is an attribute of the model."
            )
    names = [name for name, *_ in first["metrics"]]
    for name, kind, op, _ in first["metrics"]:
        if op is None:
            raise ValueError(
                f"{_FUNCTION}: the state of the metric {name!r} ({kind}) is "
                "not known to be a sum over samples. Say how the states of "
                f"ranks are put together: merge={{{name!r}: tfring.Sum}}, or "
                "Max, Min or Product. If none of them does, gather the data "
                "with tfring.metrics.predict, and compute it there."
            )
    if unknown := sorted(set(merge) - set(names)):
        raise ValueError(
            f"{_FUNCTION}: merge names {', '.join(unknown)}; the model's "
            f"metrics are {', '.join(names)}."
        )
    return root, first["metrics"]


def _merged(state: State, metrics: list[Any], process_set: ProcessSet) -> State:
    """Merges the ranks' states; a rank without data has an empty state.

    The metrics are those of `_kinds`, the same on all ranks.
    """
    ops = [ReduceOp[op] for *_, op, shapes in metrics for _ in shapes]
    shapes = [shape for *_, of_metric in metrics for shape in of_metric]
    merged: State = [np.empty(0)] * len(shapes)
    for op, neutral in _NEUTRAL.items():
        of_op = [i for i, each in enumerate(ops) if each is op]
        if not of_op:
            continue
        own = [
            np.ravel(state[i]) if state else np.full(shapes[i], neutral).ravel()
            for i in of_op
        ]
        values = allreduce(
            tf.constant(np.concatenate(own), tf.float64),
            op=op,
            name=f"evaluate/{op.name}",
            process_set=process_set,
        ).numpy()
        parts = in_shapes(values, [shapes[i] for i in of_op])
        for i, part in zip(of_op, parts, strict=True):
            merged[i] = part
    return merged


def _results(
    model: Any,
    own: State,
    merged: State,
    root: int,
    process_set: ProcessSet,
) -> dict[str, Any]:
    """Returns the results of the merged states. Collective.

    All ranks take those of `root`, because a rank without data may have metrics
    without variables. Its model keeps its `own` state.
    """
    results, problem = None, None
    if runtime.rank() == root:
        set_state(model, merged)
        try:
            results = {
                name: float_or_array(value)
                for name, value in model.get_metrics_result().items()
            }
        except Exception as raised:  # a metric's code may raise anything
            problem = as_text(raised)
        set_state(model, own)
    results, problem = broadcast_object(
        (results, problem),
        root,
        name="evaluate/results",
        process_set=process_set,
    )
    if problem is not None:
        raise ValueError(
            f"{_FUNCTION}: no results from the states of all ranks: {problem}"
        )
    return dict(results)
