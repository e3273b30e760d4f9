"""A variable of which each rank has a part, and how it is saved and loaded.

Such are an optimizer's states with `shard_states=True`, and the tables of
`tfring.layers.ShardedEmbedding` with the optimizer's states for them. Files
hold whole values, as one rank would have them. So saving needs the parts of all
ranks, while most programs save on one rank: the ranks gather wholes together
first, by `whole_states`. Loading needs no other rank, because each rank takes
its part of the value that it reads.

Note [Loaded on one rank]: a rank that loads a state keeps the whole value until
its next step, so that a broadcast from it can give all ranks their parts. Only
rank 0 keeps a table, which may be larger than the memory for one per rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfring._core import runtime
from tfring._core.process_sets import ProcessSet, global_process_set
from tfring._ops.allgather import allgather
from tfring._ops.alltoall import alltoall
from tfring._ops.gather_json import gather_by_rank
from tfring._state.kinds import Kind, kind_of
from tfring._state.optimizers import all_optimizers
from tfring._state.records import notes_on
from tfring._state.splits import Split, Strided
from tfring._state.weights import fingerprint, variable_name


class _Gathered(NamedTuple):
    """A whole value, put together from the ranks' parts.

    Attributes:
        value: The whole; None on a rank that does not save.
        steps: How many steps the optimizer had made.
        root_rank: The one rank that saves; None if any rank may.
    """

    value: np.ndarray | None
    steps: int
    root_rank: int | None


class Part:
    """This rank's part of a variable that ranks share out.

    Args:
        variable: It has this rank's part.
        split: Which part each rank has.
        rank: This rank's, among those that share it.
        process_set: The ranks that share it.
        optimizer: The optimizer with `shard_states=True`, whose state it is;
            None for a table, and a state for one.
    """

    def __init__(
        self,
        variable: Any,
        split: Split,
        rank: int,
        process_set: ProcessSet = global_process_set,
        optimizer: Any = None,
    ) -> None:
        self.variable = variable
        self.split = split
        self.rank = rank
        self.process_set = process_set
        self.optimizer = optimizer
        # One for each open `whole_states` context, the last one last.
        self._gathered: list[_Gathered] = []
        # The last commit's, in an elastic job.
        self._kept: _Gathered | None = None
        self._loaded: np.ndarray | None = None
        self._loaded_part: str | None = None  # its fingerprint

    @property
    def size(self) -> int:
        """The number of ranks that share it."""
        return self.split.size

    def gather(self, root_rank: int | None = None) -> np.ndarray | None:
        """Returns the whole; None on ranks other than `root_rank`.

        Collective, and eager.
        """
        own = tf.convert_to_tensor(self.variable)
        keeps = root_rank in (None, runtime.rank())
        if self.size == 1:
            return self.split.joined(own.numpy()) if keeps else None
        options: dict[str, Any] = {
            "name": "parts/gathered",
            "ignore_name_scope": True,
            "process_set": self.process_set,
        }
        if root_rank is None:
            parts = allgather(own, **options)
        else:
            splits = np.zeros(self.size, np.int64)
            ranks = self.process_set.ranks or []
            if root_rank in ranks:
                splits[ranks.index(root_rank)] = len(own)
            parts, _ = alltoall(own[: splits.sum()], splits=splits, **options)
        return self.split.joined(parts.numpy()) if keeps else None

    @contextmanager
    def gathered(self, root_rank: int | None) -> Iterator[None]:
        """Has the whole on `root_rank`, or all ranks, meanwhile. Collective."""
        if not self.has_loaded():
            self.forget_loaded()
        entry = _Gathered(self.gather(root_rank), self._steps(), root_rank)
        self._gathered.append(entry)
        try:
            yield
        finally:
            self._gathered = [e for e in self._gathered if e is not entry]

    def keep_gathered(self) -> None:
        """Keeps the gathered whole until the next commit or load."""
        self._kept = self._gathered[-1]

    def kept(self) -> np.ndarray | None:
        """Returns the whole of the last commit, unless it has changed since."""
        return None if self._kept is None else self._value_of(self._kept)

    def loaded(self) -> np.ndarray | None:
        """Returns the whole that was loaded, if this rank keeps it."""
        return self._loaded

    def whole(self) -> np.ndarray:
        """Returns the whole, if this rank knows it.

        Raises:
            RuntimeError: It does not.
        """
        if self.size == 1:
            value = self.gather()
            assert value is not None
            return value
        for each in reversed(self._gathered):
            known = self._value_of(each)
            if known is not None:
                return known
        who = (
            f"'{self.variable.path}' has the rows of a ShardedEmbedding"
            if self.optimizer is None
            else f"The optimizer '{self.optimizer.name}' has shard_states=True"
        )
        raise RuntimeError(
            f"{who}: this rank has 1/{self.size} of the whole, and cannot save "
            f"it alone. {self._why_not_whole()}"
        )

    def _value_of(self, gathered: _Gathered) -> np.ndarray | None:
        """Returns a gathered whole, unless it has changed since."""
        value = gathered.value
        if value is None or gathered.steps != self._steps():
            return None
        own = np.asarray(tf.convert_to_tensor(self.variable))
        gathered_part = self.split.part_of(value, self.rank)
        return value if gathered_part.tobytes() == own.tobytes() else None

    def _steps(self) -> int:
        optimizer = self.optimizer
        return 0 if optimizer is None else int(optimizer._iterations)

    def _why_not_whole(self) -> str:
        if not self._gathered:
            why = "The ranks have not put it together."
        elif any(each.value is not None for each in self._gathered):
            why = (
                "It has changed since the ranks have put it together; train "
                "outside of tfring.whole_states."
            )
        else:
            why = (
                "The ranks have put it together for rank "
                f"{self._gathered[-1].root_rank} alone: pass root_rank=None, "
                "or the rank that saves."
            )
        return (
            f"{why} On every rank enter `with tfring.whole_states(model):`, or "
            "of the optimizer, and save inside of it, on whichever rank saves. "
            "No file has been written."
        )

    def load(self, whole: Any) -> None:
        """Takes this rank's part of a whole, an array or a file's data set."""
        shape = tuple(np.shape(whole))
        if shape != self.split.shape:
            raise ValueError(
                f"A value of shape {shape} was given for "
                f"'{variable_name(self.variable)}', of which the ranks have "
                f"parts, and which has the shape {self.split.shape} as a "
                "whole. Pass, or load, that of a model that is alike."
            )
        keeps = not isinstance(self.split, Strided) or self.rank == 0
        if keeps:
            whole = np.asarray(whole)
        self._assign(self.split.part_of(whole, self.rank))
        self._loaded = whole if keeps and self.size > 1 else None
        self._kept = None

    def _assign(self, part: np.ndarray) -> None:
        self.variable.assign(part)
        self._loaded_part = fingerprint(self.variable)

    def has_loaded(self) -> bool:
        """Tells whether nothing has changed since the last load."""
        return self._loaded_part is not None and (
            self._loaded_part == fingerprint(self.variable)
        )

    def forget_loaded(self) -> None:
        """Called before a step, and where the whole is no longer needed."""
        self._loaded = None

    def receive(self, root_rank: int) -> None:
        """Gives all ranks their parts of the loaded whole. Collective."""
        own = tf.convert_to_tensor(self.variable)[:0]
        splits = np.zeros(self.size, np.int64)
        if runtime.rank() == root_rank:
            parts = [
                self.split.part_of(self._loaded, rank)
                for rank in range(self.size)
            ]
            splits[:] = [len(part) for part in parts]
            own = tf.constant(np.concatenate(parts), own.dtype)
        part, _ = alltoall(
            own,
            splits=splits,
            name="parts/loaded",
            ignore_name_scope=True,
            process_set=self.process_set,
        )
        self._assign(part.numpy())
        self.forget_loaded()


def part_of(variable: Any) -> Part | None:
    """Returns the part that a variable is, or None if it is whole."""
    part: Part | None = notes_on(variable).part
    return part


def parts_of(target: Any) -> list[Part]:
    """Returns the parts among a model's or an optimizer's variables."""
    variables = list(getattr(target, "variables", ()))
    for each in all_optimizers(target):
        variables += [*each._trainable_variables, *each._variables]
    found = {
        id(variable): part
        for variable in variables
        if (part := part_of(variable)) is not None
    }
    return list(found.values())


def split_off_parts(
    variables: Iterable[Any],
) -> tuple[list[Any], list[Part]]:
    """Returns the variables that are whole, and the parts of the others."""
    whole, parts = [], []
    for variable in variables:
        if kind_of(variable) is not Kind.PART:
            whole.append(variable)
        elif (part := part_of(variable)) is not None:
            parts.append(part)
    return whole, parts


def saved_value(variable: Any) -> np.ndarray:
    """Returns the value that a file has of an optimizer's variable."""
    part = part_of(variable)
    # NumPy 2 warns of Keras's own `numpy`.
    return (
        np.asarray(tf.convert_to_tensor(variable))
        if part is None
        else part.whole()
    )


def assign_saved(variable: Any, value: Any) -> None:
    """Assigns the value that a file has."""
    part = part_of(variable)
    if part is not None:
        part.load(value)
    else:
        variable.assign(value)


def share_loaded(
    parts: Sequence[Part], root_rank: int, process_set: ProcessSet
) -> None:
    """Gives all ranks their parts of what one rank has loaded.

    Collective, and eager. What that rank has not loaded since its last step
    does not change. See Note [Loaded on one rank].

    Raises:
        RuntimeError: On every rank, if it has loaded a table, and is not rank
            0.
        ValueError: Other ranks share an optimizer's states.
    """
    shared = []
    for part in parts:
        if part.process_set is process_set:
            shared.append(part)
        elif part.optimizer is not None:
            raise ValueError(
                f"The optimizer '{part.optimizer.name}' has shard_states=True: "
                "its state can be broadcast among the ranks that share it "
                "alone. Pass the same process_set as to DistributedOptimizer."
            )
    if not shared or shared[0].size == 1:
        return
    own = [
        [has_loaded, part.loaded() is not None]
        for part, has_loaded in zip(shared, _are_as_loaded(shared), strict=True)
    ]
    of_ranks = gather_by_rank(
        own, name="parts/has loaded", process_set=process_set
    )
    for number, part in enumerate(shared):
        has_loaded, keeps = of_ranks[root_rank][number]
        if has_loaded and keeps:
            part.receive(root_rank)
        elif has_loaded and root_rank != 0 and part.optimizer is None:
            if all(each[number][0] for each in of_ranks.values()):
                continue  # Each rank has loaded by itself.
            raise RuntimeError(
                f"Rank {root_rank} has loaded '{part.variable.path}', the "
                "rows of a ShardedEmbedding, and is not rank 0: it keeps its "
                "rows alone, and cannot give the other ranks theirs. Load on "
                "rank 0, or on every rank."
            )


def _are_as_loaded(parts: Sequence[Part]) -> list[bool]:
    """Tells for each part whether nothing has changed since the last load.

    A rank's part of a state may be empty. So of an optimizer's states none has
    changed, or any may have.
    """
    unchanged: dict[int, bool] = {}
    for part in parts:
        owner = id(part.optimizer or part)
        unchanged[owner] = unchanged.get(owner, True) and part.has_loaded()
    return [unchanged[id(part.optimizer or part)] for part in parts]
