"""Variables that are sharded over the ranks, and how they are saved and loaded.

With `shard_states=True` each rank has a shard of the optimizer's states, with
`tfring.layers.ShardedEmbedding` a shard of the table and of the states for it,
and with `tfring.shard_parameters` a shard of each large parameter. A file holds
whole values, as one rank alone would write them. Saving therefore needs the
shards of all ranks, while most programs save on one rank: `whole_states` gives
this rank one whole value at a time (see streams.py), or gathers all values on
all ranks. Loading needs no other rank, because each rank takes its shard of the
value that it reads.

Note [Loaded on one rank]: rank 0 keeps a whole value that it loads until its
next step, so that a broadcast from it can give all ranks their shards. The
value waits in a temporary file, because the machine may lack memory for it.
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
from tfring._state.kinds import Kind, kind_of
from tfring._state.optimizers import all_optimizers
from tfring._state.records import notes_on
from tfring._state.splits import Split, Strided
from tfring._state.spool import Spooled, spooled
from tfring._state.streams import Stream
from tfring._state.weights import fingerprint, variable_name


class _Gathered(NamedTuple):
    """A context in which the ranks put a whole value together.

    Attributes:
        value: The whole value, if all ranks have gathered it.
        stream: Gives one rank the value, if that rank alone saves.
        state: The `Shard.state` of this rank's shard on entry.
    """

    value: np.ndarray | None
    stream: Stream | None
    state: tuple[int, str]

    @property
    def is_known(self) -> bool:
        """Whether this rank can read the value."""
        return self.stream is None or self.stream.is_root


class Shard:
    """This rank's shard of a variable.

    Args:
        variable: The variable that holds the elements of this rank.
        split: Which elements each rank has.
        rank: The number of this rank in `process_set`.
        process_set: The ranks that have shards.
        optimizer: The optimizer with `shard_states=True` whose state it is.
            None for a table of a ShardedEmbedding, a state for a table, or a
            parameter.
        numbers: For each rank of the job the number of its shard, if several
            sets of ranks have the same shards. `process_set` is then the set of
            this rank. By default there is only one set.
    """

    def __init__(
        self,
        variable: Any,
        split: Split,
        rank: int,
        process_set: ProcessSet = global_process_set,
        optimizer: Any = None,
        numbers: Sequence[int] | None = None,
    ) -> None:
        self.variable = variable
        self.split = split
        self.rank = rank
        self.process_set = process_set
        self.optimizer = optimizer
        self.numbers = range(split.size) if numbers is None else numbers
        # The ranks that have a shard, of any set.
        self.all_ranks = process_set if numbers is None else global_process_set
        # An entry for each open `whole_states` context; the innermost is last.
        self._gathered: list[_Gathered] = []
        self._loaded: Spooled | None = None
        # The fingerprint of this shard after the last load.
        self._loaded_shard: str | None = None

    @property
    def size(self) -> int:
        """The number of ranks that have shards."""
        return self.split.size

    def gather(
        self,
        root_rank: int | None = None,
        name: str = "shards/gathered",
        *,
        sends: bool = True,
    ) -> np.ndarray | None:
        """Returns the whole value; None on ranks other than `root_rank`.

        Collective, and eager. If a rank's elements have changed, it does not
        send them, and the root raises an error.
        """
        own = tf.convert_to_tensor(self.variable)
        keeps = root_rank in (None, runtime.rank())
        if self.size == 1:
            return self.split.joined(own.numpy()) if keeps else None
        options: dict[str, Any] = {
            "name": name,
            "ignore_name_scope": True,
            "process_set": self.process_set,
        }
        with tf.device(own.device):
            if root_rank is None:
                shards = allgather(own, **options)
            else:
                splits = np.zeros(self.size, np.int64)
                ranks = self.process_set.ranks or []
                if root_rank in ranks and sends:
                    splits[ranks.index(root_rank)] = len(own)
                own = own[: splits.sum()]
                shards, counts = alltoall(own, splits=splits, **options)
                if keeps:
                    self._check_all_sent(np.asarray(counts))
        # NumPy reads the tensor's memory, without a copy.
        return self.split.joined(np.asarray(shards)) if keeps else None

    def _check_all_sent(self, counts: np.ndarray) -> None:
        ranks = self.process_set.ranks or []
        missing = [
            rank
            for number, rank in enumerate(ranks)
            if counts[number] != self.split.count_of(number)
        ]
        if missing:
            raise RuntimeError(
                f"{self.description}: '{variable_name(self.variable)}' has "
                f"changed on the ranks {missing} since they entered "
                "tfring.whole_states, and the root still reads it. Train and "
                "assign outside of the context; in fit, not in a callback in "
                "the end of an epoch or batch in which another one saves. The "
                "file is not complete."
            )

    @contextmanager
    def gathered(self, stream: Stream | None = None) -> Iterator[None]:
        """A context with the whole value. Collective without a stream.

        Args:
            stream: Gives one rank the value. By default all ranks gather it on
                entry.
        """
        if not self.has_loaded():
            self.forget_loaded()
        if stream is None:
            entry = _Gathered(self.gather(), None, self.state())
        else:
            entry = _Gathered(None, stream, stream.states[id(self)])
        self._gathered.append(entry)
        try:
            yield
        finally:
            self._gathered = [e for e in self._gathered if e is not entry]

    @property
    def is_gathered(self) -> bool:
        """Whether a context of `gathered` is open."""
        return bool(self._gathered)

    @property
    def keeps_loaded(self) -> bool:
        """Whether this rank keeps the whole value that it has loaded."""
        return self._loaded is not None

    def whole(self) -> np.ndarray:
        """Returns the whole value.

        Raises:
            RuntimeError: This rank does not have the whole value.
        """
        if self.size == 1:
            value = self.gather()
            assert value is not None
            return value
        known = self._known()
        if known.stream is not None:
            return known.stream.read(self)
        assert known.value is not None
        return known.value

    def check_is_whole(self) -> None:
        """Raises the error of `whole`, without a collective."""
        if self.size > 1:
            self._known()

    def _known(self) -> _Gathered:
        each: _Gathered
        for each in reversed(self._gathered):
            # Training may have gone on in the context.
            if each.is_known and each.state == self.state():
                return each
        raise RuntimeError(
            f"{self.description}: this rank has 1/{self.size} of the values, "
            f"and cannot save them alone. {self._why_not_whole()}"
        )

    @property
    def description(self) -> str:
        """Returns what this is a shard of, for the beginning of an error."""
        if self.optimizer is not None:
            return (
                f"The optimizer '{self.optimizer.name}' has shard_states=True"
            )
        path = variable_name(self.variable)
        if isinstance(self.split, Strided):
            return f"'{path}' has some rows of a ShardedEmbedding's table"
        return f"The parameter '{path}' is sharded (tfring.shard_parameters)"

    def state(self) -> tuple[int, str]:
        """Returns a value that changes if this shard is trained or assigned."""
        optimizer = self.optimizer
        steps = 0 if optimizer is None else int(optimizer._iterations)
        return steps, fingerprint(self.variable)

    def _why_not_whole(self) -> str:
        if not self._gathered:
            why = "The ranks have not put it together."
        elif any(each.is_known for each in self._gathered):
            why = (
                "It has changed since the ranks have put it together; train "
                "outside of tfring.whole_states."
            )
        else:
            stream = self._gathered[-1].stream
            assert stream is not None
            why = (
                f"The ranks put it together for rank {stream.root_rank} alone: "
                "pass root_rank=None, or the rank that saves."
            )
        return (
            f"{why} On every rank enter `with tfring.whole_states(model):`, or "
            "of the optimizer, and save inside of it, on whichever rank saves. "
            "No file has been written."
        )

    def load(self, whole: Any) -> None:
        """Takes this rank's shard of an array, or of a file's data set."""
        shape = tuple(np.shape(whole))
        if shape != self.split.shape:
            raise ValueError(
                f"A value of shape {shape} was given for "
                f"'{variable_name(self.variable)}', which is sharded over the "
                f"ranks and has the whole shape {self.split.shape}. Load the "
                "value of a model or an optimizer of the same shapes."
            )
        self._loaded = None
        self._assign(self.split.shard_of(whole, self.rank))
        if len(self.numbers) > 1 and self.rank == 0:
            self._loaded = spooled(np.asarray(whole))

    def take(self, whole: np.ndarray) -> None:
        """Takes this rank's shard of an array that all ranks have."""
        self.variable.assign(self.split.shard_of(whole, self.rank))
        self._loaded, self._loaded_shard = None, None

    def _assign(self, shard: np.ndarray) -> None:
        self.variable.assign(shard)
        self._loaded_shard = fingerprint(self.variable)

    def has_loaded(self) -> bool:
        """Tells whether this shard is still as it was loaded."""
        return self._loaded_shard is not None and (
            self._loaded_shard == fingerprint(self.variable)
        )

    def forget_loaded(self) -> None:
        """Frees the whole value that was loaded."""
        self._loaded = None

    def receive(self, root_rank: int) -> None:
        """Gives all ranks their shards of `root_rank`'s value. Collective."""
        own = tf.convert_to_tensor(self.variable)[:0]
        splits = np.zeros(len(self.numbers), np.int64)
        if runtime.rank() == root_rank:
            assert self._loaded is not None
            whole = self._loaded.read()
            shards = [self.split.shard_of(whole, n) for n in self.numbers]
            splits[:] = [len(shard) for shard in shards]
            own = tf.constant(np.concatenate(shards), own.dtype)
        shard, _ = alltoall(
            own,
            splits=splits,
            name="shards/loaded",
            ignore_name_scope=True,
            process_set=self.all_ranks,
        )
        self._assign(shard.numpy())
        self.forget_loaded()


def shard_of(variable: Any) -> Shard | None:
    """Returns the shard in a variable, or None if the variable is whole."""
    shard: Shard | None = notes_on(variable).shard
    return shard


def shards_of(target: Any) -> list[Shard]:
    """Returns the shards among a model's or an optimizer's variables."""
    variables = list(getattr(target, "variables", ()))
    for each in all_optimizers(target):
        variables += [*each._trainable_variables, *each._variables]
    found = {
        id(variable): shard
        for variable in variables
        if (shard := shard_of(variable)) is not None
    }
    return list(found.values())


def split_off_shards(
    variables: Iterable[Any],
) -> tuple[list[Any], list[Shard]]:
    """Returns the variables that are whole, and the shards in the others."""
    whole, shards = [], []
    for variable in variables:
        if kind_of(variable) is not Kind.SHARD:
            whole.append(variable)
        elif (shard := shard_of(variable)) is not None:
            shards.append(shard)
    return whole, shards


def saved_value(variable: Any) -> np.ndarray:
    """Returns the value that a file has of an optimizer's variable."""
    shard = shard_of(variable)
    # NumPy 2 warns of Keras's own `numpy`.
    return (
        np.asarray(tf.convert_to_tensor(variable))
        if shard is None
        else shard.whole()
    )


def assign_saved(variable: Any, value: Any) -> None:
    """Assigns a value from a file."""
    shard = shard_of(variable)
    if shard is not None:
        shard.load(value)
    else:
        variable.assign(value)


def assign_in_turn(variables: Iterable[Any], values: Iterator[Any]) -> None:
    """Assigns values from a file, with one of them in memory at a time."""
    for variable in variables:
        assign_saved(variable, next(values))
