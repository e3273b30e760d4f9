"""The part of a sharded optimizer's class that saves and loads.

Saved states are whole and have the plain optimizer's layout; see shards.py. If
the ranks change, as in an elastic job, whole states are sharded again for the
new ranks. TensorFlow's checkpoints see a whole variable for each shard.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.training.saving.saveable_object import SaveSpec

from tfring._core import runtime
from tfring._gradients.shares import Layout
from tfring._memory.sharding_ranks import ShardingRanks
from tfring._state.shards import Shard, assign_in_turn, shard_of

if TYPE_CHECKING:
    from keras.optimizers import Optimizer as _Optimizer

    _Trackable = object
else:
    _Optimizer = object
    _Trackable = tf.__internal__.tracking.Trackable


class WholeStates(_Optimizer):
    """Saving and loading: a mixin of `tfring._optim.sharded.Sharded`."""

    _tfring_layout: Layout

    def _shards(self) -> dict[int, Shard]:
        """Returns the shards among its variables, by number."""
        return {
            number: shard
            for number, variable in enumerate(self._variables)
            if (shard := shard_of(variable)) is not None
        }

    def _cut_anew(self, values: Iterable[Any] | None) -> None:
        """Builds the optimizer again for the current ranks, from whole values.

        Args:
            values: The whole values; None for the initial values.
        """
        for variable in list(self._variables):
            if (
                variable is not self._iterations
                and variable is not self._learning_rate
            ):
                self._untrack_variable(variable)
        self.built = False
        self.build(list(self._trainable_variables))
        if values is not None:
            assign_in_turn(self._variables, iter(values))

    def _take_whole(self, values: Iterable[Any]) -> None:
        """Assigns whole values; shards them again if the ranks have changed."""
        if self._is_for_other_ranks():
            self._cut_anew(values)
        else:
            assign_in_turn(self._variables, iter(values))

    def _is_for_other_ranks(self) -> bool:
        layout = self._tfring_layout
        # Shards stay as they are after the job has ended.
        ranks = ShardingRanks(layout.options.process_set)
        return runtime.is_initialized() and (
            (layout.rank, layout.size) != (ranks.rank, ranks.size)
            or layout.has_other_parameters()
        )

    def _trackable_children(
        self, save_type: str = "checkpoint", **kwargs: Any
    ) -> dict[str, Any]:
        children: dict[str, Any] = super()._trackable_children(
            save_type, **kwargs
        )
        if save_type != "checkpoint" or not self.built:
            return children
        return {name: self._whole_child(c) for name, c in children.items()}

    def _lookup_dependency(self, name: str, *args: Any) -> Any:
        if name == "_variables" and not self.built:
            raise RuntimeError(
                f"The optimizer '{self.name}' has shard_states=True, and must "
                "be built before a checkpoint is restored: call "
                "optimizer.build(model.trainable_variables)."
            )
        child = super()._lookup_dependency(name, *args)
        return self._whole_child(child) if self.built else child

    def _whole_child(self, child: Any) -> Any:
        """Returns a plain optimizer's list for a variable list, or `child`."""
        if child is self._variables:
            return self._list_of(range(len(child)))
        if isinstance(child, Sequence) and child and shard_of(child[0]):
            number_of = {id(v): i for i, v in enumerate(self._variables)}
            numbers = [number_of.get(id(each)) for each in child]
            if None not in numbers:  # a replaced list has other variables
                return self._list_of(numbers)
        return child

    def _list_of(self, numbers: Iterable[Any]) -> _List:
        # Each call returns the same objects: a checkpoint compares identities.
        made = self.__dict__.setdefault("_tfring_trackables", {})
        key = tuple(numbers)
        if key not in made:
            shards = self._shards()
            made[key] = _List(
                [
                    made.setdefault(number, _WholeVariable(shards[number]))
                    if number in shards
                    else self._variables[number]
                    for number in key
                ]
            )
        result: _List = made[key]
        return result


class _List(_Trackable):
    """A list in a checkpoint."""

    def __init__(self, elements: Sequence[Any]) -> None:
        self._elements = {str(i): each for i, each in enumerate(elements)}

    def _trackable_children(
        self, save_type: str = "checkpoint", **kwargs: Any
    ) -> dict[str, Any]:
        del save_type, kwargs
        return self._elements

    def _lookup_dependency(self, name: str, *args: Any) -> Any:
        del args
        return self._elements.get(name)


class _WholeVariable(_Trackable):
    """A variable of the plain optimizer in a checkpoint."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    def _serialize_to_tensors(self) -> dict[str, Any]:
        # TensorFlow also calls this to restore, which needs no value.
        name = "VARIABLE_VALUE"
        dtype = tf.as_dtype(self._shard.variable.dtype)
        return {name: SaveSpec(self._value, "", name, dtype, "CPU:0")}

    def _value(self) -> tf.Tensor:
        with tf.init_scope():  # TensorFlow saves in a traced function.
            return tf.constant(self._shard.whole())

    def _restore_from_tensors(self, restored_tensors: Any) -> Any:
        # TensorFlow restores in a traced function.
        return tf.py_function(
            self._shard.load, list(restored_tensors.values()), []
        )
