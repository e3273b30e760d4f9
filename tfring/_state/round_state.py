"""The state of an optimizer's rounds, and the exchange at their end.

Note [A round]: before the first step of a round every rank keeps a copy of the
weights, the *base*, which is the same on all ranks. After the last step the
ranks average how far each has moved from it. The outer optimizer updates the
base by that mean, and the weights become the base. So the base needs no
agreement: a rank computes it from what is the same on all ranks.

Note [Moving statistics]: the moving statistics of batch normalization become
their mean when ranks meet, and their base is a copy of the mean. A step changes
them before this code runs, so their base cannot be taken at the beginning of a
round. It is taken at the beginning of a `fit`, and ranks also average
statistics before the first round.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from tfring._gradients.local_variables import inner_variable
from tfring._gradients.request_names import request_names_of
from tfring._ops.allreduce import grouped_allreduce
from tfring._ops.compression import AnyCompressor, Compression
from tfring._ops.reductions import ReduceOp
from tfring._state.kinds import rounds_among
from tfring._state.optimizers import with_inner
from tfring._state.outer_states import load_if_saved
from tfring._state.records import record_of
from tfring._state.seeds import is_seed


class Round(abc.ABC):
    """The counters of rounds, and the variables that ranks exchange.

    Attributes:
        begins_at: The number of steps before the first round.
        process_set: The ranks that meet.
        state: Variables that are the same on all ranks, besides the weights.
        outer: The optimizer of the base; None if there is no base.
    """

    outer: keras.optimizers.Optimizer | None = None

    def __init__(self, optimizer: Any) -> None:
        options = optimizer._tfring_options
        # In a MultiOptimizer the inner optimizers accumulate.
        batches = max(
            each.gradient_accumulation_steps or 1
            for each in with_inner(optimizer)
        )
        self._options = options
        self.process_set = options.process_set
        self._every = options.sync.every * batches
        self.begins_at = options.sync.start * batches
        # With `use_ema` Keras replaces the weights at the end of `fit`.
        self._has_own_averages = any(
            each.use_ema for each in with_inner(optimizer)
        )
        self._optimizer = optimizer
        with tf.init_scope():
            # The number of all steps, and of the steps since the ranks last
            # met.
            self._calls = tf.Variable(0, trainable=False, dtype=tf.int64)
            self._steps = tf.Variable(0, trainable=False, dtype=tf.int64)
        self.state: list[Any] = [self._calls, self._steps]
        self._weights = [
            self._marked(variable)
            for variable in optimizer._trainable_variables
            if variable not in options.local_variables
        ]
        # Moving statistics; `_find_statistics` adds those of layers that are
        # built later.
        self._statistics: list[Any] = []
        self._take_over()

    def _take_over(self) -> None:
        """Removes the notes of optimizers that this one has replaced.

        All of their weights are now in this round.
        """
        own = set(map(id, self._weights))
        for earlier in rounds_among(self._weights):
            if earlier is not self and own.issuperset(
                map(id, earlier._weights)
            ):
                for variable in earlier._variables():
                    earlier._unmark(variable)

    def _unmark(self, variable: Any) -> None:
        record = record_of(variable)
        record.rounds = tuple(
            each for each in record.rounds if each is not self
        )

    def forget_local_variables(self) -> None:
        """Removes variables that have just become local."""
        for variable in list(self._weights):
            if variable in self._options.local_variables:
                self._weights = [w for w in self._weights if w is not variable]
                self._unmark(variable)

    def has_begun(self) -> Any:
        """Tells, as a tensor, whether the first round has begun."""
        return self._calls >= self.begins_at

    def begin_step(self) -> None:
        """Called before each step."""
        self._find_statistics()
        # A training that continues from a file has made its first steps.
        iterations = tf.cast(value_of(self._optimizer._iterations), tf.int64)
        self._calls.assign(tf.maximum(self._calls, iterations))

    def end_step(self) -> None:
        """Counts a step, and ends the round after its last step."""
        calls = self._calls + 1
        steps = tf.where(calls > self.begins_at, self._steps + 1, 0)
        self._calls.assign(calls)
        self._steps.assign(steps)
        is_last = tf.equal(steps % self._every, 0) & (steps > 0)
        do_if(is_last, self._end)
        if self.begins_at:
            do_if(tf.equal(calls, self.begins_at), self._average_statistics)

    def begin_fit(self) -> None:
        """Called when a `fit` begins, once callbacks have loaded weights."""
        if not self.is_between_meetings():
            for variable in self._statistics:
                self._take_as_common(variable)

    def end_early(self) -> None:
        """Gives all ranks the mean of weights that differ. Collective."""
        do_if(self._steps > 0, self.take_mean)

    def end_fit(self) -> None:
        """Gives all ranks the same weights, after Keras has finished them."""
        has_own = self._has_own_averages and self._calls > self.begins_at
        if self._steps > 0 or has_own:
            self.take_mean()

    @abc.abstractmethod
    def _end(self) -> None:
        """Exchanges weights after the last step of a round. Collective."""

    @abc.abstractmethod
    def take_mean(self) -> None:
        """Gives all ranks the mean of the weights. Collective."""

    def is_between_meetings(self) -> bool:
        """Tells, eagerly, whether this rank has stepped since the ranks met."""
        return bool(self._steps > 0)

    @abc.abstractmethod
    def common_value(self, variable: Any) -> Any:
        """Returns the variable with the common value of another, or None."""

    @abc.abstractmethod
    def _values_to_show(self) -> Sequence[Any]:
        """Returns the variables' values that all ranks have in common."""

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Gives the model the common values for a while.

        A value that is assigned meanwhile, as by a callback, stays.
        """
        if not self.is_between_meetings():
            yield
            return
        variables = self._variables()
        own = [value_of(variable) for variable in variables]
        shown = self._values_to_show()
        assign_all(variables, shown)
        try:
            yield
        finally:
            for variable, mine, common in zip(
                variables, own, shown, strict=True
            ):
                if _same_bits(value_of(variable), common):
                    variable.assign(mine)
                else:
                    self._take_as_common(variable)

    @abc.abstractmethod
    def _take_as_common(self, variable: Any) -> None:
        """Notes that all ranks have been given the same value of a variable."""

    def _average_statistics(self) -> None:
        """Gives all ranks the mean of the moving statistics. Collective."""
        means = self.mean(list(map(value_of, self._statistics)), "statistics")
        assign_all(self._statistics, means)
        for variable in self._statistics:
            self._take_as_common(variable)

    def _variables(self) -> list[Any]:
        return [*self._weights, *self._statistics]

    def _values(self) -> list[Any]:
        return [value_of(variable) for variable in self._variables()]

    def _find_statistics(self) -> None:
        layers = {
            id(layer): layer
            for model in self._optimizer._tfring_models()
            for layer in model._flatten_layers()
        }
        known = {id(variable) for variable in self._statistics}
        self._statistics += [
            self._marked(variable)
            for layer in layers.values()
            for variable in layer._non_trainable_variables
            if id(variable) not in known
            and not is_seed(variable)
            and tf.as_dtype(variable.dtype).is_floating
            and variable not in self._options.local_variables
        ]

    def _marked(self, variable: Any) -> Any:
        # Comparisons and broadcasts of the variable read this note.
        record_of(variable).rounds += (self,)
        return variable

    def mean(
        self,
        tensors: list[Any],
        purpose: str,
        compression: AnyCompressor = Compression.none,
    ) -> list[Any]:
        """Returns the ranks' means of tensors. Collective.

        Errors name the `purpose`, which keeps a mean for one purpose from
        pairing with another rank's mean for another.
        """
        process_set = self.process_set
        if not tensors or not process_set.included():
            return tensors
        [name] = request_names_of(1, process_set, f"rounds/{purpose}")
        return grouped_allreduce(
            tensors,
            device_dense=self._options.device_dense,
            op=ReduceOp.Average,
            compression=compression,
            process_set=process_set,
            name=name,
            ignore_name_scope=True,
        )


class RoundFromBase(Round):
    """A round of LocalSGD or DiLoCo; see Note [A round]."""

    def __init__(self, optimizer: Any) -> None:
        self._base_of: dict[int, Any] = {}
        super().__init__(optimizer)
        with tf.init_scope():
            self.outer = self._options.sync.outer_optimizer()
            self.outer.build([self._base(each) for each in self._weights])
        load_if_saved(self.outer)
        self.state += self.outer.variables

    def _marked(self, variable: Any) -> Any:
        with tf.init_scope():
            base = keras.Variable(
                value_of(variable), dtype=variable.dtype, name=variable.name
            )
        base.constraint = getattr(variable, "constraint", None)
        self._base_of[id(variable)] = base
        return super()._marked(variable)

    def _base(self, variable: Any) -> Any:
        return self._base_of[id(variable)]

    def begin_step(self) -> None:
        super().begin_step()
        begins = self.has_begun() & tf.equal(self._steps, 0)
        do_if(begins, self._take_base)

    def _take_base(self) -> None:
        for variable in self._weights:
            self._take_as_common(variable)

    def _take_as_common(self, variable: Any) -> None:
        self._base(variable).assign(value_of(variable))

    def _end(self) -> None:
        changes: list[Any] = []
        bases = []
        for change, variable in zip(
            self._mean_changes(), self._weights, strict=True
        ):
            base = self._base(variable)
            if variable.trainable:
                changes.append(change)
                bases.append(base)
            else:  # outer momentum must not move it
                base.assign_sub(change)
        assert self.outer is not None
        self.outer.apply(changes, bases)
        for variable in self._weights:
            variable.assign(value_of(self._base(variable)))
        self._average_statistics()
        self._steps.assign(0)

    def take_mean(self) -> None:
        for change, variable in zip(
            self._mean_changes(), self._weights, strict=True
        ):
            mean = value_of(self._base(variable)) - change
            variable.assign(constrained(variable, mean))
        self._average_statistics()
        self._steps.assign(0)

    def _mean_changes(self) -> list[Any]:
        """Returns how far the ranks have moved, from the weights to the base.

        Changes are smaller than weights, so that compression rounds them less.
        """
        changes = [
            value_of(self._base(variable)) - value_of(variable)
            for variable in self._weights
        ]
        return self.mean(changes, "changes", self._options.compression)

    def common_value(self, variable: Any) -> Any:
        return self._base(variable)

    def _values_to_show(self) -> Sequence[Any]:
        return [value_of(self._base(each)) for each in self._variables()]


def do_if(condition: Any, action: Callable[[], None]) -> None:
    """Calls `action` if a scalar is true, eagerly or in a graph."""
    if tf.executing_eagerly():
        if condition:
            action()
        return

    def done() -> tf.Tensor:
        action()
        return tf.constant(0)

    tf.cond(condition, done, lambda: tf.constant(0))


def value_of(variable: Any) -> tf.Tensor:
    """Returns the value of a variable in its own dtype, under any policy."""
    return tf.convert_to_tensor(inner_variable(variable))


def assign_all(variables: Iterable[Any], values: Iterable[Any]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def constrained(variable: Any, value: tf.Tensor) -> tf.Tensor:
    """Returns the mean of weights after their constraint."""
    constraint = getattr(variable, "constraint", None)
    return value if constraint is None else constraint(value)


def _same_bits(one: tf.Tensor, other: tf.Tensor) -> bool:
    # Compare bits, because NaN is not equal to itself.
    return bool(one.numpy().tobytes() == other.numpy().tobytes())
