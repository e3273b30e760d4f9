"""States of variables: a list of them, or a model's and its optimizer's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfring._core import runtime
from tfring._memory.parameters import parameter_share, parameters_of
from tfring._ops.gather_json import gather_json
from tfring._ops.objects import broadcast_object, broadcast_object_fn
from tfring._ops.process_set_registry import were_added
from tfring._state.broadcast_variables import broadcast_variables
from tfring._state.kinds import open_rounds, rounds_among
from tfring._state.model_state import (
    forget_traces,
    local_variables_of,
    optimizer_for,
    shared_variables,
)
from tfring._state.optimizers import optimizers_of
from tfring._state.round_state import assign_all
from tfring._state.shards import (
    saved_value,
    shard_of,
    split_off_shards,
)
from tfring._state.whole_states import average_all_accumulated
from tfring.elastic.sharded_variables import ShardedVariables
from tfring.elastic.share_copies import (
    copy_holders,
    exchanged_copies,
    may_leave_at_once,
    own_copies,
    remember,
    remembered,
)
from tfring.elastic.state import ObjectState
from tfring.elastic.termination import is_asked

# Keys in a commit, which are no names of attributes.
_VARIABLES, _ROUNDS = "variables", "state of rounds"
_COPIES, _NUMBER = "copies of shards", "number of the commit"
# The number of the state before its first commit.
_NO_COMMIT = 0


class TensorFlowState(ObjectState):
    """TensorFlow variables, and Python objects as attributes.

    Args:
        variables: TensorFlow or Keras variables; by default all variables in a
            graph of TensorFlow 1.
        session: For programs of TensorFlow 1: the session that has the
            variables; by default the default session.
        same_seeds: As for `tfring.broadcast_variables`.
        **kwargs: See `ObjectState`.

    Raises:
        TypeError: As for `tfring.broadcast_variables`.
        ValueError: There are no variables, or shares of an optimizer with
            `shard_states=True` are among them.
    """

    def __init__(
        self,
        variables: Iterable[Any] | None = None,
        session: tf.compat.v1.Session | None = None,
        same_seeds: bool = False,
        **kwargs: Any,
    ) -> None:
        self._same_seeds = same_seeds
        self.session = session or tf.compat.v1.get_default_session()
        self.variables = list(
            tf.compat.v1.global_variables() if variables is None else variables
        )
        if not self.variables:
            raise ValueError(
                "TensorFlowState: there are no variables. Pass them: eager "
                "TensorFlow keeps no list of all."
            )
        _, parts = split_off_shards(self.variables)
        if any(shard.optimizer is not None for shard in parts):
            raise ValueError(
                "TensorFlowState: variables of an optimizer with "
                "shard_states=True are lost with their rank. Pass the model "
                "and the optimizer to TensorFlowKerasState, which copies them."
            )
        _check_no_rows("TensorFlowState", self.variables)
        if self.session is not None:
            # The operation is made once, so that the graph does not grow.
            with self.session.graph.as_default():
                self._broadcast = broadcast_variables(
                    self.variables, 0, same_seeds=same_seeds
                )
        super().__init__(
            broadcast_object_fn(session=self.session), runtime.rank, **kwargs
        )

    def _describe(self) -> list[tuple[str, str]]:
        return super()._describe() + _described(self.variables)

    def _snapshot(self, is_collective: bool = True) -> dict[str, Any]:
        if self.session is None:
            if is_collective:
                average_all_accumulated(self.variables)
            values = _values(self.variables)
        else:
            values = self.session.run(self.variables)
        return super()._snapshot(is_collective) | {
            _VARIABLES: values,
            _ROUNDS: _values(_states_of_rounds(self.variables)),
        }

    def _assign(self, snapshot: dict[str, Any]) -> None:
        values = snapshot[_VARIABLES]
        if self.session is None:
            assign_all(self.variables, values)
        else:
            # Load one variable at a time, as `Variable.load` does, because
            # several may share an initial value.
            for variable, value in zip(self.variables, values, strict=True):
                given = {variable.initializer.inputs[1]: value}
                self.session.run(variable.initializer, given)
        assign_all(_states_of_rounds(self.variables), snapshot[_ROUNDS])
        super()._assign(snapshot)

    def _is_in_a_round(self) -> bool:
        return bool(open_rounds(self.variables))

    def _share_values(self) -> None:
        if self.session is None:
            broadcast_variables(self.variables, 0, same_seeds=self._same_seeds)
        else:
            self.session.run(self._broadcast)
        super()._share_values()


class TensorFlowKerasState(ObjectState):
    """A Keras model and its optimizer, and Python objects as attributes.

    It has all variables of the model and the optimizer except metrics: weights,
    moving statistics, seeds, momenta, iterations. Seeds differ from rank to
    rank, as with `tfring.broadcast_variables`. Local variables of a
    `tfring.PartialDistributedOptimizer` are saved, and remain each rank's own.
    The model's functions may have the rank and the size as constants, so they
    are traced again after a new start that changes one of them.

    The loss of a rank loses nothing of a commit: accumulated gradients become
    their mean over the ranks in each commit. With `shard_states=True` or
    `tfring.shard_parameters` each rank keeps copies of its own shards and of
    one other rank's, in the host's memory. The other rank is on another machine
    if no machine has more than half of the ranks. If both ranks with the copies
    of a shard are lost at once, `run` raises an error on every rank.

    Args:
        model: A Keras model that has been built.
        optimizer: The optimizer; by default that of `model.compile`. It is
            built if needed.
        backend: Ignored; Horovod has this argument.
        same_seeds: If true, all ranks have rank 0's seeds.
        keep_traces: If true, traced functions are kept in a job of another
            size, too. They must then be the same for every rank and size: see
            "What is traced again" in the guide on elastic training.
        **kwargs: See `ObjectState`. `UpdateBatchStateCallback` and
            `UpdateEpochStateCallback` count `batch` and `epoch`.

    Raises:
        ValueError: The model has not been built, or there is no optimizer.

    Example:

    ```python
    import keras
    import tfring

    tfring.init()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(tfring.DistributedOptimizer(keras.optimizers.Adam()), "mse")
    state = tfring.elastic.TensorFlowKerasState(model, batch=0, epoch=0)
    ```
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any = None,
        backend: Any = None,
        same_seeds: bool = False,
        keep_traces: bool = False,
        **kwargs: Any,
    ) -> None:
        name = type(self).__name__
        self.model = model
        self.optimizer = optimizer_for(name, model, optimizer)
        self.backend = backend
        self._same_seeds = same_seeds
        if not self.optimizer.built:
            self.optimizer.build(model.trainable_variables)
        _check_no_rows(
            name, [v for v in model.variables if parameter_share(v) is None]
        )
        self._sharded = ShardedVariables(model, self.optimizer)
        # See Note [One commit on all ranks] in share_copies.py.
        self._number = _NO_COMMIT
        self._unconfirmed: dict[str, Any] | None = None
        self._holders: list[int] = []
        self._keeps_traces = keep_traces
        self._traced_at = runtime.job().topology
        super().__init__(broadcast_object, runtime.rank, **kwargs)
        self._number = self._saved[_NUMBER]

    def _describe(self) -> list[tuple[str, str]]:
        # The shape of a shard differs between ranks.
        shared, _ = split_off_shards(self._shared_variables())
        parameters = [
            (f"{spec} of group {share.group.name}", name)
            for share in parameters_of(self.model.variables)
            for spec, name in _described([share.parameter])
        ]
        return super()._describe() + _described(shared) + parameters

    def _snapshot(self, is_collective: bool = True) -> dict[str, Any]:
        if is_collective:
            for each in optimizers_of(self.optimizer):
                average_all_accumulated(each.variables)
            number, copies = self._number + 1, own_copies([])
            if self._sharded.exist:
                self._holders = copy_holders(runtime.job().nodes())
                shards = self._sharded.shards()
                copies = exchanged_copies(shards, self._holders)
        else:
            number, copies = _NO_COMMIT, own_copies(self._sharded.shards())
            known = remembered(self.optimizer, copies)
            if known is not None:
                number, copies = _NO_COMMIT + 1, known
        return super()._snapshot(is_collective) | {
            _VARIABLES: [
                None if shard_of(variable) else saved_value(variable)
                for variable in self._sharded.all_variables()
            ],
            _ROUNDS: _values(_states_of_rounds(self.model.variables)),
            _COPIES: copies,
            _NUMBER: number,
        }

    def _keep(self, snapshot: dict[str, Any]) -> None:
        if self._sharded.exist:
            self._unconfirmed = snapshot
            # This is also the barrier of Note [One commit on all ranks].
            asked = gather_json(is_asked(), name="elastic/confirmed")
            self._unconfirmed = None
            leaving = may_leave_at_once(asked, self._holders)
            self._may_leave = runtime.rank() in leaving
            self._number = snapshot[_NUMBER]
            remember(self.optimizer, snapshot[_COPIES])
        super()._keep(snapshot)

    def _assign(self, snapshot: dict[str, Any]) -> None:
        for variable, value in zip(
            self._sharded.all_variables(), snapshot[_VARIABLES], strict=True
        ):
            if value is not None:
                variable.assign(value)
        # After a change of the ranks, `reset` gives them their shards.
        self._sharded.assign(snapshot[_COPIES])
        assign_all(_states_of_rounds(self.model.variables), snapshot[_ROUNDS])
        super()._assign(snapshot)

    def _is_in_a_round(self) -> bool:
        return bool(open_rounds(self.model.variables))

    def _shared_variables(self) -> list[Any]:
        return shared_variables(
            self._sharded.all_variables(),
            local_variables_of(self.optimizer),
        )

    def _share_values(self) -> None:
        if self._sharded.exist:
            numbers = gather_json(self._number, name="elastic/number")
            self._number = max(numbers)
        broadcast_variables(
            self._shared_variables(), 0, same_seeds=self._same_seeds
        )
        super()._share_values()

    def reset(self) -> None:
        if not self.traces_hold():
            forget_traces(self.model)
        self._traced_at = runtime.job().topology
        if self._sharded.exist:
            self._share_out_again()

    def _share_out_again(self) -> None:
        """Gives each rank its shards of the last commit, if ranks have changed.

        Collective; see Note [One commit on all ranks].

        Raises:
            LostStateError: Some shards are lost. It is raised on every rank.
        """
        self._sharded.choose_ranks()
        confirmed, unconfirmed = self._saved[_NUMBER], self._unconfirmed
        are_same = self._sharded.are_for_these_ranks(self._saved[_COPIES])
        told = gather_json([confirmed, are_same], name="elastic/commits")
        newest = max(number for number, _ in told)
        if unconfirmed is not None and confirmed < newest:
            self._saved = unconfirmed
            self._assign(self._saved)
        self._unconfirmed = None
        if all(are_same for _, are_same in told):
            return
        if newest == _NO_COMMIT:
            self._sharded.begin_again()
            return
        self._put_together(has_commit=self._saved[_NUMBER] == newest)

    def _put_together(self, *, has_commit: bool) -> None:
        self._sharded.put_together(self._saved[_COPIES] if has_commit else {})
        if has_commit:  # the optimizer's variables may be new
            self._assign(self._saved)

    def sync(self) -> None:
        super().sync()
        if self._sharded.choose_ranks():  # at the first start
            self._put_together(has_commit=True)
            forget_traces(self.model)
            self._keep(self._snapshot())

    def traces_hold(self) -> bool:
        """Tells whether the model's traced functions are valid in this job."""
        if self._sharded.exist or were_added():  # process sets were removed
            return False
        return self._keeps_traces or runtime.job().topology == self._traced_at


class KerasState(TensorFlowKerasState):
    """`TensorFlowKerasState` under the name of Horovod's Keras modules."""


def _check_no_rows(name: str, variables: Iterable[Any]) -> None:
    for shard in filter(None, map(shard_of, variables)):
        raise NotImplementedError(
            f"{name}: {shard.description}. These values are lost with their "
            "rank. In elastic jobs keep the variable whole; or save the model "
            "now and then, and start a lost job again."
        )


def _values(variables: Iterable[Any]) -> list[Any]:
    """Returns copies of the values in host memory."""
    return [tf.convert_to_tensor(variable).numpy() for variable in variables]


def _states_of_rounds(variables: Iterable[Any]) -> list[Any]:
    return [state for each in rounds_among(variables) for state in each.state]


def _described(variables: Iterable[Any]) -> list[tuple[str, str]]:
    """Returns dtypes and shapes, with names for messages only."""
    return [
        (
            f"{tf.as_dtype(each.dtype).base_dtype.name} "
            f"{tf.TensorShape(each.shape)}",
            each.name,
        )
        for each in variables
    ]
