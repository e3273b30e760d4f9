"""Agreement: the last callback, which keeps the ranks together.

As the last callback it sees the effects of all others: a new learning rate, a
loaded checkpoint, a request to stop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfring._core.process_sets import ProcessSet
from tfring._gradients.local_variables import LocalVariables
from tfring._keras.metric_averages import is_number
from tfring._ops.allreduce import allreduce
from tfring._ops.gather_json import gather_by_rank
from tfring._ops.objects import broadcast_object
from tfring._ops.reductions import ReduceOp
from tfring._state.kinds import Kind, kind_of
from tfring._state.model_state import broadcast_model, has_variables
from tfring._state.optimizers import distributed_optimizers, with_inner
from tfring._state.weights import (
    fingerprint_of_all,
    first_difference,
    mark_compared,
    ranks_by_value,
)
from tfring._state.whole_states import average_all_accumulated

_SHARE_OUT = (
    "Give every rank equally many: share the data out by tfring.data.shard, or "
    "put tfring.callbacks.JoinCallback() into the callbacks."
)
_ADVICE = {
    "epochs": "Pass the same epochs to fit on every rank.",
    "batches in an epoch": _SHARE_OUT,
    "batches done": _SHARE_OUT,
    "steps_per_execution": "Compile the model alike on every rank.",
    "callbacks": (
        "Pass them on every rank, in the same order, whether or not a rank has "
        "something to do there. What only prints or writes may be on one rank."
    ),
    "number of the epoch": (
        "If one rank has loaded a checkpoint, give its initial_epoch to the "
        "others by tfring.broadcast_object."
    ),
    "learning rate": (
        "Set it by what is the same on all ranks, such as the metrics after "
        "MetricAverageCallback."
    ),
    "weights": (
        "Put tfring.callbacks.BroadcastGlobalVariablesCallback(0) into the "
        "callbacks of every rank, and change weights on all ranks alike. A "
        "callback that goes back to the best weights does so where every rank "
        "has validation data."
    ),
}
_MONITORED = (
    "A callback decides by it. Put tfring.callbacks.MetricAverageCallback() "
    "behind the callback that has computed it, or compute it by "
    "tfring.metrics.evaluate."
)


@dataclasses.dataclass(frozen=True)
class Terms:
    """The ranks' agreement before the first callback is called.

    Attributes:
        process_set: The ranks that train together.
        votes: True if some rank may want to stop at the end of a batch.
        uneven: True if ranks may have different numbers of batches.
        restored_by: The rank with a BackupAndRestore that has a state to load,
            or None.
        monitored: The metrics that this rank's callbacks monitor.
        local_variables: The variables of which each rank has its own.
    """

    process_set: ProcessSet
    votes: bool
    uneven: bool
    restored_by: int | None
    monitored: Sequence[str]
    local_variables: Sequence[LocalVariables]


class Agreement(keras.callbacks.Callback):
    """Compares ranks while they train, and makes them stop together."""

    def __init__(self, terms: Terms, at_end: Callable[[], None]) -> None:
        super().__init__()
        self._terms = terms
        self._at_end = at_end
        self._compared = False
        self._wants_to_stop = False
        self._batches = 0

    def on_train_begin(self, logs: Any = None) -> None:
        self._watch(True)
        root = self._terms.restored_by
        if root is None:
            return
        # Keras's `fit` reads its first epoch from this attribute.
        self.model._initial_epoch = broadcast_object(
            getattr(self.model, "_initial_epoch", None),
            root,
            name="fit/restored epoch",
            process_set=self._terms.process_set,
        )
        broadcast_model(
            self.model,
            root_rank=root,
            local_variables=self._terms.local_variables,
            process_set=self._terms.process_set,
        )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._wants_to_stop = False
        self._batches = 0
        facts: dict[str, Any] = {"number of the epoch": epoch}
        if self._compared:
            facts |= self._state()
        when = f"at the beginning of epoch {epoch + 1}"
        self._compare(facts, when, "beginning of an epoch")

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        # Weights are compared after the first batch, because callbacks
        # broadcast before it. A model without variables is compared later.
        if not self._compared and has_variables(self.model):
            self._compared = True
            facts = self._state()
            mark_compared(
                self.model.trainable_variables, self._terms.process_set
            )
            self._compare(facts, f"before batch {batch + 1}", "first batch")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._batches += 1
        if self._batches == 1:
            self._check_monitored_are_numbers(logs or {})
        if self._terms.votes:
            votes = allreduce(
                tf.constant(int(self.model.stop_training)),
                op=ReduceOp.Sum,
                name="fit/stop",
                process_set=self._terms.process_set,
            )
            self.model.stop_training = bool(votes > 0)
        elif self.model.stop_training:
            # This rank continues until all ranks stop.
            self._wants_to_stop = True
            self.model.stop_training = False

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        # Ranks without a batch in this epoch take part in the comparison.
        self._compared = True
        facts: dict[str, Any] = {
            "stop": self._wants_to_stop or self.model.stop_training
        }
        if not self._terms.uneven:
            facts["batches done"] = self._batches
        for name in self._terms.monitored:
            if name in (logs or {}):
                facts[f"metric '{name}'"] = str(np.asarray(logs[name]).tolist())
        # The ranks continue only after each of them has written its files.
        when = f"at the end of epoch {epoch + 1}"
        everyones = self._compare(facts, when, "end of an epoch")
        self.model.stop_training = any(each["stop"] for each in everyones)

    def on_train_end(self, logs: Any = None) -> None:
        self._watch(False)
        self._at_end()
        for optimizer in distributed_optimizers(self.model):
            # One rank may save the model after this.
            average_all_accumulated(optimizer.variables)
        if self._compared:
            self._compare(self._state(), "at the end", "end")

    def _check_monitored_are_numbers(self, logs: dict[str, Any]) -> None:
        for name in self._terms.monitored:
            if name in logs and not is_number(logs[name]):
                raise ValueError(
                    f"fit: a callback monitors '{name}', which is no number "
                    f"but {logs[name]!r}, and has no average over the ranks. "
                    "Monitor another metric."
                )

    def _watch(self, watches: bool) -> None:
        """Tells optimizers whether weights are compared here."""
        for optimizer in distributed_optimizers(self.model):
            optimizer.__dict__["_tfring_is_watched"] = watches

    def _state(self) -> dict[str, Any]:
        rates = [
            getattr(each, "_learning_rate", None)  # it may be a schedule
            for optimizer in distributed_optimizers(self.model)
            for each in with_inner(optimizer)
        ]
        return {
            "learning rate": [
                float(rate)
                for rate in rates
                if isinstance(rate, keras.Variable)
            ],
            "weights": fingerprint_of_all(self._weights()),
        }

    def _weights(self) -> list[Any]:
        return [
            variable
            for variable in self.model.trainable_variables
            if kind_of(variable, self._terms.local_variables) is Kind.ALIKE
        ]

    def _compare(
        self, facts: dict[str, Any], when: str, name: str
    ) -> list[Any]:
        # All ranks use one name, even if their epochs differ.
        everyones = gather_by_rank(
            facts, name=f"fit/{name}", process_set=self._terms.process_set
        )
        alike = {
            rank: {k: v for k, v in each.items() if k != "stop"}
            for rank, each in everyones.items()
        }
        check_alike(alike, when, self._first_difference)
        return list(everyones.values())

    def _first_difference(self) -> str:
        return first_difference(
            self._weights(),
            name="fit/weights",
            process_set=self._terms.process_set,
        )


def check_alike(
    facts_of_rank: dict[int, dict[str, Any]],
    when: str,
    explain_weights: Callable[[], str] | None = None,
) -> None:
    """Raises an error with advice if ranks differ in some fact.

    Args:
        facts_of_rank: The facts of each rank; equal on all ranks. A fact that
            is None is unknown.
        when: The point in training, for the error message.
        explain_weights: A collective that says which weights differ.

    Raises:
        RuntimeError: They differ.
    """
    problems = []
    monitored = sorted(
        {name for facts in facts_of_rank.values() for name in facts}
        - _ADVICE.keys()
    )
    for name in [*_ADVICE, *monitored]:
        advice = _ADVICE.get(name, _MONITORED)
        ranks_with = ranks_by_value(
            {
                rank: facts[name]
                for rank, facts in facts_of_rank.items()
                if facts.get(name) is not None
            }
        )
        if len(ranks_with) <= 1:
            continue
        if name == "weights" and explain_weights is not None:
            which = explain_weights()
        else:
            which = "; ".join(
                f"{value} on {_some_ranks(ranks)}"
                for value, ranks in ranks_with.items()
            )
            which += "."
        problems.append(f"{name[0].upper()}{name[1:]}: {which} {advice}")
    if problems:
        raise RuntimeError(
            f"tfring: {when} of fit the ranks differ. " + " ".join(problems)
        )


def _some_ranks(ranks: Sequence[int]) -> str:
    numbers = ", ".join(map(str, ranks[:8])) + ", ..." * (len(ranks) > 8)
    return f"rank{'s' * (len(ranks) > 1)} {numbers}"
