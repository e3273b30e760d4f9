"""Tables that all ranks share by rows, and how they are saved and loaded.

A rank has the rows `i` with `i % size() == rank()` of each such table
(`tfring.layers.ShardedEmbedding`), and the same rows of each of the optimizer's
states for it. Files hold whole tables, as they would be on one rank. So saving
needs the rows of all ranks, while most programs save on one rank: the ranks
gather tables together first, by `whole_states`. Loading needs no other rank.

Note [Loaded on one rank]: rank 0 keeps a whole table that it has loaded, until
its next step. So a broadcast from rank 0 can give all ranks their rows of it.
The remaining ranks keep their rows alone, as a table may be larger than the
memory for one per rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfring._gradients.local_variables import mark_row_shard
from tfring._ops.allgather import allgather
from tfring._ops.alltoall import alltoall
from tfring._ops.gather_json import gather_by_rank
from tfring._state.optimizers import all_optimizers
from tfring._state.records import notes_on, record_of
from tfring._state.weights import fingerprint, variable_name

# They update a variable by norms or products of all of it.
_NOT_BY_ELEMENT = ("Adafactor", "Lamb", "Muon")


class RowShard:
    """This rank's rows of a table, or of a state of the optimizer for one."""

    def __init__(self, variable: Any, count: int, rank: int, size: int) -> None:
        self.variable = variable
        self.count = count  # of all rows
        self.rank = rank
        self.size = size
        # An entry for each open `whole_states` context, the last one last: the
        # table, or None on a rank that does not save, and the saving rank.
        self._gathered: list[tuple[np.ndarray | None, int | None]] = []
        self._loaded: np.ndarray | None = None
        self._loaded_rows: str | None = None  # their fingerprint

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.count, *self.variable.shape[1:])

    def rows_of(self, table: Any, rank: int) -> np.ndarray:
        """Returns a rank's rows of a table, an array or a file's data set."""
        if rank >= self.count:  # no selection of a data set
            return np.asarray(table[:0])
        return np.asarray(table[rank :: self.size])

    def gather(self, root_rank: int | None = None) -> np.ndarray | None:
        """Returns the table; None on ranks other than `root_rank`.

        Collective, and eager.
        """
        own = tf.convert_to_tensor(self.variable)
        if root_rank is None:
            parts = allgather(own, name="table/rows", ignore_name_scope=True)
        else:
            splits = np.zeros(self.size, np.int64)
            splits[root_rank] = len(own)
            parts, _ = alltoall(
                own, splits=splits, name="table/rows", ignore_name_scope=True
            )
            if self.rank != root_rank:
                return None
        parts = parts.numpy()
        table = np.empty(self.shape, parts.dtype)
        begin = 0
        for rank in range(self.size):
            rows = table[rank :: self.size]
            rows[...] = parts[begin : begin + len(rows)]
            begin += len(rows)
        return table

    @contextmanager
    def gathered(self, root_rank: int | None) -> Iterator[None]:
        """Has the table on `root_rank`, or all ranks, meanwhile. Collective."""
        self.forget_loaded()
        entry = self.gather(root_rank), root_rank
        self._gathered.append(entry)
        try:
            yield
        finally:
            self._gathered = [e for e in self._gathered if e is not entry]

    def whole(self) -> np.ndarray:
        """Returns the table, if this rank knows all of it.

        Raises:
            RuntimeError: It does not.
        """
        own = np.asarray(tf.convert_to_tensor(self.variable))
        if self.size == 1:
            return own
        known = [table for table, _ in self._gathered if table is not None]
        if known and np.array_equal(
            self.rows_of(known[-1], self.rank), own, equal_nan=True
        ):
            return known[-1]
        if not self._gathered:
            why = "The ranks have not put it together."
        elif known:
            why = (
                "It has changed since the ranks have put it together; train "
                "outside of tfring.whole_states."
            )
        else:
            why = (
                "The ranks have put it together for rank "
                f"{self._gathered[-1][1]} alone: pass root_rank=None, or the "
                "rank that saves."
            )
        raise RuntimeError(
            f"'{self.variable.path}' has the rows of a ShardedEmbedding: this "
            f"rank has 1/{self.size} of them, and cannot save the table "
            f"alone. {why} On every rank enter `with "
            "tfring.whole_states(model):`, and save inside of it, on whichever "
            "rank saves. No file has been written."
        )

    def load(self, table: Any) -> None:
        """Takes this rank's rows of a table."""
        if tuple(table.shape) != self.shape:
            raise ValueError(
                f"'{self.variable.path}' has the rows of a table of shape "
                f"{self.shape}, got values of shape {tuple(table.shape)}. "
                "Pass, or load, the table of all ranks, of a model that is "
                "alike."
            )
        if self.rank == 0:
            table = np.asarray(table)
        self._assign(self.rows_of(table, self.rank))
        if self.rank == 0 and self.size > 1:
            self._loaded = table

    def _assign(self, rows: np.ndarray) -> None:
        self.variable.assign(rows)
        self._loaded_rows = fingerprint(self.variable)

    def has_loaded(self) -> bool:
        """Tells whether no row has changed since the last load."""
        return self._loaded_rows is not None and (
            self._loaded_rows == fingerprint(self.variable)
        )

    def keeps_loaded(self) -> bool:
        """Tells whether this rank has the whole table that was loaded."""
        return self._loaded is not None

    def forget_loaded(self) -> None:
        self._loaded = None

    def receive(self, root_rank: int) -> None:
        """Gives all ranks their rows of the loaded table. Collective."""
        own = tf.convert_to_tensor(self.variable)[:0]
        splits = np.zeros(self.size, np.int64)
        if self.rank == root_rank:
            assert self._loaded is not None
            parts = [self.rows_of(self._loaded, r) for r in range(self.size)]
            splits[:] = [len(part) for part in parts]
            own = tf.constant(np.concatenate(parts), own.dtype)
        rows, _ = alltoall(
            own, splits=splits, name="table/loaded", ignore_name_scope=True
        )
        self._assign(rows.numpy())
        self.forget_loaded()


def shard_rows(variable: Any, count: int, rank: int, size: int) -> None:
    """Makes a Keras variable the rows that a rank has of a table."""
    mark_row_shard(variable)
    record_of(variable).rows = RowShard(variable, count, rank, size)


def row_shard_of(variable: Any) -> RowShard:
    """Returns the rows that a variable of kind ROWS has."""
    shard: RowShard = notes_on(variable).rows
    return shard


def has_tables(model: Any) -> bool:
    """Tells whether a model has tables by rows, also before it is built."""
    return any(
        getattr(layer, "has_row_shards", False)
        for layer in model._flatten_layers()
    )


def row_shards_of(target: Any) -> list[RowShard]:
    """Returns the tables of a model or an optimizer, and their states."""
    variables = list(getattr(target, "variables", ()))
    for each in all_optimizers(target):
        variables += [*each._trainable_variables, *each._variables]
    found = {
        id(variable): shard
        for variable in variables
        if (shard := notes_on(variable).rows) is not None
    }
    return list(found.values())


def saved_value(variable: Any) -> np.ndarray:
    """Returns the value that a file has of an optimizer's variable."""
    shard = notes_on(variable).rows
    if shard is not None:
        return np.asarray(shard.whole())
    # NumPy 2 warns of Keras's own `numpy`.
    return np.asarray(tf.convert_to_tensor(variable))


def assign_saved(variable: Any, value: Any) -> None:
    """Assigns the value that a file has."""
    shard = notes_on(variable).rows
    if shard is not None:
        shard.load(value)
    else:
        variable.assign(value)


def share_loaded(shards: Sequence[RowShard], root_rank: int) -> None:
    """Gives all ranks their rows of the tables that one rank has loaded.

    Collective, and eager. If that rank has loaded none since its last step, no
    row changes. See Note [Loaded on one rank].

    Raises:
        RuntimeError: On every rank, if it is not rank 0.
    """
    own = [[shard.has_loaded(), shard.keeps_loaded()] for shard in shards]
    of_ranks = gather_by_rank(own, name="table/has loaded")
    for number, shard in enumerate(shards):
        has_loaded, keeps = of_ranks[root_rank][number]
        if has_loaded and keeps:
            shard.receive(root_rank)
        elif root_rank != 0 and has_loaded:
            if all(each[number][0] for each in of_ranks.values()):
                continue  # each rank by itself
            raise RuntimeError(
                f"Rank {root_rank} has loaded '{shard.variable.path}', the "
                "rows of a ShardedEmbedding, and is not rank 0: it keeps its "
                "rows alone, and cannot give the other ranks theirs. Load on "
                "rank 0, or on every rank."
            )


def check_can_be_tracked(shard: RowShard) -> None:
    """Refuses TensorFlow's own files, which would have this rank's rows."""
    if shard.size > 1:
        raise NotImplementedError(
            f"'{shard.variable.path}' has some rows of a ShardedEmbedding's "
            "table. tf.train.Checkpoint and SavedModel would keep them alone. "
            "Save by model.save or model.save_weights within "
            "tfring.whole_states; to serve the model, take the plain layer "
            "that ShardedEmbedding.to_embedding() gives."
        )


def check_optimizer(optimizer: Any, variable: Any) -> None:
    path = variable_name(variable)
    # Older versions of Keras have no Muon.
    known = [getattr(keras.optimizers, name, ()) for name in _NOT_BY_ELEMENT]
    if any(isinstance(optimizer, each) for each in known):
        raise NotImplementedError(
            f"The optimizer '{optimizer.name}' updates a variable by norms of "
            f"all of it, and a rank has some rows of '{path}', a "
            "ShardedEmbedding's table. Take one that updates element by "
            "element, such as Adam, Adagrad or SGD, instead of "
            f"{', '.join(_NOT_BY_ELEMENT)}."
        )
    for clips in ("clipnorm", "global_clipnorm"):
        if getattr(optimizer, clips, None):
            raise ValueError(
                f"The optimizer '{optimizer.name}' has a {clips}, and a rank "
                f"has some rows of '{path}', a ShardedEmbedding's table: the "
                "norm would differ between ranks. Use clipvalue, or "
                "tfring.clip_by_global_norm with a DistributedGradientTape."
            )
