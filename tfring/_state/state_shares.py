"""The part of a sharded optimizer's class that saves and loads.

Saved states have the plain optimizer's layout; see Note [The layout of saved
states] in sharded.py. Saving needs the shares of all ranks, while most programs
save on one rank. So the ranks first gather the shares together, by
`whole_states`. Loading needs no other rank, because each rank takes its share
of the values that it reads. A rank that has loaded values alone keeps them
until the next step, for a broadcast.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from tensorflow.python.training.saving.saveable_object import SaveSpec

from tfring._core import runtime
from tfring._core.process_sets import ProcessSet
from tfring._gradients.shares import Layout, place_in
from tfring._ops.allgather import allgather
from tfring._ops.broadcast import broadcast
from tfring._ops.objects import broadcast_object

if TYPE_CHECKING:
    from keras.optimizers import Optimizer as _Optimizer

    _Trackable = object
else:
    _Optimizer = object
    _Trackable = tf.__internal__.tracking.Trackable


@dataclasses.dataclass(frozen=True)
class _Slot:
    """One of a variable's states in a plain optimizer."""

    slots: Sequence[Any]  # this rank's shares of the states of all variables
    index: int  # of the variable

    @property
    def own(self) -> Any:
        """This rank's share of it."""
        return self.slots[self.index]


@dataclasses.dataclass(frozen=True, eq=False)
class _Gathered:
    """A whole state."""

    iterations: int  # at which it was gathered
    # By the numbers of `_plain`; None on a rank that does not save.
    values: dict[int, np.ndarray] | None
    root_rank: int | None


class WholeStates(_Optimizer):
    """Saves and loads; mixed into `tfring._optim.sharded.Sharded`."""

    _tfring_layout: Layout
    # For each kind of state, such as momentum, the variables by share.
    _tfring_slots: list[Sequence[Any]]
    # The gathered states of open `whole_states` contexts, the last one last.
    _tfring_whole: tuple[_Gathered, ...] = ()
    # The loaded values, by the numbers of `_plain`.
    _tfring_loaded: Mapping[int, np.ndarray] = MappingProxyType({})
    # The states gathered for the last commit of an elastic job.
    _tfring_kept: _Gathered | None = None

    def _dtype_of(self, number: int) -> tf.DType:
        entry = self._plain()[number]
        return tf.as_dtype(self._tfring_layout.variables[entry.index].dtype)

    def _plain(self) -> list[Any]:
        """Returns the plain optimizer's variables: this one's, or `_Slot`s.

        They have the order of `_variables`.
        """
        slot_of = {
            id(variable): _Slot(slots, i)
            for slots in self._tfring_slots
            for i, variable in enumerate(slots)
        }
        return [slot_of.get(id(each), each) for each in self._variables]

    def _plain_slots(self) -> dict[int, _Slot]:
        """Returns the `_Slot`s among `_plain`, by their numbers there."""
        return {
            number: entry
            for number, entry in enumerate(self._plain())
            if isinstance(entry, _Slot)
        }

    def _cut_anew(self, values: Sequence[Any] | None) -> None:
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
            self._assign_whole(values)

    def _cut_known_anew(self) -> None:
        """Cuts the whole values that this rank knows, without any other rank.

        Raises:
            RuntimeError: This rank knows only a part.
        """
        iterations = int(self._iterations)
        kept = self._tfring_kept
        if self._has_loaded():
            known: Mapping[int, np.ndarray] | None = self._tfring_loaded
        elif self._tfring_layout.size == 1:
            known = self._gathered()
        elif kept is not None and kept.iterations == iterations:
            known = kept.values
        elif iterations == 0:
            self._cut_anew(None)
            return
        else:
            raise RuntimeError(
                f"The optimizer '{self.name}' has shard_states=True, and was "
                f"trained for {iterations} steps before the elastic state was "
                "made: a rank with a part of its states was lost before the "
                "first commit. Save it before, and load it where the script "
                "begins."
            )
        assert known is not None
        self._cut_anew(self._with_slots(known))

    @contextmanager
    def _gathered_whole(self, root_rank: int | None) -> Iterator[None]:
        """Gathers states for `root_rank`, or all ranks if None. Collective."""
        keeps = root_rank is None or root_rank == runtime.rank()
        values = self._gathered(keeps)
        gathered = _Gathered(
            int(self._iterations), values if keeps else None, root_rank
        )
        # Bypasses attribute tracking.
        self.__dict__["_tfring_whole"] = (*self._tfring_whole, gathered)
        try:
            yield
        finally:
            self.__dict__["_tfring_whole"] = tuple(
                each for each in self._tfring_whole if each is not gathered
            )

    def _gathered(self, keeps: bool = True) -> dict[int, np.ndarray]:
        layout = self._tfring_layout
        process_set = layout.options.process_set
        values: dict[int, np.ndarray] = {}
        for number, slot in self._plain_slots().items():
            flat = tf.convert_to_tensor(slot.own)
            if layout.size > 1:
                # In the order of the ranks, and so of the elements.
                flat = allgather(
                    flat,
                    name=f"states/{number}",
                    ignore_name_scope=True,
                    process_set=process_set,
                )
            if keeps:
                shape = tuple(layout.variables[slot.index].shape)
                values[number] = flat.numpy().reshape(shape)
        return values

    def _known_whole(self) -> dict[int, np.ndarray]:
        iterations = int(self._iterations)
        for each in reversed(self._tfring_whole):
            if each.values is not None and each.iterations == iterations:
                return each.values
        size = self._tfring_layout.size
        if size == 1:
            return self._gathered()
        raise RuntimeError(
            f"The optimizer '{self.name}' has shard_states=True: this rank "
            f"has 1/{size} of its state, and cannot save it alone. "
            f"{self._why_not_whole()} On every rank enter `with "
            "tfring.whole_states(optimizer):`, and save inside of it, on "
            "whichever rank saves. No file has been written."
        )

    def _why_not_whole(self) -> str:
        if not self._tfring_whole:
            return "The ranks have not put it together."
        last = self._tfring_whole[-1]
        if last.iterations != int(self._iterations):
            return (
                "It has made a step since the ranks have put it together; "
                "train outside of tfring.whole_states."
            )
        return (
            f"The ranks have put it together for rank {last.root_rank} alone: "
            "pass root_rank=None, or the rank that saves."
        )

    def _whole_values(self) -> list[Any]:
        return self._with_slots(self._known_whole())

    def _with_slots(self, whole: Mapping[int, np.ndarray]) -> list[Any]:
        return [
            whole[number] if isinstance(entry, _Slot) else entry.numpy()
            for number, entry in enumerate(self._plain())
        ]

    def _keep_gathered(self) -> None:
        """Keeps the gathered states until the next commit or load."""
        self.__dict__["_tfring_kept"] = self._tfring_whole[-1]

    def _assign_whole(self, values: Sequence[Any]) -> None:
        loaded = {}
        for number, (entry, value) in enumerate(
            zip(self._plain(), values, strict=True)
        ):
            if isinstance(entry, _Slot):
                loaded[number] = self._checked(entry, value)
            else:
                entry.assign(value)
        self._keep_loaded(loaded)
        for number, slot in self._plain_slots().items():
            slot.own.assign(self._own_part(slot, loaded[number]))

    def _take_whole(self, values: Sequence[Any]) -> None:
        """Assigns whole values; cuts shares anew if the ranks have changed."""
        if self._is_for_other_ranks():
            self._cut_anew(values)
        else:
            self._assign_whole(values)

    def _is_for_other_ranks(self) -> bool:
        layout = self._tfring_layout
        # After the job the shares stay as they are.
        return runtime.is_initialized() and (
            (layout.rank, layout.size) != place_in(layout.options)
        )

    def _restore_state(self, own: Any, value: Any) -> None:
        """Takes the whole value of the state of which `own` is a share."""
        for number, slot in self._plain_slots().items():
            if slot.own is own:
                self._restore_slot(number, value)

    def _restore_slot(self, number: int, value: Any) -> None:
        """Takes one value of a checkpoint."""
        slot = self._plain_slots()[number]
        whole = self._checked(slot, value)
        self._keep_loaded({**self._tfring_loaded, number: whole})
        slot.own.assign(self._own_part(slot, whole))

    def _keep_loaded(self, loaded: Mapping[int, np.ndarray]) -> None:
        self.__dict__["_tfring_loaded"] = loaded
        self.__dict__.pop("_tfring_kept", None)

    def _checked(self, slot: _Slot, value: Any) -> np.ndarray:
        variable = self._tfring_layout.variables[slot.index]
        array = np.asarray(value)
        if array.shape != tuple(variable.shape):
            raise ValueError(
                f"The optimizer '{self.name}': a state of shape {array.shape} "
                f"was given for '{self._tfring_layout.names[slot.index]}' of "
                f"shape {tuple(variable.shape)}. Load it for the model that it "
                "was saved with."
            )
        return array

    def _own_part(self, slot: _Slot, whole: np.ndarray) -> np.ndarray:
        """Returns this rank's part of a whole state."""
        share = self._tfring_layout.shares[slot.index]
        return whole.reshape(-1)[share.begin : share.end]

    def _forget_loaded(self) -> None:
        self.__dict__.pop("_tfring_loaded", None)

    def _has_loaded(self) -> bool:
        """Tells if this rank's state is equal to the loaded values."""
        slots, loaded = self._plain_slots(), self._tfring_loaded
        return slots.keys() == loaded.keys() and all(
            slot.own.numpy().tobytes()
            == self._own_part(slot, loaded[number]).tobytes()
            for number, slot in slots.items()
        )

    def _broadcast_loaded(
        self, root_rank: int, process_set: ProcessSet
    ) -> None:
        """Gives all ranks their shares of the values that one rank has loaded.

        Collective, and eager. If that rank has loaded nothing, no state
        changes.
        """
        options = self._tfring_layout.options
        if options.process_set is not process_set:
            raise ValueError(
                f"The optimizer '{self.name}' has shard_states=True: its state "
                "can be broadcast among the ranks that share it alone. Pass "
                "the same process_set as to DistributedOptimizer."
            )
        if not broadcast_object(
            self._has_loaded(),
            root_rank,
            name="states/loaded",
            process_set=process_set,
        ):
            return
        values = []
        for number, entry in enumerate(self._plain()):
            if not isinstance(entry, _Slot):
                values.append(entry.numpy())
                continue
            variable = self._tfring_layout.variables[entry.index]
            dtype = tf.as_dtype(variable.dtype)
            own = self._tfring_loaded.get(number)
            if own is None or runtime.rank() != root_rank:
                own = np.zeros(variable.shape, dtype.as_numpy_dtype)
            values.append(
                broadcast(
                    tf.constant(own, dtype),
                    root_rank,
                    name=f"states/{number}",
                    ignore_name_scope=True,
                    process_set=process_set,
                )
            )
        self._assign_whole(values)
        self._forget_loaded()

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
        if isinstance(child, Sequence) and child:
            slots = self._plain_slots()
            for first in slots.values():
                # The first variable identifies the list.
                if child[0] is first.slots[0]:
                    return self._list_of(
                        number
                        for number, slot in slots.items()
                        if slot.slots is first.slots
                    )
        return child

    def _list_of(self, numbers: Iterable[int]) -> _List:
        # The same objects each time, because a checkpoint compares identities.
        made = self.__dict__.setdefault("_tfring_trackables", {})
        key = tuple(numbers)
        if key not in made:
            plain = self._plain()
            made[key] = _List(
                [
                    made.setdefault(number, _WholeVariable(self, number))
                    if isinstance(plain[number], _Slot)
                    else plain[number]
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
    """One of the plain optimizer's variables in a checkpoint."""

    def __init__(self, owner: WholeStates, number: int) -> None:
        self._owner = owner
        self._number = number

    def _serialize_to_tensors(self) -> dict[str, Any]:
        # Also called when a checkpoint is restored, which needs no value.
        name = "VARIABLE_VALUE"
        dtype = self._owner._dtype_of(self._number)
        return {name: SaveSpec(self._value, "", name, dtype, "CPU:0")}

    def _value(self) -> tf.Tensor:
        with tf.init_scope():  # TensorFlow traces saving.
            return tf.constant(self._owner._known_whole()[self._number])

    def _restore_from_tensors(self, restored_tensors: Any) -> Any:
        def restore(value: tf.Tensor) -> None:
            self._owner._restore_slot(self._number, value)

        # TensorFlow traces restoring, too.
        return tf.py_function(restore, list(restored_tensors.values()), [])
