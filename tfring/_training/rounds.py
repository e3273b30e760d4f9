"""The mixin class for an optimizer whose ranks train in rounds.

Note [A round]: before the first step of a round every rank keeps a copy of the
weights, the *base*, which is the same on all ranks. After the last step the
ranks average how far each has moved from it. The outer optimizer updates the
base by that mean, and the weights become the base. So the base needs no
agreement: a rank computes it from what is the same on all ranks.

Note [Moving statistics]: those of batch normalization become their mean where
ranks meet, and their base is a copy of it. A step changes them before it gets
here, so there is no base to take at its beginning.

Note [Where ranks meet]: in `apply`, by a conditional in the graph. A callback
would be called once for several steps per execution. The counters are the
round's own: `iterations` does not count a step that a LossScaleOptimizer skips
on one rank alone, and that rank would meet at another step.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, cast

import keras
import tensorflow as tf

from tfring._core import native, runtime
from tfring._core.process_sets import (
    ProcessSet,
    added,
    global_process_set,
)
from tfring._gradients.gradient_options import GradientOptions
from tfring._gradients.reducer import (
    each_index_once,
    reduce_gradients,
    request_names_of,
)
from tfring._gradients.rounds import Rounds
from tfring._ops.allreduce import grouped_allreduce
from tfring._ops.compression import AnyCompressor, Compression
from tfring._ops.process_set_registry import add_process_set
from tfring._ops.reductions import ReduceOp
from tfring._training.kinds import rounds_among
from tfring._training.optimizer_class import (
    Distributed,
    distributed_optimizers,
)
from tfring._training.seeds import is_seed
from tfring._training.sync_batch_norm import SyncBatchNormalization

if TYPE_CHECKING:
    from mpi4py import MPI


def with_rounds(options: GradientOptions, sync: Any) -> GradientOptions:
    """Returns options for rounds. Collective for those within a host.

    Raises:
        NotImplementedError: Another option does not go with it.
        TypeError: It is not a `LocalSGD` or `DiLoCo`.
        ValueError: `within` is not a set of this rank's.
    """
    function = "DistributedOptimizer"
    if not isinstance(sync, Rounds):
        raise TypeError(
            f"{function}: sync must be a tfring.LocalSGD or tfring.DiLoCo, got "
            f"{sync!r}."
        )
    kind = type(sync).__name__
    if options.shard_states:
        raise NotImplementedError(
            f"{function}: with sync={kind} each rank has its own optimizer "
            "state, and with shard_states=True a part of a common one. Leave "
            "one of the two out."
        )
    if options.op is not ReduceOp.Average:
        raise NotImplementedError(
            f"{function}: sync={kind} averages, and op is {options.op.name}. "
            "Leave op out."
        )
    return dataclasses.replace(
        options, sync=sync, within=_checked_within(sync, options)
    )


def _checked_within(
    sync: Rounds, options: GradientOptions
) -> ProcessSet | None:
    kind = type(sync).__name__
    if sync.within is None:
        return None
    if options.process_set is not global_process_set or runtime.may_grow():
        raise NotImplementedError(
            f"{kind}: within={sync.within!r} is for all ranks of a job whose "
            "ranks do not change. Leave it out in an elastic job and with a "
            "process_set."
        )
    if sync.within == "host":
        return _ranks_of_this_host()
    if not sync.within.included():
        raise ValueError(
            f"{kind}: rank {runtime.rank()} is not in {sync.within}. Each rank "
            "must pass a set that it is in, such as its part of a split "
            "communicator."
        )
    return sync.within


def _ranks_of_this_host() -> ProcessSet:
    """Returns the process set of this rank's machine. Collective."""
    comm = runtime.job().comm
    local = comm.Split_type(native.mpi().COMM_TYPE_SHARED, key=comm.rank)
    ranks = sorted(local.allgather(comm.rank))
    known = [each for each in added() if each.ranks == ranks]
    # Every rank must add its part, or none.
    if all(comm.allgather(bool(known))):
        return known[0]
    return add_process_set(ProcessSet(cast("MPI.Intracomm", local)))


class InRounds(Distributed):
    """Mixed in before a Keras optimizer's class; see the Notes above."""

    _tfring_round: Round | None = None
    # A weak reference to the model that it trains.
    _tfring_model: Callable[[], Any] = staticmethod(lambda: None)

    def meet(self) -> None:
        """Ends a round now: every rank gets the mean of the weights.

        Call it at the end of a training loop, before a validation that all
        ranks shall see alike, and before weights are changed by hand. `fit`
        does it at its end. The outer optimizer makes no update, as its momentum
        would count twice. Between rounds it does nothing. Collective.
        """
        if self._tfring_round is not None:
            self._tfring_round.end_early()

    def build(self, variables: Sequence[Any]) -> None:
        super().build(variables)
        self._begin_rounds()

    def _tfring_begin(self) -> None:
        super()._tfring_begin()
        if self.built:
            self._begin_rounds()

    def _begin_rounds(self) -> None:
        if self._tfring_round is None:
            # Bypasses attribute tracking.
            self.__dict__["_tfring_round"] = Round(self)

    def register_local_var(self, var: Any) -> None:
        super().register_local_var(var)
        if self._tfring_round is not None:
            self._tfring_round.forget_local_variables()

    def _found_in(self, model: Any) -> None:
        self.__dict__["_tfring_model"] = weakref.ref(model)
        for layer in model._flatten_layers():
            if isinstance(layer, SyncBatchNormalization):
                raise NotImplementedError(
                    f"The layer '{layer.name}' is a "
                    "tfring.SyncBatchNormalization, which communicates in "
                    "every step, and the optimizer's sync is for ranks that "
                    "do not. Take keras.layers.BatchNormalization, whose "
                    "statistics are averaged after each round."
                )

    def _begin_step(self, variables: Sequence[Any]) -> None:
        if not self.built and variables:
            self.build(variables)
        if self._tfring_round is not None:
            self._tfring_round.begin_step()

    def _end_step(self) -> None:
        if self._tfring_round is not None:
            self._tfring_round.end_step()

    def _average(
        self, grads: Sequence[Any], variables: Sequence[Any]
    ) -> Sequence[Any]:
        if self._tfring_paused or self._tfring_round is None:
            return grads
        grads = list(grads)
        self._check_step(variables)
        options = self._tfring_options
        present = [i for i, grad in enumerate(grads) if grad is not None]
        own = [grads[i] for i in present]
        of = [variables[i] for i in present]

        def together() -> list[Any]:
            return reduce_gradients(own, of, options)

        def apart() -> list[Any]:
            within = options.within
            if within is None:
                return [each_index_once(grad, options) for grad in own]
            return reduce_gradients(
                own, of, dataclasses.replace(options, process_set=within)
            )

        if self._tfring_round.begins_at == 0:
            reduced = apart()
        elif tf.executing_eagerly():
            is_apart = self._tfring_round.has_begun()
            reduced = apart() if is_apart else together()
        else:
            reduced = tf.cond(self._tfring_round.has_begun(), apart, together)
        for i, grad in zip(present, reduced, strict=True):
            grads[i] = grad
        return grads


class Round:
    """The state of an optimizer's rounds.

    Attributes:
        begins_at: The number of steps before the first round.
        state: The counters and the outer optimizer's variables. They are the
            same on all ranks.
    """

    def __init__(self, optimizer: InRounds) -> None:
        options = optimizer._tfring_options
        sync = options.sync
        assert sync is not None
        batches = optimizer.gradient_accumulation_steps or 1
        self._options = options
        self._every = sync.every * batches
        self.begins_at = sync.start * batches
        # With them Keras replaces the weights at the end of `fit`.
        self._has_own_averages = optimizer.use_ema
        self._optimizer = optimizer
        self._outer = sync.outer_optimizer()
        with tf.init_scope():
            # How many steps there have been, and how many in this round.
            self._calls = tf.Variable(0, trainable=False, dtype=tf.int64)
            self._steps = tf.Variable(0, trainable=False, dtype=tf.int64)
            self._weights = [
                self._with_base(variable)
                for variable in optimizer._trainable_variables
                if variable not in options.local_variables
            ]
            self._outer.build([base for _, base in self._weights])
        # Of layers that may be built later.
        self._statistics: list[tuple[Any, Any]] = []
        self.state = [self._calls, self._steps, *self._outer.variables]

    def forget_local_variables(self) -> None:
        """Leaves variables to each rank that have just become local."""
        for pair in list(self._weights):
            if pair[0] in self._options.local_variables:
                self._weights.remove(pair)
                pair[0]._tfring_round = None

    # ---- A step ----

    def has_begun(self) -> Any:
        """Tells, as a tensor, whether the first round has begun."""
        return self._calls >= self.begins_at

    def begin_step(self) -> None:
        """Takes the weights as the base if a round begins."""
        self._find_statistics()
        begins = tf.logical_and(self.has_begun(), tf.equal(self._steps, 0))
        _do_if(begins, self._take_base)

    def end_step(self) -> None:
        """Counts a step, and has the ranks meet if it was the round's last."""
        calls = self._calls + 1
        steps = tf.where(calls > self.begins_at, self._steps + 1, 0)
        self._calls.assign(calls)
        self._steps.assign(steps)
        _do_if(steps >= self._every, self._end)

    def end_early(self) -> None:
        """Ends a round that has begun, with the plain mean. Collective."""
        _do_if(self._steps > 0, self._take_mean)

    def end_fit(self) -> None:
        """Gives all ranks the same weights, after Keras has finished them."""
        if self._steps > 0 or self._has_own_averages:
            self._take_mean()

    def _take_base(self) -> None:
        for variable, base in self._weights:
            base.assign(_value(variable))

    def _end(self) -> None:
        self._outer.apply(
            self._mean_changes(), [base for _, base in self._weights]
        )
        for variable, base in self._weights:
            variable.assign(_value(base))
        self._end_for_statistics()

    def _take_mean(self) -> None:
        for change, (variable, base) in zip(
            self._mean_changes(), self._weights, strict=True
        ):
            variable.assign(_value(base) - change)
        self._end_for_statistics()

    def _end_for_statistics(self) -> None:
        means = self._mean([_value(each) for each, _ in self._statistics])
        for mean, (variable, base) in zip(means, self._statistics, strict=True):
            variable.assign(mean)
            base.assign(mean)
        self._steps.assign(0)

    def _mean_changes(self) -> list[Any]:
        """Returns how far the ranks have moved, from the weights to the base.

        Changes are smaller than weights, so that compression rounds them less.
        """
        changes = [
            _value(base) - _value(variable) for variable, base in self._weights
        ]
        return self._mean(changes, self._options.compression)

    def _mean(
        self,
        tensors: list[Any],
        compression: AnyCompressor = Compression.none,
    ) -> list[Any]:
        process_set = self._options.process_set
        if not tensors or not process_set.included():
            return tensors
        [name] = request_names_of(1, process_set)
        return grouped_allreduce(
            tensors,
            op=ReduceOp.Average,
            compression=compression,
            process_set=process_set,
            name=name,
            ignore_name_scope=True,
        )

    # ---- The variables ----

    def _all(self) -> list[tuple[Any, Any]]:
        return [*self._weights, *self._statistics]

    def _find_statistics(self) -> None:
        model = self._optimizer._tfring_model()
        if model is None:
            return
        known = {id(variable) for variable, _ in self._statistics}
        with tf.init_scope():
            self._statistics += [
                self._with_base(variable)
                for layer in model._flatten_layers()
                for variable in layer._non_trainable_variables
                if id(variable) not in known
                and not is_seed(variable)
                and tf.as_dtype(variable.dtype).is_floating
                and variable not in self._options.local_variables
            ]

    def _with_base(self, variable: Any) -> tuple[Any, Any]:
        base = keras.Variable(
            _value(variable),
            dtype=variable.dtype,
            name=variable.name,
        )
        base.constraint = getattr(variable, "constraint", None)
        # Read by code that compares or broadcasts it.
        variable._tfring_round = self
        return variable, base

    def base_of(self, variable: Any) -> Any:
        """Returns the base of one of its variables."""
        return next(base for each, base in self._all() if each is variable)

    def is_between_meetings(self) -> bool:
        """Tells, eagerly, whether ranks have stepped since they last met."""
        return bool(self._steps > 0)

    @contextmanager
    def base_in_weights(self) -> Iterator[None]:
        """Gives the model the base for a while."""
        if not self.is_between_meetings():
            yield
            return
        own = [_value(variable) for variable, _ in self._all()]
        pairs = self._all()
        for variable, base in pairs:
            variable.assign(_value(base))
        try:
            yield
        finally:
            for (variable, _), value in zip(pairs, own, strict=True):
                variable.assign(value)


@contextmanager
def shared_weights(model: Any) -> Iterator[None]:
    """Shows the weights that all ranks have in common, within a round.

    With `sync` of `tfring.DistributedOptimizer` the ranks' weights differ
    between two meetings. Inside of this context the model has the weights of
    the last meeting, on each rank; afterwards it has the rank's own again.
    Validate or save in it. `fit` does so for validation and for callbacks at
    the end of an epoch. It makes no collective calls.

    Args:
        model: A model that such an optimizer trains. Any other model stays as
            it is.

    Example:

    ```python
    import keras
    import tfring

    tfring.init()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(
        tfring.DistributedOptimizer("sgd", sync=tfring.DiLoCo(every=50)), "mse"
    )
    with tfring.shared_weights(model):
        model.evaluate(x, y, verbose=0)
    ```
    """
    with ExitStack() as shown:
        for each in rounds_among(model.variables):
            shown.enter_context(each.base_in_weights())
        yield


def optimizers_in_rounds(model: Any) -> list[InRounds]:
    """Returns the optimizers of a model that train in rounds."""
    return [
        each
        for each in distributed_optimizers(model)
        if isinstance(each, InRounds)
    ]


class RoundsInFit(keras.callbacks.Callback):
    """Has validation and savers see what the ranks have in common. The first.

    Args:
        meets: True if a `fit` that failed has left some rank in a round.
        saves_in_batches: True if a callback saves between epochs' ends.
    """

    def __init__(self, *, meets: bool, saves_in_batches: bool) -> None:
        super().__init__()
        self._meets = meets
        self._saves_in_batches = saves_in_batches
        self._shown = ExitStack()
        self.last = EndOfCallbacks(self._hide, saves_in_batches)

    def on_train_begin(self, logs: Any = None) -> None:
        if self._meets:
            for each in rounds_among(self.model.variables):
                each._take_mean()

    def on_test_begin(self, logs: Any = None) -> None:
        self._show()

    def on_test_end(self, logs: Any = None) -> None:
        self._hide()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._saves_in_batches:
            self._show()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._show()

    def on_train_end(self, logs: Any = None) -> None:
        for each in rounds_among(self.model.variables):
            each.end_fit()

    def _show(self) -> None:
        self._shown.enter_context(shared_weights(self.model))

    def _hide(self) -> None:
        self._shown.close()


class EndOfCallbacks(keras.callbacks.Callback):
    """Called after all callbacks that shall see what ranks have in common."""

    def __init__(
        self, hide: Callable[[], None], saves_in_batches: bool
    ) -> None:
        super().__init__()
        self._hide = hide
        self._saves_in_batches = saves_in_batches

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._saves_in_batches:
            self._hide()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._hide()


def _do_if(condition: Any, action: Callable[[], None]) -> None:
    """Calls `action` where a scalar is true, eagerly or in a graph."""
    if tf.executing_eagerly():
        if condition:
            action()
        return

    def done() -> tf.Tensor:
        action()
        return tf.constant(0)

    tf.cond(condition, done, lambda: tf.constant(0))


def _value(variable: Any) -> tf.Tensor:
    """Returns the value of a variable in its own dtype, under any policy."""
    if isinstance(variable, keras.Variable):
        variable = variable._value
    return tf.convert_to_tensor(variable)
