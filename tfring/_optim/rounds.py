"""The mixin class for an optimizer that trains in rounds.

Note [Where ranks meet]: ranks meet in `apply`, by a conditional in the graph. A
callback would be too late, because `fit` may call it once for several steps.
The rounds have counters of their own: `iterations` does not count a step that a
LossScaleOptimizer skips on one rank alone, and that rank would meet at another
step.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import tensorflow as tf

from tfring._core.process_sets import is_alone
from tfring._gradients.local_variables import is_row_shard
from tfring._gradients.reducer import (
    each_index_once,
    for_this_compiler,
    reduce_shared_gradients,
)
from tfring._gradients.rounds import Gossip
from tfring._optim.optimizer_class import Distributed
from tfring._optim.running_fits import check_is_found
from tfring._optim.sync_batch_norm import SyncBatchNormalization
from tfring._state.gossip_round import GossipRound
from tfring._state.kinds import Kind, kind_of, rounds_among, rounds_of
from tfring._state.model_state import local_variables_of, without_metrics
from tfring._state.optimizers import all_optimizers
from tfring._state.round_state import Round, RoundFromBase, assign_all, value_of
from tfring._state.weights import differing


class InRounds(Distributed):
    """Mixed in before a Keras optimizer's class; see the Notes above."""

    _tfring_round: Round | None = None
    # Weak references to the models that have this optimizer.
    _tfring_found_in: Sequence[Callable[[], Any]] = ()

    @property
    def outer_optimizer(self) -> keras.optimizers.Optimizer | None:
        """The outer optimizer of DiLoCo; None before this optimizer is built.

        Keras saves its state with the state of this optimizer, because it is an
        attribute, and loads it if this optimizer trains in rounds.
        """
        return None if self._tfring_round is None else self._tfring_round.outer

    def meet(self) -> None:
        """Ends a round now: every rank gets the mean of the weights.

        Call it at the end of a training loop, before a validation that all
        ranks shall see alike, and before weights are changed by hand. `fit`
        does so at its end. The outer optimizer makes no update, because its
        momentum would count twice. Between rounds this does nothing.
        Collective.
        """
        if self._tfring_round is not None:
            self._tfring_round.end_early()
            if tf.executing_eagerly():
                for model in self._tfring_models():
                    average_untrained(model)

    def consensus_distance(self) -> float:
        """Returns how far the ranks' weights are from their mean, with Gossip.

        This is the root of the mean square distance, relative to the norm of
        the mean. `fit` adds it to the logs of each epoch. Collective, and
        eager.
        """
        if not isinstance(self._tfring_round, GossipRound):
            return 0.0
        return float(self._tfring_round.distance())

    def build(self, variables: Sequence[Any]) -> None:
        super().build(variables)
        self._begin_rounds()

    def _tfring_begin(self) -> None:
        super()._tfring_begin()
        if self.built:
            self._begin_rounds()

    def _begin_rounds(self) -> None:
        if self._tfring_round is None:
            # Attribute tracking is bypassed.
            gossips = isinstance(self._tfring_options.sync, Gossip)
            self.__dict__["_tfring_round"] = (
                GossipRound(self) if gossips else RoundFromBase(self)
            )
            if self.outer_optimizer is not None:
                # A checkpoint may have been restored before the outer optimizer
                # was made.
                self._handle_deferred_dependencies(
                    "outer_optimizer", self.outer_optimizer
                )

    def _trackable_children(
        self, save_type: str = "checkpoint", **kwargs: Any
    ) -> dict[str, Any]:
        children: dict[str, Any] = super()._trackable_children(
            save_type, **kwargs
        )
        if save_type == "checkpoint" and self.outer_optimizer is not None:
            children["outer_optimizer"] = self.outer_optimizer
        return children

    def _lookup_dependency(self, name: str, *args: Any) -> Any:
        if name == "outer_optimizer":
            return self.outer_optimizer
        return super()._lookup_dependency(name, *args)

    def register_local_var(self, var: Any) -> None:
        super().register_local_var(var)
        if self._tfring_round is not None:
            self._tfring_round.forget_local_variables()

    def _tfring_models(self) -> list[Any]:
        models = [found() for found in self._tfring_found_in]
        return [model for model in models if model is not None]

    def _found_in(self, model: Any) -> None:
        models = [each for each in self._tfring_models() if each is not model]
        self.__dict__["_tfring_found_in"] = [
            weakref.ref(each) for each in [*models, model]
        ]
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
        check_is_found(self, variables)
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
        if any(map(is_row_shard, variables)):
            raise NotImplementedError(
                "DistributedOptimizer: a tfring.layers.ShardedEmbedding "
                "exchanges rows in every step, and sync is for ranks that "
                "train apart. Leave one of the two out."
            )
        options = for_this_compiler(self._tfring_options)
        present = [
            i
            for i, grad in enumerate(grads)
            if grad is not None and variables[i] not in options.local_variables
        ]
        own = [grads[i] for i in present]
        of = [variables[i] for i in present]

        def together() -> list[Any]:
            return reduce_shared_gradients(own, of, options)

        def apart() -> list[Any]:
            within = options.within
            if within is None:
                return [each_index_once(grad, options) for grad in own]
            return reduce_shared_gradients(
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


@contextmanager
def shared_weights(model: Any) -> Iterator[None]:
    """Shows the weights that all ranks have in common, within a round.

    With `sync` of `tfring.DistributedOptimizer` the ranks' weights differ
    between two meetings. Inside of this context the model has the weights of
    the last meeting, on each rank; afterwards it has the rank's own again.
    Validate or save in it. `fit` does so for validation and for callbacks at
    the end of an epoch. With `Gossip` there is no last meeting: the model has
    the mean of the ranks' weights, and entering the context is collective.

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
            shown.enter_context(each.shown())
        yield


def average_untrained(model: Any) -> None:
    """Gives ranks the mean of variables that differ outside of all rounds.

    No optimizer trains the variables of a mean teacher or a target network;
    they follow trained variables, which differ between ranks within a round. A
    frozen variable that does not change is compared, and not sent. This is
    collective, and eager.
    """
    rounds = rounds_among(model.variables)
    sets = {each.process_set for each in rounds}
    if len(sets) != 1:
        return  # no rounds, or ranks that do not train together
    [process_set] = sets
    local_variables = local_variables_of(model)
    untrained = [
        variable
        for variable in without_metrics(model)
        if kind_of(variable, local_variables) is Kind.ALIKE
        and not rounds_of(variable)
        and tf.as_dtype(variable.dtype).is_floating
    ]
    if not untrained or not process_set.included() or is_alone(process_set):
        return
    apart = differing(
        untrained, name="rounds/untrained", process_set=process_set
    )
    means = rounds[0].mean(list(map(value_of, apart)), "untrained")
    assign_all(apart, means)


def optimizers_in_rounds(model: Any) -> list[InRounds]:
    """Returns the optimizers of a model that train in rounds."""
    return [o for o in all_optimizers(model) if isinstance(o, InRounds)]
