"""Ranks that train together in `fit` agree before the first callback.

Each rank runs its own `fit`, with callbacks that see only that rank's data. If
a rank stops alone, or has one batch more, the remaining ranks wait in the
middle of a reduction. Two ranks that write one file corrupt it. So when a `fit`
with a distributed optimizer begins, the ranks compare everything that must be
equal. Until training has ended, `fit` also uses a corrected list of callbacks:

- JoinCallback is first. If a callback decides by metrics that are not yet
  averaged, they are averaged before any callback sees them.
- If several ranks would write the same file, only the first of them does. If it
  restores a backup, all ranks get the restored state.
- If any rank sets `model.stop_training`, all ranks stop together: at the end of
  the batch if some callback looks at batches, else at the end of the epoch.

The last callback, `Agreement`, does this, and keeps comparing the ranks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import keras

from tfring._core import runtime
from tfring._core.process_sets import (
    ProcessSet,
    global_process_set,
    is_alone,
)
from tfring._keras.callback_kinds import (
    averages_metrics,
    backups,
    check_goes_with_parameters,
    check_goes_with_rounds,
    check_goes_with_shards,
    decides,
    is_ours,
    joins,
    looks_at_batches,
    must_be_alike,
    needs_averages,
    written_by,
)
from tfring._keras.data_orders import (
    draws_before_shards,
    warn_of_different_orders,
)
from tfring._keras.data_seeds import seeds_of, warn_of_same_draws
from tfring._keras.epochs import LastInFit, with_places
from tfring._keras.fit_agreement import Agreement, Terms, check_alike
from tfring._keras.memory_errors import with_remedy
from tfring._keras.metric_averages import MetricAverages, MetricNotes
from tfring._keras.rounds_in_fit import EndOfCallbacks, RoundsInFit
from tfring._keras.saving import (
    GatherStates,
    check_tells_when_it_saves,
    has_shards,
    keeps_weights,
    saves_in_batches,
    saves_models,
)
from tfring._memory.parameters import parameters_of
from tfring._ops.gather_json import gather_by_rank
from tfring._optim.rounds import optimizers_in_rounds
from tfring._optim.running_fits import RunningFit, known_to_fit
from tfring._state.kinds import open_rounds, rounds_among
from tfring._state.model_state import local_variables_of
from tfring._state.optimizers import distributed_optimizers
from tfring._state.row_shards import has_tables

# The callbacks that this module adds to a `fit`.
_OURS = (Agreement, GatherStates, MetricNotes, RoundsInFit, EndOfCallbacks)


def fit(
    keras_fit: Callable[..., Any], model: Any, *args: Any, **kwargs: Any
) -> Any:
    """Makes the ranks agree before the first callback of a `fit`."""
    data = [*args, kwargs.get("x")][0]
    last, given = with_places(keras_fit, model, args, kwargs)
    if last:
        args, kwargs = (), given
    with ExitStack() as at_end:
        for each in last:
            at_end.callback(each.after_fit)
        begun = at_end.enter_context(known_to_fit(model))
        model.__dict__["_tfring_fit_begins"] = begun, data, at_end
        at_end.callback(model.__dict__.pop, "_tfring_fit_begins", None)
        at_end.enter_context(with_remedy(model))
        return keras_fit(model, *args, **kwargs)


def on_train_begin(
    keras_begin: Callable[..., None], callback_list: Any, logs: Any = None
) -> None:
    """Corrects the callbacks of a `fit`, but not of a custom loop."""
    begun = getattr(getattr(callback_list, "model", None), "__dict__", {})
    if "_tfring_fit_begins" in begun:
        _put_right(callback_list, *begun.pop("_tfring_fit_begins"))
    keras_begin(callback_list, logs)


def _put_right(
    callback_list: Any, begun: RunningFit, data: Any, at_end: ExitStack
) -> None:
    """Makes the ranks agree on the callbacks of a `fit` that begins."""
    # A failed `fit` may have left some of tfring's callbacks.
    callback_list.callbacks = [
        each
        for each in callback_list.callbacks
        if not isinstance(each, _OURS) and type(each) is not MetricAverages
    ]
    model, given = callback_list.model, callback_list.callbacks
    if any(map(has_shards, distributed_optimizers(model))):
        check_goes_with_shards(given, "shard_states=True")
    if has_tables(model):
        check_goes_with_shards(given, "tfring.layers.ShardedEmbedding")
    if parameters_of(model.trainable_variables):
        check_goes_with_parameters(given)
    if optimizers_in_rounds(model):
        check_goes_with_rounds(given)
    if _has_parts(model):
        for callback in given:
            check_tells_when_it_saves(callback)
    in_batches = any(map(saves_in_batches, given))
    process_set = _training_together(model, given)
    if process_set is not None:
        everyones = _gather(callback_list, data, process_set)
        decision = _decide(callback_list, everyones, process_set)
        _arrange(callback_list, decision)
        in_batches = decision.in_batches
        if decision.gather is not None:
            at_end.push(decision.gather.after_fit)
        if decision.in_a_round:
            # A failed `fit`, or an earlier optimizer, may have left a round
            # open.
            for each in rounds_among(model.variables):
                each.take_mean()
    if optimizers_in_rounds(model):
        begun.ends_rounds = True
        rounds = RoundsInFit(saves_in_batches=in_batches)
        at_end.callback(rounds.hide)
        _surround(callback_list, rounds)
    _put_last(callback_list)


def _gather(
    callback_list: Any, data: Any, process_set: ProcessSet
) -> dict[int, Any]:
    """Returns the facts about each rank's `fit`, once they are found alike."""
    given, params = callback_list.callbacks, callback_list.params or {}
    uneven = any(map(joins, given))
    own = {
        "alike": {
            "epochs": params.get("epochs"),
            "batches in an epoch": None if uneven else params.get("steps"),
            "steps_per_execution": getattr(
                callback_list.model, "steps_per_execution", 1
            ),
            "callbacks": [
                type(each).__name__ for each in given if must_be_alike(each)
            ],
        },
        "writes": [written for each in given if (written := written_by(each))],
        "saves elsewhere": any(
            saves_models(each) and written_by(each) is None for each in given
        )
        or (
            any(map(keeps_weights, given))
            and bool(parameters_of(callback_list.model.trainable_variables))
        ),
        "saves in batches": any(map(saves_in_batches, given)),
        "backups": backups(given),
        "needs averages": needs_averages(given),
        "looks at batches": any(map(looks_at_batches, given)),
        "in a round": bool(open_rounds(callback_list.model.variables)),
        "seeds": seeds_of(data),
        "draws before shards": draws_before_shards(data, process_set.size()),
    }
    everyones = gather_by_rank(own, name="fit/begin", process_set=process_set)
    check_alike(
        {rank: each["alike"] for rank, each in everyones.items()},
        "at the beginning",
    )
    warn_of_same_draws(
        {rank: each["seeds"] for rank, each in everyones.items()},
        runtime.rank(),
    )
    warn_of_different_orders(
        {rank: own["draws before shards"] for rank, own in everyones.items()},
        runtime.rank(),
    )
    return everyones


@dataclasses.dataclass(frozen=True)
class _Decision:
    """Which callbacks this rank runs, after the ranks have agreed.

    Attributes:
        kept: The given callbacks, without writers of a file that another rank
            writes.
        averages: True if metrics are averaged before a callback decides.
        gather: The callback that gathers states before a callback saves; None
            if each rank has them whole, or no rank saves.
        in_batches: True if a callback on some rank saves within an epoch.
        in_a_round: True if an earlier `fit` has left a rank in a round.
        terms: The arguments of `Agreement`.
    """

    kept: list[Any]
    averages: bool
    gather: GatherStates | None
    in_batches: bool
    in_a_round: bool
    terms: Terms


def _decide(
    callback_list: Any, everyones: dict[int, Any], process_set: ProcessSet
) -> _Decision:
    model, given = callback_list.model, callback_list.callbacks

    def on_any(fact: str) -> bool:
        return any(each[fact] for each in everyones.values())

    kept = [
        each
        for each in given
        if (written := written_by(each)) is None
        or _first_writer(written, everyones) == runtime.rank()
    ]
    savers = {
        _first_writer(written, everyones)
        for each in everyones.values()
        for written in each["writes"]
        if written[0] != "CSVLogger"
    } | {rank for rank, own in everyones.items() if own["saves elsewhere"]}
    in_batches = on_any("saves in batches")
    gather = None
    if savers and _has_parts(model):
        gather = GatherStates(
            [each for each in kept if saves_models(each)],
            in_batches=in_batches,
            root_rank=min(savers) if len(savers) == 1 else None,
            process_set=process_set,
        )
    terms = Terms(
        process_set=process_set,
        votes=on_any("looks at batches"),
        uneven=any(map(joins, given)),
        restored_by=_restored_by(everyones),
        monitored=sorted({each.monitor for each in given if decides(each)}),
        local_variables=[
            *local_variables_of(model),
            *(
                each._local_variables
                for each in given
                if is_ours(each) and hasattr(each, "_local_variables")
            ),
        ],
    )
    return _Decision(
        kept=kept,
        averages=on_any("needs averages"),
        gather=gather,
        in_batches=in_batches,
        in_a_round=on_any("in a round"),
        terms=terms,
    )


def _arrange(callback_list: Any, decision: _Decision) -> None:
    """Puts the callbacks in their order, until training has ended."""
    given, terms = callback_list.callbacks, decision.terms
    arranged = decision.kept
    if decision.averages:
        averages = [each for each in arranged if averages_metrics(each)] or [
            MetricAverages(process_set=terms.process_set, strict=False)
        ]
        others = [each for each in arranged if not averages_metrics(each)]
        arranged = [*averages, *others]
    arranged = [
        *([] if decision.gather is None else [decision.gather]),
        *(each.notes for each in arranged if averages_metrics(each)),
        *arranged,
    ]
    arranged.sort(key=joins, reverse=True)

    def undo() -> None:
        callback_list.callbacks = given

    arranged.append(Agreement(terms, at_end=undo))
    for each in arranged:
        if each not in given:
            each.set_params(callback_list.params or {})
            each.set_model(callback_list.model)
    if terms.votes or (decision.gather is not None and decision.in_batches):
        # From this rank's callbacks alone, Keras may decide to call callbacks
        # from another thread. It must not, because ranks synchronize at the end
        # of a batch.
        callback_list._async_train = False
    callback_list.callbacks = arranged


def _surround(callback_list: Any, rounds: RoundsInFit) -> None:
    """Puts the callbacks of rounds before and after all others."""
    rounds.set_model(callback_list.model)
    if rounds.saves_in_batches:
        callback_list._async_train = False
    callback_list.callbacks = [rounds, *callback_list.callbacks, rounds.last]


def _put_last(callback_list: Any) -> None:
    """Puts callbacks last that save the effects of all others."""
    callbacks = callback_list.callbacks
    last = [each for each in callbacks if isinstance(each, LastInFit)]
    if last:
        others = [each for each in callbacks if each not in last]
        callback_list.callbacks = [*others, *last]
    for each in last:
        each.before_callbacks(callback_list.callbacks)


def _has_parts(model: Any) -> bool:
    """Tells whether each rank has a part of the state to save."""
    return has_tables(model) or any(
        has_shards(optimizer) or optimizer.gradient_accumulation_steps
        for optimizer in distributed_optimizers(model)
    )


def _training_together(model: Any, callbacks: list[Any]) -> ProcessSet | None:
    """Returns the ranks that share the model; None if no rank shares it."""
    if not runtime.is_initialized() or runtime.size() == 1:
        return None
    sets = {
        optimizer._tfring_options.process_set
        for optimizer in distributed_optimizers(model)
    }
    if (
        not sets
        and type(model).train_step is not keras.Model.train_step
        and any(map(is_ours, callbacks))
    ):
        # `train_step` reduces by itself. A callback of tfring means that all
        # ranks train together.
        return global_process_set
    if len(sets) != 1:
        return None
    process_set: ProcessSet = sets.pop()
    if is_alone(process_set) or not process_set.included():
        return None
    return process_set


def _first_writer(written: list[str], everyones: dict[int, Any]) -> int:
    """Returns the first rank that would write the same files."""
    return min(
        rank for rank, each in everyones.items() if written in each["writes"]
    )


def _restored_by(everyones: dict[int, Any]) -> int | None:
    """Returns the first rank that has a backup to restore, or None."""
    return min(
        (
            rank
            for rank, each in everyones.items()
            for backup in each["backups"]
            if _first_writer(backup, everyones) == rank
        ),
        default=None,
    )
