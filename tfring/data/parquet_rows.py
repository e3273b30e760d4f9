"""Rows of Parquet files, as batches of each rank.

Note [The order of rows]: an epoch takes the row groups in an order that follows
from the seed and the epoch, and the rows of each group in an order that follows
from the group's number, too. So the order is the same for any number of ranks.
Each rank has a run of this sequence, and so reads few row groups that other
ranks read, too.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import itertools
import threading
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any

import keras
import numpy as np

from tfring._core import runtime
from tfring.data.sharding import gather_same

# A batch may begin in one row group and end in the next.
_GROUPS_KEPT = 2


def parquet(
    path: str | PathLike[str] | Sequence[str],
    *,
    batch_size: int,
    columns: Sequence[str] | None = None,
    shuffle: bool = True,
    seed: int = 0,
    transform: Callable[[dict[str, Any]], Any] | None = None,
    of_all_ranks: bool = False,
) -> ParquetBatches:
    """Returns this rank's batches of the rows of Parquet files.

    They are for `fit`, `evaluate` and `predict`; in loops of your own take
    `batches[n]` for each `n` below `len(batches)`, and call
    `batches.on_epoch_end()` then. Pass `shuffle=False` to `fit`: rows are
    shuffled here, and batches are read fastest in their order.

    Each rank reads a row group at a time, and keeps two. All ranks have equally
    many batches, and no row in common. The rows that are left over at the end
    of an epoch, fewer than `batch_size * size()`, are dropped; with a new order
    in every epoch they differ each time.

    With `tfring.callbacks.Checkpoint` a job goes on with the next batch. For
    `tfring.elastic.fit` pass `of_all_ranks=True`: it shares the batches out.

    Collective, unless `of_all_ranks`: every rank must call it, with the same
    arguments and the same files.

    Args:
        path: A folder, a file, or a list of files; with a scheme, such as
            "s3://bucket/folder", as pyarrow takes it. In a folder, names that
            begin with "." or "_" are left out.
        batch_size: The rows of a batch, on each rank.
        columns: The names of the columns to read; None reads all.
        shuffle: True gives each epoch another order of rows.
        seed: The seed of the orders.
        transform: Makes of a dict of arrays what `fit` takes as a batch, such
            as a tuple of inputs and targets. None leaves it a dict. The arrays
            are by column, of `batch_size` rows; a column of lists has one
            dimension more for each level of lists. Numbers keep their type.
        of_all_ranks: True if they are batches of all ranks.

    Raises:
        ImportError: pyarrow is not installed; `tfring[parquet]` has it.
        FileNotFoundError: There are no such files.
        RuntimeError: The job is elastic, and `of_all_ranks` False.
        ValueError: A column is not in the files, there are too few rows for a
            batch of each rank, `batch_size` is not positive, or, on every rank,
            the ranks have different files or arguments. Later, from a batch: a
            column has nulls, or lists of different lengths.

    Example:

    ```python
    rows = tfring.data.parquet(
        "s3://bucket/train",
        batch_size=256,
        transform=lambda row: (row["features"], row["label"]),
    )
    model.fit(rows, epochs=3, shuffle=False)
    ```
    """
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "tfring.data.parquet takes the package pyarrow, which cannot be "
            f"imported ({error}): pip install pyarrow"
        ) from error
    if batch_size < 1:
        raise ValueError(
            f"parquet: batch_size must be positive, got {batch_size}."
        )
    files = _Files(path, columns)
    rank, size = 0, 1
    if not of_all_ranks and runtime.is_initialized():
        if runtime.may_grow():
            raise RuntimeError(
                "parquet: the ranks of an elastic job change, and with them "
                "their shares. Pass of_all_ranks=True, and the result to "
                "tfring.elastic.fit, which shares the batches out."
            )
        place = runtime.place()
        rank, size = place.rank, place.size
        gather_same(
            "parquet",
            {
                "files": files.digest(),
                "rows": sum(files.rows),
                "columns": files.columns,
                "batch_size": batch_size,
                "shuffle": shuffle,
                "seed": seed,
            },
        )
    steps = sum(files.rows) // (batch_size * size)
    if steps == 0:
        raise ValueError(
            f"parquet: {path} has {sum(files.rows)} rows, too few for a batch "
            f"of {batch_size} on each of {size} ranks."
        )
    rows = range(rank * steps * batch_size, (rank + 1) * steps * batch_size)
    order = int(seed) if shuffle else None
    return ParquetBatches(files, rows, batch_size, order, transform)


class _Files:
    """The row groups of Parquet files."""

    def __init__(self, path: Any, columns: Sequence[str] | None) -> None:
        from pyarrow import dataset

        found = dataset.dataset(path, format="parquet")
        unknown = sorted({*(columns or ())} - {*found.schema.names})
        if unknown:
            raise ValueError(
                f"parquet: {path} has no columns {unknown}. It has "
                f"{found.schema.names}."
            )
        self.columns = list(found.schema.names if columns is None else columns)
        self._schema = found.schema
        # Files are sorted by their names, so that all ranks number them alike.
        self._groups = [
            group
            for file in sorted(found.get_fragments(), key=lambda f: f.path)
            for group in file.split_by_row_group()
            if group.row_groups[0].num_rows > 0
        ]
        self.rows = [group.row_groups[0].num_rows for group in self._groups]

    def digest(self) -> str:
        """Returns a fingerprint of the row groups, but not of their folder."""
        names = [group.path.rpartition("/")[2] for group in self._groups]
        facts = repr((names, self.rows, self._schema.to_string()))
        return hashlib.sha256(facts.encode()).hexdigest()[:16]

    def read(self, number: int) -> dict[str, Any]:
        """Returns the columns of a row group as arrays."""
        group = self._groups[number]
        table = group.to_table(columns=self.columns, schema=self._schema)
        where = f"row group {group.row_groups[0].id} of {group.path}"
        return {
            name: _as_array(
                table[name].combine_chunks(), f"column '{name}' in {where}"
            )
            for name in self.columns
        }


class ParquetBatches(keras.utils.PyDataset):
    """Batches of rows; see `tfring.data.parquet`, which makes it."""

    def __init__(
        self,
        files: _Files,
        rows: range,
        batch_size: int,
        seed: int | None,
        transform: Callable[[dict[str, Any]], Any] | None,
    ) -> None:
        super().__init__()
        self._files = files
        self._own_rows = rows
        self._batch_size = batch_size
        self._seed = seed
        self._transform = transform
        self._lock = threading.Lock()
        self._group = functools.lru_cache(_GROUPS_KEPT)(self._read)
        self.set_epoch(0)

    def __len__(self) -> int:
        return len(self._own_rows) // self._batch_size

    def __getitem__(self, index: int) -> Any:
        begin = index * self._batch_size
        rows = self._own_rows[begin : begin + self._batch_size]
        # Keras may have several threads.
        with self._lock:
            parts = self._rows(rows.start, rows.stop)
        # Copy even a single part, because `transform` may change the batch in
        # place, and Keras asks for the first batches twice.
        batch = {
            name: np.concatenate([part[name] for part in parts])
            for name in self._files.columns
        }
        return batch if self._transform is None else self._transform(batch)

    def on_epoch_end(self) -> None:
        """Goes on to the order of the next epoch."""
        self.set_epoch(self._epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Goes on to the order of an epoch; the first has the number 0."""
        with self._lock:
            self._epoch = epoch
            count = len(self._files.rows)
            self._groups = np.arange(count)[self._order(count)]
            # The number of each group's first row in the epoch, and of the end.
            counts = (self._files.rows[group] for group in self._groups)
            self._starts = [0, *itertools.accumulate(counts)]
            self._group.cache_clear()

    def _order(self, count: int, *group: int) -> Any:
        """Returns the order of the row groups, or of the rows of a group.

        Without a shuffle it is a slice, with which NumPy copies nothing.
        """
        if self._seed is None:
            return slice(count)
        generator = np.random.default_rng([self._seed, self._epoch, *group])
        return generator.permutation(count)

    def _rows(self, begin: int, end: int) -> list[dict[str, Any]]:
        """Returns the rows of the epoch from `begin` to `end`, by group."""
        parts = []
        first = bisect.bisect_right(self._starts, begin) - 1
        for place in range(first, bisect.bisect_left(self._starts, end)):
            start = self._starts[place]
            rows = slice(max(begin - start, 0), end - start)
            group = self._group(self._groups[place])
            parts.append({name: each[rows] for name, each in group.items()})
        return parts

    def _read(self, number: int) -> dict[str, Any]:
        order = self._order(self._files.rows[number], number)
        group = self._files.read(number)
        return {name: column[order] for name, column in group.items()}


def _as_array(column: Any, where: str) -> Any:
    """Returns a column as an array; lists of equal length become dimensions.

    Raises:
        ValueError: It has nulls, or lists of different lengths.
    """
    from pyarrow import compute, types

    if column.null_count:
        raise ValueError(
            f"parquet: {column.null_count} nulls are in {where}. Fill them, or "
            "leave those rows out, where the files are written."
        )
    lists = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    if not any(is_list(column.type) for is_list in lists):
        return column.to_numpy(zero_copy_only=False)
    lengths = compute.list_value_length(column).unique().to_pylist()
    if len(lengths) > 1:
        raise ValueError(
            f"parquet: lists of {min(lengths)} to {max(lengths)} elements are "
            f"in {where}. Pad them where the files are written."
        )
    elements = _as_array(column.flatten(), where)
    return elements.reshape(len(column), *lengths, *elements.shape[1:])
